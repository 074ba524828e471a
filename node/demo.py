"""`atoll demo`: a swarm of real nodes on this machine, each a process with a folder and a key of its own.

The parent writes a throw-away signed run, starts one `atoll join` per node and reads what they report, one JSON line
per event. It shares nothing else with them. The folder with everything in it is removed at the end, whatever ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..protocol.folder_guard import FolderGuard
from ..protocol.identity import Identity
from .run_spec import new_run_text, sign_text

_STOP_GRACE_S = 15.0


class DemoFailed(RuntimeError):
    """The demo cannot go on; the message is one line with what happened and where the log is."""


@dataclass(frozen=True)
class DemoNode:
    """One child: where it lives and listens."""

    index: int
    name: str
    peer_id: str
    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.peer_id}"


@dataclass
class RoundReport:
    """What the nodes said about one round."""

    round: int
    by_node: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    validation_loss: float | None = None
    """Of the committed state, from whichever node evaluated it."""

    def line(self) -> dict[str, Any]:
        """The JSON line that `--json` prints."""
        reports = dict(sorted(self.by_node.items()))
        return {
            "round": self.round,
            "loss": {name: report["loss"] for name, report in reports.items()},
            "validation_loss": self.validation_loss,
            "state_hash": {name: report["state_hash"] for name, report in reports.items()},
            "bytes_sent": {name: report["bytes_sent"] for name, report in reports.items()},
            "seconds": max(report["seconds"] for report in reports.values()),
            "participants": sorted({name for report in reports.values() for name in report["participants"]}),
            "hashes_equal": self.hashes_equal,
        }

    @property
    def hashes_equal(self) -> bool:
        return len({report["state_hash"] for report in self.by_node.values()}) == 1


class RoundCollector:
    """Puts the nodes' reports together. A round is complete once every node has applied it and one has evaluated it,
    or, should the evaluation never come, once every node has applied the next one. Pure."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._reports: dict[int, RoundReport] = {}
        self._next = 1

    def add(self, name: str, event: dict[str, Any]) -> list[RoundReport]:
        """Note an event; returns the rounds that it completes, in order."""
        report = self._reports.setdefault(event["round"], RoundReport(event["round"]))
        if event["event"] == "evaluation":
            report.validation_loss = event["validation_loss"]
        else:
            report.by_node[name] = event
        complete: list[RoundReport] = []
        while self._is_complete(self._next):
            complete.append(self._reports.pop(self._next))
            self._next += 1
        return complete

    def _is_complete(self, number: int) -> bool:
        report = self._reports.get(number)
        if report is None or not self._is_applied(number):
            return False
        return report.validation_loss is not None or self._is_applied(number + 1)

    def _is_applied(self, number: int) -> bool:
        return number in self._reports and len(self._reports[number].by_node) == self._num_nodes


Observer = Callable[[str, dict[str, Any]], None]
"""Called with a node's name and each event that it reports."""


