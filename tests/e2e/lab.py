"""Real node processes for end-to-end tests: each with a folder, a key and, where root allows, a network namespace.

Nothing is shared between the nodes except the signed spec's text, which every node gets as a copy of its own. Events
are read from each node's standard output (`atoll join --json`); waiting is for events, never for time.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.node.demo import free_port
from atoll.node.endpoint import ask
from atoll.protocol.messages import Commit

from . import patches

Event = dict[str, Any]
PATIENCE = 4
"""Every limit is so many times what the test asks for: a machine that does ten other things is slow, not wrong."""
ATOLL = [sys.executable, "-P", "-m", "atoll.node.cli"]


def run_atoll(*arguments: str, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*ATOLL, *arguments], cwd=cwd, check=check, capture_output=True, text=True, timeout=60 * PATIENCE
    )


# --- network namespaces -----------------------------------------------------------------------------------------------


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"atoll-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


def _enter_namespace(name: str) -> None:
    """For the calling thread alone."""
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")


@contextmanager
def namespaces(num_nodes: int) -> Iterator[list[str]]:
    """Names of ``num_nodes`` namespaces on one bridge of their own; node i has the address 10.77.0.(i+1)."""
    prefix = f"atoll{os.getpid()}-"
    bridge = prefix + "br"
    names = [f"{prefix}{index}" for index in range(num_nodes)]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for name in (bridge, *names):
            ip("netns", "add", name)
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        for index, name in enumerate(names):
            ip("link", "add", f"v{index}", "netns", bridge, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", bridge, "link", "set", f"v{index}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{index + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in (*names, bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


# --- nodes ------------------------------------------------------------------------------------------------------------


class NodeDied(AssertionError):
    """A node ended while a test waited for one of its events; carries its last log lines."""


@dataclass
class Node:
    """One volunteer's machine: a folder, an address and at most one running process."""

    name: str
    folder: Path
    host: str
    port: int
    namespace: str | None = None
    peer_id: str = ""
    events: list[Event] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"/ip4/{self.host}/tcp/{self.port}/p2p/{self.peer_id}"

    @property
    def spec_path(self) -> Path:
        return self.folder / "run.toml"

    def create_identity(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shown = run_atoll("identity", "show", "--folder", str(self.folder), "--json")
        self.peer_id = json.loads(shown.stdout)["peer_id"]

    def start(self, *extra: str, kill_at: str | None = None, patch: str | None = None, **variables: str) -> None:
        """Start `atoll join`. ``kill_at`` is a journal point (``name`` or ``name:round``) where it dies by SIGKILL;
        ``patch`` a function of `patches` that plants a fault into this node; ``variables`` are of its environment.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        if kill_at is not None:
            environment["ATOLL_KILL_AT"] = kill_at
        program = ATOLL
        if patch is not None:
            environment[patches.VARIABLE] = patch
            program = [sys.executable, "-P", patches.__file__]
        prefix = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        arguments = [
            *("join", str(self.spec_path), "--folder", str(self.folder), "--name", self.name, "--host", self.host),
            *("--port", str(self.port), "--dashboard-port", "0", "--threads", "1", "--yes", "--json", *extra),
        ]
        with (self.folder / "stderr.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self.events.append({**json.loads(line), "at_s": time.monotonic()})
                self._changed.notify_all()
        process.wait()
        with self._changed:
            self._changed.notify_all()

    def log_tail(self, num_lines: int = 15) -> str:
        return "\n".join((self.folder / "stderr.log").read_text(errors="replace").splitlines()[-num_lines:])

    def wait_for(self, what: str, found: Callable[[list[Event]], Any], timeout_s: float) -> Any:
        """Block until ``found(events)`` is truthy and return it. Raises `NodeDied` or a described timeout."""

        def settled() -> Any:
            return found(self.events) or (self.process is not None and self.process.poll() is not None)

        with self._changed:
            self._changed.wait_for(settled, timeout_s * PATIENCE)
            if result := found(self.events):
                return result
        if self.process is not None and self.process.poll() is not None:
            raise NodeDied(f"{self.name} ended with {self.process.returncode} before: {what}\n{self.log_tail()}")
        last = [event for event in self.events if event.get("event") != "state"][-3:]
        raise AssertionError(
            f"{self.name}: not within {timeout_s * PATIENCE} s: {what}; last: {last}\n{self.log_tail()}"
        )

    def wait_for_round(self, round_number: int, timeout_s: float) -> Event:
        """The report of the first committed round with at least this number."""
        return self.wait_for(
            f"round {round_number}",
            lambda events: next((e for e in rounds(events) if e["round"] >= round_number), None),
            timeout_s,
        )

    def wait_for_exit(self, timeout_s: float) -> int:
        assert self.process is not None
        code = self.process.wait(timeout_s * PATIENCE)
        if self._reader is not None:
            self._reader.join(timeout_s * PATIENCE)
        return code

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ask(self, resource: str) -> Any:
        """What the running node's API answers to GET, for example ``status``."""
        with ThreadPoolExecutor(1) as executor:  # of its own: a thread that has entered a namespace stays there
            return executor.submit(self._ask, f"api/v1/{resource}").result()

    def _ask(self, path: str) -> Any:
        if self.namespace:
            _enter_namespace(self.namespace)
        return ask(self.folder / "endpoint.json", "GET", path)

    def points(self) -> list[str]:
        """Names of the journalled points, oldest first."""
        with sqlite3.connect(f"file:{self.folder / 'journal.sqlite'}?mode=ro", uri=True) as connection:
            try:
                return [row[0] for row in connection.execute("SELECT point FROM events ORDER BY id")]
            except sqlite3.OperationalError:  # the node has only just begun its journal
                return []

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.wait_for_exit(20)

    def stop(self) -> int:
        """SIGTERM and wait for the end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait_for_exit(30)


def eventually(what: str, found: Callable[[], Any], timeout_s: float) -> Any:
    """Poll what has no event, such as the process table, until it is truthy; returns it."""
    deadline_s = time.monotonic() + timeout_s * PATIENCE
    while not (result := found()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s * PATIENCE} s: {what}"
        time.sleep(0.05)
    return result


def rounds(events: list[Event]) -> list[Event]:
    """The committed rounds among events."""
    return [event for event in events if event.get("event") == "round"]


def hashes_by_round(nodes: list[Node]) -> dict[int, set[str]]:
    """State hashes that the nodes reported, by round."""
    hashes: dict[int, set[str]] = {}
    for node in nodes:
        for event in rounds(node.events):
            hashes.setdefault(event["round"], set()).add(event["state_hash"])
    return hashes


def journalled_commits(node: Node) -> list[Commit]:
    with sqlite3.connect(f"file:{node.folder / 'journal.sqlite'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT record FROM rounds ORDER BY round").fetchall()
    return [Commit.model_validate_json(row[0]) for row in rows]


@contextmanager
def swarm(
    folder: Path,
    num_nodes: int,
    *,
    num_rounds: int,
    settings: tuple[str, ...] = (),
    isolate: bool = False,
    num_founders: int | None = None,
    edit: Callable[[str], str] = lambda text: text,
) -> Iterator[list[Node]]:
    """Prepared, not yet started nodes of one signed run; every process is ended when the block is left.

    ``num_founders`` nodes (default all) are in the genesis roster, the others join later. ``settings`` are
    ``section.key=value`` of the spec, ``edit`` changes the unsigned text.
    """
    with namespaces(num_nodes) if isolate else _no_namespaces(num_nodes) as names:
        nodes = [
            Node(
                name=f"node-{index}",
                folder=folder / f"node-{index}",
                host=f"10.77.0.{index + 1}" if name else "127.0.0.1",
                port=4001 if name else free_port(),
                namespace=name or None,
            )
            for index, name in enumerate(names)
        ]
        for node in nodes:
            node.create_identity()
        _write_spec(folder, nodes, nodes[: num_founders or num_nodes], num_rounds, settings, edit)
        try:
            yield nodes
        finally:
            _end_all(nodes)


@contextmanager
def _no_namespaces(num_nodes: int) -> Iterator[list[str]]:
    yield [""] * num_nodes


def _write_spec(
    folder: Path,
    nodes: list[Node],
    founders: list[Node],
    num_rounds: int,
    settings: tuple[str, ...],
    edit: Callable[[str], str],
) -> None:
    spec_path = folder / "run.toml"
    newcomers = json.dumps([node.peer_id for node in nodes if node not in founders])
    settings = (*settings, f"membership.allowed={newcomers}")
    roster = [argument for node in founders for argument in ("--roster", node.peer_id)]
    choices = [argument for setting in settings for argument in ("--set", setting)]
    run_atoll(
        *("run", "new", str(spec_path), "--name", "test", "--rounds", str(num_rounds), *roster),
        *("--seed", nodes[0].address, *choices),
    )
    spec_path.write_text(edit(spec_path.read_text()))
    run_atoll("run", "sign", str(spec_path), "--folder", str(folder / "operator"))
    for node in nodes:
        shutil.copy(spec_path, node.spec_path)


def _end_all(nodes: list[Node]) -> None:
    running = [node for node in nodes if node.process is not None and node.process.poll() is None]
    for node in running:
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
    for node in running:
        assert node.process is not None
        try:
            node.process.wait(20)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait(20)
