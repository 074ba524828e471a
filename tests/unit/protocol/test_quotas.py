"""What one peer may take of a node: each quota under a flood, and what the others keep."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from atoll.kernels.codec import codec
from atoll.protocol import quotas
from atoll.protocol.attestations import MAX_SENDERS, Attestations
from atoll.protocol.chunks import ChunkGrid, span_digest
from atoll.protocol.early import EarlyMessages
from atoll.protocol.event_queue import EventQueue
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Attest, Prepare
from atoll.protocol.quotas import GUARANTEED_BYTES, Meter, Shares
from atoll.protocol.record import Plan, Record, Span, SpanResult
from atoll.protocol.results import ResultStore
from atoll.protocol.round_machine import Received
from atoll.protocol.transport import MAX_COUNTED_PEERS, MAX_MESSAGE_BYTES, Traffic

GRID = ChunkGrid(4096, 4096, codec("int8"))
ZERO = "00" * 32
PREPARE = Prepare(fragment=0, round=2, ballot=1)


def peer(number: int) -> PeerId:
    return PeerId(f"peer {number}")


class FakeTime:
    """Sleeping passes time, and nothing else does."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_peer_has_no_more_than_its_share():
    shares = Shares(per_peer=100, total=1000)
    assert shares.take(peer(1), 60)
    assert not shares.take(peer(1), 60)
    shares.give_back(peer(1), 60)
    assert shares.take(peer(1), 100)


def test_a_total_that_others_have_taken_leaves_everybody_the_guaranteed_bytes():
    shares = Shares(per_peer=1 << 20, total=1 << 20)
    assert shares.take(peer(1), 1 << 20)
    assert not shares.take(peer(2), GUARANTEED_BYTES + 1)
    assert shares.take(peer(2), GUARANTEED_BYTES)


def test_refused_peers_leave_nothing_behind():
    shares = Shares(per_peer=10, total=10)
    for number in range(1000):
        assert not shares.take(peer(number), 11)
    assert not shares.of


def test_what_waits_of_a_thousand_flooding_peers_is_bounded():
    queue: EventQueue[object] = EventQueue(lambda: 0.0)
    raw = bytes(MAX_MESSAGE_BYTES)
    for number in range(1000):
        for _ in range(9):
            queue.put_message(Received(peer(number), PREPARE, raw))
    assert max(queue.queued_bytes.values()) <= quotas.WAITING_BYTES_PER_PEER
    assert sum(queue.queued_bytes.values()) <= quotas.WAITING_BYTES + 1000 * GUARANTEED_BYTES
    queue.put_message(Received(peer(5000), PREPARE, b"x"))
    assert queue.queued_bytes[peer(5000)], "who has sent little is still heard"


def test_messages_for_the_next_round_are_bounded_by_peer_and_together():
    early, kinds = EarlyMessages(), [PREPARE.model_copy(update={"kind": f"kind {i}"}) for i in range(13)]
    for number in range(200):
        for body in kinds:
            early.keep(Received(peer(number), body, bytes(MAX_MESSAGE_BYTES)))
    kept = early.take_all()
    assert sum(len(message.raw) for message in kept) <= quotas.EARLY_BYTES
    of_first = sum(len(message.raw) for message in kept if message.sender == peer(0))
    assert 0 < of_first <= quotas.EARLY_BYTES_PER_PEER
    assert early.take_all() == ()


def test_of_a_kind_the_newest_early_message_counts():
    early = EarlyMessages()
    for text in (b"first", b"second"):
        early.keep(Received(peer(1), PREPARE, text))
    assert [message.raw for message in early.take_all()] == [b"second"]


def test_attestations_of_strangers_take_no_members_place():
    attestations, attest = Attestations(), Attest(round=1, record=ZERO, state_hash=ZERO)
    for number in range(MAX_SENDERS + 500):
        attestations.add(peer(number), attest, b"raw", 1)
    member = PeerId("member")
    attestations.add(member, attest, b"raw", 1, roster=(member,))
    found = attestations.envelopes(1)
    assert len(found) == MAX_SENDERS + 1
    assert member in found


def test_a_million_identities_cost_the_traffic_counters_no_memory():
    traffic = Traffic()
    tracemalloc.start()
    try:
        for number in range(100_000):
            traffic.count_received(peer(number), 10)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(traffic.received_from) == MAX_COUNTED_PEERS
    assert traffic.received_bytes == 1_000_000, "the sum is of all"
    assert peak_bytes < 4 << 20


# --- bytes per second -------------------------------------------------------------------------------------------------


async def test_over_any_longer_time_a_peer_gets_its_rate_whatever_it_opens():
    time = FakeTime()
    meter = Meter(1000.0, time, time.sleep)
    for _ in range(100):
        await meter.spend(peer(1), 1000)
    assert time.now_s == pytest.approx(100 - quotas.SERVED_SECONDS_AT_ONCE)


async def test_a_slowed_peer_slows_nobody_else():
    time = FakeTime()
    meter = Meter(1000.0, time, time.sleep)
    await meter.spend(peer(1), 100_000)
    before_s = time.now_s
    await meter.spend(peer(2), 4000)
    assert time.now_s == before_s


async def test_the_meters_memory_is_bounded():
    meter = Meter(1000.0, lambda: 0.0)
    for number in range(3 * quotas.MAX_METERED_PEERS):
        await meter.spend(peer(number), 1)
    assert len(meter._buckets) == quotas.MAX_METERED_PEERS


# --- storage ----------------------------------------------------------------------------------------------------------


def test_a_flood_of_plans_takes_the_disk_space_of_a_few(tmp_path: Path):
    store = ResultStore(tmp_path, GRID)
    for number in range(100):
        store.open(1, f"{number:064x}")
    used_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.mean"))
    assert used_bytes == quotas.ATTEMPTS_KEPT * GRID.total_encoded


def test_what_was_voted_for_outlives_any_flood_of_plans(tmp_path: Path):
    store = ResultStore(tmp_path, GRID)
    plan, result = plan_of(ballot=0), bytes(GRID.total_encoded)
    record = Record(plan=plan, results=(result_of(plan, result),))
    assert not store.keep(record), "nobody votes for what is not here"
    buffer = store.attempt(plan)
    buffer.write_chunk(0, result)
    buffer.hold(plan.spans[0], record.results[0].digest)
    assert store.keep(record)
    for ballot in range(1, 50):
        store.attempt(plan_of(ballot))
    assert store.missing(record) == []
    assert bytes(store.mean(record)) == result


def plan_of(ballot: int) -> Plan:
    me = Identity.from_seed(b"q" * 32).peer_id
    return Plan(
        lineage=0,
        fragment=0,
        round=1,
        ballot=ballot,
        leader=me,
        parent=ZERO,
        parent_state=ZERO,
        members=(),
        spans=(Span(first_chunk=0, num_chunks=1, owner=me),),
        roster=(me,),
        next_roster=(me,),
        data_cursor=0,
        rules=ZERO,
        attempt_timeout_s=1.0,
    )


def result_of(plan: Plan, encoded: bytes) -> SpanResult:
    return SpanResult(plan=plan.content_id(), span=0, included=(), digest=span_digest(GRID, plan.spans[0], encoded))
