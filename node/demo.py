"""`atoll demo`: a swarm of real nodes on this machine, each a process with a folder and a key of its own.

The parent writes a throw-away signed run, starts one `atoll join` per node and reads what they report, one JSON line
per event. It shares nothing else with them. The folder with everything in it is removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..protocol.identity import Identity
from ..protocol.spec import sign_text
from .run_spec import new_run_text

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
    """What the nodes said about one round, complete when everyone has spoken."""

    round: int
    by_node: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def line(self) -> dict[str, Any]:
        """The JSON line that `--json` prints."""
        reports = self.by_node
        losses = [report["validation_loss"] for report in reports.values() if report["validation_loss"] is not None]
        return {
            "round": self.round,
            "loss": {name: report["loss"] for name, report in reports.items()},
            "validation_loss": losses[0] if losses else None,
            "state_hash": {name: report["state_hash"] for name, report in reports.items()},
            "bytes_sent": {name: report["bytes_sent"] for name, report in reports.items()},
            "seconds": max(report["seconds"] for report in reports.values()),
            "participants": sorted({name for report in reports.values() for name in report["participants"]}),
            "hashes_equal": self.hashes_equal,
        }

    @property
    def hashes_equal(self) -> bool:
        return len({report["state_hash"] for report in self.by_node.values()}) == 1


Observer = Callable[[str, dict[str, Any]], None]
"""Called with a node's name and each event that it reports."""


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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

    def __init__(self, spec_path: Path, nodes: list[DemoNode]) -> None:
        self._spec_path = spec_path
        self.nodes = nodes
        self._children: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> DemoSwarm:
        for node in self.nodes:
            with (node.folder / "node.log").open("wb") as log:
                self._children[node.name] = await asyncio.create_subprocess_exec(
                    *_command(node, self._spec_path),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "ATOLL_PARENT_PID": str(os.getpid())},
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the children in order
                )
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children.values():
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
        await asyncio.gather(*(self._reap(child) for child in self._children.values()))

    async def _reap(self, child: asyncio.subprocess.Process) -> None:
        try:
            await asyncio.wait_for(child.communicate(), _STOP_GRACE_S)
        except TimeoutError:
            child.kill()
            await child.wait()

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Every event of every node in order of arrival. Raises `DemoFailed` when a node ends with an error."""
        queue: asyncio.Queue[tuple[str, dict[str, Any] | None]] = asyncio.Queue()
        readers = [asyncio.create_task(self._read(name, queue)) for name in self._children]
        num_open = len(readers)
        try:
            while num_open:
                name, event = await queue.get()
                if event is None:
                    num_open -= 1
                    await self._check_exit(name)
                else:
                    yield name, event
        finally:
            for reader in readers:
                reader.cancel()

    async def _read(self, name: str, queue: asyncio.Queue[tuple[str, dict[str, Any] | None]]) -> None:
        stdout = self._children[name].stdout
        while stdout is not None and (line := await stdout.readline()):
            with contextlib.suppress(json.JSONDecodeError):
                queue.put_nowait((name, json.loads(line)))
        queue.put_nowait((name, None))

    async def _check_exit(self, name: str) -> None:
        code = await self._children[name].wait()
        if code != 0:
            node = next(node for node in self.nodes if node.name == name)
            lines = (node.folder / "node.log").read_text(errors="replace").strip().splitlines()
            raise DemoFailed(f"{name} ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}")


async def collect_rounds(swarm: DemoSwarm, num_rounds: int, observe: Observer) -> AsyncIterator[RoundReport]:
    """Yield each round once every node has reported it, in order, until ``num_rounds`` are complete."""
    pending: dict[int, RoundReport] = {}
    num_complete = 0
    async for name, event in swarm.events():
        observe(name, event)
        if event.get("event") != "round":
            continue
        report = pending.setdefault(event["round"], RoundReport(event["round"]))
        report.by_node[name] = event
        if len(report.by_node) == len(swarm.nodes):
            num_complete += 1
            yield pending.pop(event["round"])
            if num_complete == num_rounds:
                return


async def _headless(swarm: DemoSwarm, num_rounds: int) -> int:
    num_good = 0
    async for report in collect_rounds(swarm, num_rounds, lambda _name, _event: None):
        print(json.dumps(report.line(), allow_nan=False), flush=True)
        num_good += report.hashes_equal
    return 0 if num_good == num_rounds else 1


async def _run(num_nodes: int, num_rounds: int, drive: Callable[[DemoSwarm, int], Awaitable[int]]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="atoll-demo-"))
    loop, this_task = asyncio.get_running_loop(), asyncio.current_task()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        if this_task is not None:
            loop.add_signal_handler(signal_number, this_task.cancel)
    try:
        spec_path, nodes = prepare(folder, num_nodes, num_rounds)
        async with DemoSwarm(spec_path, nodes) as swarm:
            return await drive(swarm, num_rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_demo(num_nodes: int, num_rounds: int, *, json_lines: bool) -> int:
    """Run the demo to its end and return the exit code: 0 only if every round committed with equal hashes.

    Ctrl-C or SIGTERM ends all nodes and returns 130. A node that fails prints one line on standard error, returns 1.
    """
    from .demo_view import watch

    try:
        return asyncio.run(_run(num_nodes, num_rounds, _headless if json_lines else watch))
    except asyncio.CancelledError:
        return 130
    except DemoFailed as failure:
        print(f"atoll: demo: {failure}", file=sys.stderr)
        return 1
