"""Floods of questions and bombs against whole drivers and donors: what they cost in memory, time and answers."""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.protocol import quotas
from atoll.protocol.doorkeeper import Doorkeeper
from atoll.protocol.envelope import DOMAIN, InvalidMessage
from atoll.protocol.gate import Gate
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Heartbeat
from atoll.protocol.outcomes import Committed
from atoll.protocol.standing import Standing
from atoll.protocol.state_sync import StateServer
from atoll.protocol.state_sync.wire import LeafRequest, ManifestRequest
from atoll.protocol.transport import MAX_MESSAGE_BYTES, ByteStream, RemoteProtocolError, StreamClosed

from .test_attacks_on_drivers import ZERO, Attacker, rejections, swarm
from .test_round_driver import PEOPLE, Swarm, contribute_all, genesis_of

__all__ = ["swarm"]
MIB = 1 << 20


async def read_to_the_end(stream: ByteStream) -> None:
    while True:
        await stream.read(MIB)


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


async def test_a_flood_of_json_bombs_costs_a_node_little_time_and_no_memory(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    attacker, victim = Attacker(swarm), PEOPLE[0].peer_id
    item = b'{"kind":"span_done","result":{"included":[' + b"0," * ((MAX_MESSAGE_BYTES - 200) // 2) + b"0]}}"
    bomb = attacker.identity.sign(DOMAIN + item) + item
    before_bytes, before_s = resident_bytes(), time.process_time()
    for _ in range(100):
        await attacker.transport.send(victim, bomb)
    await swarm.network.settle()
    used_s = time.process_time() - before_s
    assert resident_bytes() - before_bytes < 64 * MIB
    assert used_s < 5.0, "a look at the length and the separators of each; parsed they take half a minute"
    assert all(isinstance(outcome, Committed) for outcome in await contribute_all(swarm, PEOPLE[:3]))


@pytest.mark.parametrize("item", [b"0", b"{}", b'""'])
async def test_a_list_of_thousands_of_faults_costs_as_much_as_one(swarm: Swarm, item: bytes):
    """Fewer values than an honest record may have: only that the first fault is the last keeps this cheap."""
    node = await swarm.start(PEOPLE[0])
    attacker = Attacker(swarm)
    before_bytes, before_s = resident_bytes(), time.process_time()
    for _ in range(20):
        honest = attacker.seal(Heartbeat(round=0, state_hash=ZERO, phase="training"))[64:]
        bomb = honest.replace(b'"echoes":[]', b'"echoes":[' + (item + b",") * 60_000 + item + b"]")
        await attacker.transport.send(PEOPLE[0].peer_id, attacker.identity.sign(DOMAIN + bomb) + bomb)
    await swarm.network.settle()
    assert time.process_time() - before_s < 4.0, "a third of a second for each fault of thousands"
    assert resident_bytes() - before_bytes < 64 * MIB
    assert rejections(node) == [(PEOPLE[4].peer_id, "message")] * len(rejections(node)) != []


async def test_padded_messages_are_not_kept_as_evidence(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    attacker = Attacker(swarm)
    honest = attacker.seal(Heartbeat(round=0, state_hash=ZERO, phase="training"))[64:]
    for padded in (
        honest.replace(b'"body"', b" " * 100_000 + b'"body"'),
        honest.replace(b'"name":""', b'"name":"first","name":""'),
        json.dumps(json.loads(honest)).encode(),
        honest[:-1] + b',"more":1}',
    ):
        raw = attacker.identity.sign(DOMAIN + padded) + padded
        with pytest.raises(InvalidMessage, match="canonical"):
            node.driver._mail.open(attacker.identity.peer_id, raw)


async def test_sec_02_a_pickle_on_any_stream_ends_it_and_runs_nothing(swarm: Swarm, tmp_path: Path):
    proof = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return (open, (str(proof), "w"))

    node = await swarm.start(PEOPLE[0])
    StateServer(node.driver.transport, SimpleNamespace(), node.driver.executor)
    attacker = Attacker(swarm)
    for protocol in ("span", "result", "state"):
        stream = await attacker.transport.open(PEOPLE[0].peer_id, protocol)
        await stream.write(pickle.dumps(Bomb()))
        with pytest.raises(StreamClosed):
            await read_to_the_end(stream)
    assert not proof.exists()


# --- questions on streams ---------------------------------------------------------------------------------------------


class Donor:
    """A state server behind its gate, with 1 MiB of state, and peers that the run admits."""

    def __init__(self, executor: ThreadPoolExecutor, served_bytes_per_s: float) -> None:
        limits = {"limits": {"served_bytes_per_s": served_bytes_per_s}}
        base = genesis_of(PEOPLE[:1], allowed=tuple(person.peer_id for person in PEOPLE[1:]))
        genesis = base.model_copy(update={"limits": base.limits.model_copy(update=limits["limits"])})
        self.network = MemoryNetwork(progress_timeout_s=5.0)
        self.num_answers = 0
        self.refused: list[RemoteProtocolError] = []
        source = SimpleNamespace(
            head_round=0, manifest=lambda: None, archived=lambda _: None, read_leaf=lambda _: bytes(MIB)
        )
        self.transports = [self.network.transport(person) for person in PEOPLE]
        doorkeeper = Doorkeeper(genesis, lambda: Standing.of_genesis(genesis), time.time)
        gate = Gate(self.transports[0], genesis, time.monotonic, self.refused.append, doorkeeper)
        StateServer(gate, source, executor)  # type: ignore[arg-type]

    async def ask(self, who: int, question: bytes, num_times: int, answer_bytes: int) -> int:
        """Bytes that come back within the questions asked; ends when the stream is quiet for a moment."""
        stream = await self.transports[who].open(PEOPLE[0].peer_id, "state")
        num_bytes = 0
        for _ in range(num_times):
            await stream.write(question)
            num_bytes += len(await stream.read(1))
            self.num_answers += 1
            received = 0
            while received < answer_bytes:
                received += len(await stream.read(MIB))
            num_bytes += received
        return num_bytes


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


LEAF = LeafRequest(digest=ZERO).canonical()


async def test_a_peer_that_downloads_for_ever_gets_its_rate_and_the_others_theirs(executor: ThreadPoolExecutor):
    rate = 4.0 * MIB
    donor = Donor(executor, rate)
    num_at_once = int(rate * quotas.SERVED_SECONDS_AT_ONCE / MIB)
    greedy = [asyncio.create_task(donor.ask(1, LEAF, 50, MIB)) for _ in range(4)]
    start_s = time.monotonic()
    assert await donor.ask(2, LEAF, 4, MIB) >= 4 * MIB
    assert time.monotonic() - start_s < 10.0, "the modest peer does not wait for the greedy one"
    await asyncio.sleep(0.5)
    elapsed_s = time.monotonic() - start_s
    sent_bytes = donor.transports[0].traffic.sent_to[PEOPLE[1].peer_id]
    assert sent_bytes <= (num_at_once + 8) * MIB + rate * elapsed_s
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
    await donor.network.close()


async def test_questions_without_answers_cost_too(executor: ThreadPoolExecutor):
    donor = Donor(executor, 65_536.0 * 4)  # four questions a second, sixteen at once
    task = asyncio.create_task(donor.ask(1, ManifestRequest().canonical(), 1000, 0))
    await asyncio.sleep(1.0)
    assert not task.done()
    assert 16 <= donor.num_answers <= 30, "sixteen at once, then four a second"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await donor.network.close()


async def test_readers_that_never_read_hold_up_nobody(executor: ThreadPoolExecutor):
    donor = Donor(executor, 1e9)
    stuck = []
    for who in (1, 2, 3):
        for _ in range(quotas.STATE_STREAMS_PER_PEER):
            stream = await donor.transports[who].open(PEOPLE[0].peer_id, "state")
            await stream.write(LEAF)
            stuck.append(stream)
    async with asyncio.timeout(4.0):
        assert await donor.ask(4, LEAF, 2, MIB) >= 2 * MIB
    await donor.network.close()


async def test_strangers_in_the_directory_do_not_enter_the_table_of_peers(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    stranger = Attacker(swarm, PEOPLE[5].from_seed(b"z" * 32))
    record = stranger.seal(Heartbeat(round=2**40, state_hash=ZERO, phase="training"))
    node.driver._heartbeats._note(record)
    assert stranger.identity.peer_id not in node.driver.peers
    assert not rejections(node)