def free_port() -> int:
    """A TCP port on loopback that is free, below the range that the system gives to outgoing connections."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise DemoFailed("no free port between 20000 and 32000")


def prepare(folder: Path, num_nodes: int, num_rounds: int) -> tuple[Path, list[DemoNode]]:
    """Write one key and folder per node and a signed run whose first roster they are."""
    nodes: list[DemoNode] = []
    for index in range(num_nodes):
        node_folder = folder / f"node-{index}"
        identity = Identity.create(node_folder / "identity.key")
        nodes.append(DemoNode(index, f"node-{index}", identity.peer_id, node_folder, free_port()))
    text = new_run_text(
        name="demo",
        num_rounds=num_rounds,
        roster=[node.peer_id for node in nodes],
        seeds=[nodes[0].address],
    )
    spec_path = folder / "run.toml"
    spec_path.write_text(sign_text(text, Identity.create(folder / "operator.key")))
    return spec_path, nodes


def _command(node: DemoNode, spec_path: Path) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "atoll.node.cli", "join", str(spec_path)),
        *("--folder", str(node.folder), "--name", node.name, "--port", str(node.port)),
        *("--host", "127.0.0.1", "--dashboard-port", "0", "--threads", "1", "--yes", "--json"),
    ]


class DemoSwarm:
    """The running children. Use as an async context manager: leaving it ends every child and waits for it."""

    def __init__(self, spec_path: Path, nodes: list[DemoNode], guard: FolderGuard) -> None:
        self._spec_path, self._guard = spec_path, guard
        self.nodes = nodes
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[tuple[str, dict[str, Any] | None]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # Ctrl-C while they start, too: what has started is ended
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        for node in self.nodes:
            with (node.folder / "node.log").open("wb") as log:
                child = await asyncio.create_subprocess_exec(
                    *_command(node, self._spec_path),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    pass_fds=(self._guard.descriptor,),
                    env={**os.environ, "ATOLL_PARENT_PID": str(os.getpid())},
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the children in order
                )
            self._children[node.name] = child
            self._readers.append(asyncio.create_task(self._read(node.name, child)))

    async def __aexit__(self, *_: object) -> None:
        for child in self._children.values():
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)  # not child.terminate(), which may take its exit code away
        await asyncio.gather(*(_reap(child) for child in self._children.values()))
        await asyncio.gather(*self._readers)

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Every event of every node in order of arrival. Raises `DemoFailed` when a node ends with an error."""
        num_open = len(self._children)
        while num_open:
            name, event = await self._events.get()
            if event is None:
                num_open -= 1
                await self._check_exit(name)
            else:
                yield name, event

    async def _read(self, name: str, child: asyncio.subprocess.Process) -> None:
        while child.stdout is not None and (line := await child.stdout.readline()):
            with contextlib.suppress(json.JSONDecodeError):
                self._events.put_nowait((name, json.loads(line)))
        self._events.put_nowait((name, None))

    async def _check_exit(self, name: str) -> None:
        code = await self._children[name].wait()
        if code != 0:
            node = next(node for node in self.nodes if node.name == name)
            lines = (node.folder / "node.log").read_text(errors="replace").strip().splitlines()
            raise DemoFailed(f"{name} ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}")


async def _reap(child: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(child.wait(), _STOP_GRACE_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        await child.wait()


async def collect_rounds(swarm: DemoSwarm, num_rounds: int, observe: Observer) -> AsyncIterator[RoundReport]:
    """Yield each round once every node has reported it, in order, until ``num_rounds`` are complete; 0: for ever."""
    collector = RoundCollector(len(swarm.nodes))
    async for name, event in swarm.events():
        observe(name, event)
        if event.get("event") in ("round", "evaluation"):
            for report in collector.add(name, event):
                yield report
                if report.round == num_rounds:
                    return


async def _headless(swarm: DemoSwarm, num_rounds: int) -> int:
    num_good = 0
    async for report in collect_rounds(swarm, num_rounds, lambda _name, _event: None):
        print(json.dumps(report.line(), allow_nan=False), flush=True)
        num_good += report.hashes_equal
    return 0 if num_good == num_rounds else 1


@contextlib.contextmanager
def _folder() -> Generator[tuple[Path, FolderGuard]]:
    """A folder for all that the demo makes, removed at the end, also when the demo is killed."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-demo-"))
    guard = FolderGuard(folder)
    try:
        yield folder, guard
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guard.dismiss()


def _cancel_on_signals() -> None:
    """The first Ctrl-C, SIGTERM or closed terminal cancels this task; an impatient second one disturbs nothing."""
    loop, this_task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if this_task is not None and not this_task.cancelling():
            this_task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel)


async def _run(num_nodes: int, num_rounds: int, drive: Callable[[DemoSwarm, int], Awaitable[int]]) -> int:
    _cancel_on_signals()
    with _folder() as (folder, guard):
        spec_path, nodes = prepare(folder, num_nodes, num_rounds)
        async with DemoSwarm(spec_path, nodes, guard) as swarm:
            return await drive(swarm, num_rounds)


def run_demo(num_nodes: int, num_rounds: int, *, json_lines: bool) -> int:
    """Run the demo to its end and return the exit code: 0 only if every round committed with equal hashes.

    ``num_rounds`` 0 goes on until Ctrl-C or SIGTERM, which end all nodes and return 130. A node that fails prints one
    line on standard error, returns 1.
    """
    from .demo_view import say_end, say_start, watch

    if not json_lines:
        say_start(num_nodes)
    try:
        return asyncio.run(_run(num_nodes, num_rounds, _headless if json_lines else watch))
    except asyncio.CancelledError:
        if not json_lines:
            say_end(num_nodes)
        return 130
    except DemoFailed as failure:
        print(f"atoll: demo: {failure}", file=sys.stderr)
        return 1
