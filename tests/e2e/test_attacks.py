"""Real nodes against an admitted peer that floods and lies, against stopped processes, and against a copied folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from atoll.node.demo import free_port
from atoll.protocol import envelope
from atoll.protocol.envelope import Header
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Attest, CommitRequest, Heartbeat, Message, Prepare
from atoll.protocol.spec import SignedGenesis
from atoll.protocol.swarm import Swarm, SwarmSettings
from atoll.protocol.transport import PeerUnreachable, StreamClosed

from .lab import Node, hashes_by_round, rounds, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "inner.num_steps=4",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=3.0",
    "timing.progress_timeout_s=3.0",
    "timing.ready_grace_s=10.0",
    "timing.attempt_timeout_s=10.0",
)
DEADLINE_S = 120
ZERO = "0" * 64


def head(nodes: list[Node]) -> int:
    return max((event["round"] for node in nodes for event in rounds(node.events)), default=0)


def go_on(nodes: list[Node], num_rounds: int, what: str) -> None:
    """Every node commits ``num_rounds`` more than anybody has now."""
    goal = head(nodes) + num_rounds
    for node in nodes:
        node.wait_for(
            f"round {goal} {what}", lambda events: [e for e in rounds(events) if e["round"] >= goal], DEADLINE_S
        )


def assert_equal_hashes(nodes: list[Node]) -> None:
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"


class Attacker:
    """A peer that the run admits, with a real p2pd and no manners."""

    def __init__(self, node: Node, victims: list[Node]) -> None:
        self.identity = Identity.load(node.folder / "identity.key")
        self.genesis = SignedGenesis.load(node.spec_path).genesis
        self.victims, self.folder = victims, node.folder
        self.sequence = int(time.time() * 1e6)
        self.num_said = self.num_streams = 0

    def seal(self, body: Message) -> bytes:
        self.sequence += 1
        header = Header(
            run_id=self.genesis.run_id,
            lineage=0,
            sender=self.identity.peer_id,
            sequence=self.sequence,
            expires_unix_s=time.time() + 600,
        )
        return envelope.seal(self.identity, header, body)

    def lies(self) -> Iterator[bytes]:
        yield self.seal(
            Heartbeat(
                round=2**40,
                state_hash=ZERO,
                phase="training",
                name="\x1b[2J\x1b]0;owned\x07{0}{peer}",
                tokens_per_s=1e12,
                addresses=("/ip4/127.0.0.1/tcp/22", "/ip4/169.254.169.254/tcp/80", "--help", "\x1b[31m"),
            )
        )
        yield self.seal(Attest(round=2**40, record=ZERO, state_hash=ZERO))
        for ballot in range(50):
            yield self.seal(CommitRequest(fragment=0, round=1))
            yield self.seal(Prepare(fragment=0, round=1, ballot=ballot))
        yield b"\xff" * (1 << 20)
        yield b"[" * 500_000

    async def attack(self, duration_s: float) -> None:
        settings = SwarmSettings(
            identity_path=self.folder / "identity.key",
            run_id=self.genesis.run_id,
            listen=("/ip4/127.0.0.1/tcp/0",),
            seeds=tuple(node.address for node in self.victims),
            runtime_folder=self.folder,
        )
        own = await Swarm.start(settings)
        try:
            async with asyncio.timeout(duration_s):
                await asyncio.gather(*(self._bother(own, node) for node in self.victims))
        except TimeoutError:
            pass
        finally:
            await own.stop()

    async def _bother(self, own: Swarm, victim: Node) -> None:
        async def talk() -> None:
            while True:
                for lie in self.lies():
                    with contextlib.suppress(PeerUnreachable):
                        await own.transport.send(victim.peer_id, lie)  # type: ignore[arg-type]
                        self.num_said += 1
                    await asyncio.sleep(0)

        async def hold_streams(protocol: str) -> None:
            while True:
                with contextlib.suppress(PeerUnreachable, StreamClosed):
                    stream = await own.transport.open(victim.peer_id, protocol)  # type: ignore[arg-type]
                    self.num_streams += 1
                    await stream.write(b"\x80\x04garbage")
                    await stream.read(1 << 20)
                await asyncio.sleep(0.05)

        streams = [hold_streams(protocol) for protocol in ("span", "state", "result", "nonsense") for _ in range(10)]
        await asyncio.gather(talk(), *streams)


async def probe(nodes: list[Node], done: asyncio.Event) -> float:
    """The slowest answer of any node's dashboard until ``done``."""
    urls = [next(e["url"] for e in node.events if e.get("event") == "dashboard") for node in nodes]
    slowest_s = 0.0

    def ask(url: str) -> float:
        began_s = time.monotonic()
        with urllib.request.urlopen(f"{url}api/v1/status", timeout=30) as answer:
            json.load(answer)
        return time.monotonic() - began_s

    while not done.is_set():
        slowest_s = max(slowest_s, *await asyncio.gather(*(asyncio.to_thread(ask, url) for url in urls)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 0.25)
    return slowest_s


def rss_mib(node: Node) -> float:
    assert node.process is not None
    return psutil.Process(node.process.pid).memory_info().rss / 2**20


async def attack_and_probe(attacker: Attacker, nodes: list[Node], duration_s: float) -> float:
    done = asyncio.Event()
    probing = asyncio.create_task(probe(nodes, done))
    await attacker.attack(duration_s)
    done.set()
    return await probing


@pytest.mark.timeout(420)
def test_a_swarm_lives_through_floods_stops_copies_and_a_restart_of_all(tmp_path: Path) -> None:
    with swarm(tmp_path, 4, num_rounds=0, settings=SETTINGS, num_founders=3) as nodes:
        founders = nodes[:3]
        for node in founders:
            node.start()
        go_on(founders, 2, "at first")
        withstand_an_attacker(Attacker(nodes[3], founders), founders)
        refuse_a_copy_of_a_running_node(tmp_path, founders[2])
        go_on_without_a_stopped_process(founders)
        all_at_once(founders)
        assert_equal_hashes(founders)


def withstand_an_attacker(attacker: Attacker, nodes: list[Node]) -> None:
    before, memory = head(nodes), [rss_mib(node) for node in nodes]
    num_events = [len(node.events) for node in nodes]
    slowest_s = asyncio.run(attack_and_probe(attacker, nodes, 15.0))
    assert attacker.num_said > 100
    assert attacker.num_streams > 40
    assert head(nodes) >= before + 1, "rounds went on during the attack"
    assert slowest_s < 3.0, f"the dashboard took {slowest_s:.1f} s"
    for node, rss, num_before in zip(nodes, memory, num_events, strict=True):
        assert rss_mib(node) < rss + 200, f"{node.name} grew from {rss:.0f} to {rss_mib(node):.0f} MiB"
        log = (node.folder / "stderr.log").read_bytes()
        assert b"\x1b" not in log
        assert len(log) < 300_000
        known = (node.folder / "peers.json").read_text()
        assert "--help" not in known
        assert not [e for e in node.events[num_before:] if e.get("state") == "syncing"], "nobody believed it"
    go_on(nodes, 1, "after the attack")


def refuse_a_copy_of_a_running_node(folder: Path, node: Node) -> None:
    """IDN-01: the copy refuses to start; the node that runs is not disturbed."""
    ignored = shutil.ignore_patterns("lock", "atoll-*", "*.sock")
    shutil.copytree(node.folder, folder / "copy", ignore=ignored, copy_function=copy_if_there)
    copy = Node(name="copy", folder=folder / "copy", host="127.0.0.1", port=free_port(), peer_id=node.peer_id)
    (copy.folder / "stderr.log").unlink()
    copy.start()
    assert copy.wait_for_exit(60) not in (0, -9)
    assert "identity" in copy.log_tail()
    assert "Traceback" not in copy.log_tail(100)
    go_on([node], 1, "beside its copy")


def copy_if_there(source: str, target: str) -> None:
    """The node that runs replaces its checkpoints meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def go_on_without_a_stopped_process(nodes: list[Node]) -> None:
    """A leader or owner among them, sooner or later: rounds go on, and the one that was stopped comes back."""
    stopped, others = nodes[1], [nodes[0], nodes[2]]
    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        go_on(others, 3, "without a stopped node")
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    go_on(nodes, 1, "with the node that was stopped")


def all_at_once(nodes: list[Node]) -> None:
    for node in nodes:
        assert node.process is not None
        node.process.kill()
    for node in nodes:
        node.wait_for_exit(20)
    for node in nodes:
        node.start()
    go_on(nodes, 2, "after everybody was killed at once")


@pytest.mark.skipif(not os.environ.get("ATOLL_LONG_ATTACKS"), reason="half a minute; set ATOLL_LONG_ATTACKS=1")
@pytest.mark.timeout(240)
def test_the_last_round_reaches_a_node_that_stalls_when_the_run_ends(tmp_path: Path) -> None:
    with swarm(tmp_path, 3, num_rounds=3, settings=SETTINGS) as nodes:
        for node in nodes:
            node.start()
        go_on(nodes, 2, "at first")
        stalled, others = nodes[2], nodes[:2]
        assert stalled.process is not None
        stalled.process.send_signal(signal.SIGSTOP)
        try:
            for node in others:
                node.wait_for_round(3, DEADLINE_S)
        finally:
            stalled.process.send_signal(signal.SIGCONT)
        stalled.wait_for_round(3, DEADLINE_S)
        assert [node.wait_for_exit(60) for node in nodes] == [0, 0, 0]
        assert_equal_hashes(nodes)
