"""Faults of real networks and clocks for the nodes of `lab`: packets dropped, links slowed down, wall clocks set."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .lab import Node, can_make_namespaces

_CLOCK_SOURCE = Path(__file__).with_name("wall_clock.c")


def why_no_faults() -> str:
    """Empty if links can be cut and slowed down and clocks set here, else what is missing."""
    if not can_make_namespaces():
        return "needs root for network namespaces"
    missing = [name for name in ("iptables", "tc", "cc") if not shutil.which(name)]
    return f"needs {' and '.join(missing)}" if missing else ""


def _in(node: Node, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", str(node.namespace), *command], check=True, capture_output=True)


# --- links ------------------------------------------------------------------------------------------------------------


@contextmanager
def deafened(node: Node, to: Iterable[Node]) -> Iterator[None]:
    """Every packet from those to ``node`` is dropped, without a word to anybody."""
    for other in to:
        _in(node, "iptables", "-A", "INPUT", "-s", other.host, "-j", "DROP")
    try:
        yield
    finally:
        _in(node, "iptables", "-F", "INPUT")


@contextmanager
def cut(some: list[Node], others: list[Node]) -> Iterator[None]:
    """No packet passes between the two sides."""
    with ExitStack() as stack:
        for node in some:
            stack.enter_context(deafened(node, others))
        for node in others:
            stack.enter_context(deafened(node, some))
        yield


@contextmanager
def slowed(node: Node, kbit_per_s: int) -> Iterator[None]:
    """What ``node`` sends leaves at that rate, after half a second in a queue at most; the rest of it is lost."""
    shape = ("rate", f"{kbit_per_s}kbit", "burst", "16kb", "latency", "500ms")
    _in(node, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)
    try:
        yield
    finally:
        _in(node, "tc", "qdisc", "del", "dev", "eth0", "root")


# --- clocks -----------------------------------------------------------------------------------------------------------


class WallClock:
    """The wall clock of one node's processes (not of its p2pd, which asks the kernel). Start it with `variables`."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._path, self._library = folder / "clock", library
        self.set(0)

    @property
    def variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "ATOLL_TEST_CLOCK": str(self._path)}

    def set(self, wrong_by_s: int) -> None:
        """Let it be so many seconds ahead of the machine's, from now on."""
        if not self._path.exists():
            self._path.write_bytes(bytes(8))
        with self._path.open("r+b", buffering=0) as file:  # in place: the processes have it mapped
            file.write(struct.pack("=q", wrong_by_s))


def compile_clock(folder: Path) -> Path:
    """The library that replaces the wall clock."""
    library = folder / "wall_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_CLOCK_SOURCE), "-ldl"], check=True)
    return library
