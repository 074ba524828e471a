"""The in-memory network delivers, limits and fails as it is told to."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import (
    CorruptStream,
    CutStream,
    Die,
    Drop,
    MemoryNetwork,
    MemoryTransport,
    StallStream,
    Unreachable,
)
from atoll.protocol.transport import (
    MAX_MESSAGE_BYTES,
    ByteStream,
    PeerUnreachable,
    RemoteProtocolError,
    StreamClosed,
)

A, B, C = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3))


class Inbox(list[tuple[PeerId, bytes]]):
    async def __call__(self, peer: PeerId, message: bytes) -> None:
        self.append((peer, message))


class Echo:
    """Serves a stream by sending back what it reads, and remembers it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ended = asyncio.Event()

    async def __call__(self, stream: ByteStream) -> None:
        try:
            while True:
                frame = await stream.read(1 << 20)
                self.frames.append(frame)
                await stream.write(frame)
        finally:
            self.ended.set()


@pytest.fixture
async def network():
    network = MemoryNetwork(progress_timeout_s=0.05, window_bytes=1000)
    yield network
    await network.close()


def pair(network: MemoryNetwork) -> tuple[MemoryTransport, MemoryTransport]:
    return network.transport(A), network.transport(B)


async def test_messages_arrive_in_order_with_their_authenticated_sender(network):
    a, b = pair(network)
    inbox = Inbox()
    b.on_message(inbox)
    for text in (b"one", b"two", b"three"):
        await a.send(B, text)
    await network.settle()
    assert inbox == [(A, b"one"), (A, b"two"), (A, b"three")]
    assert a.traffic.sent_to[B] == b.traffic.received_from[A] == 11 + 3 * 4


async def test_a_failing_handler_does_not_stop_later_messages(network):
    a, b = pair(network)
    seen = []

    async def handler(peer, message):
        seen.append(message)
        raise RuntimeError("bug")

    b.on_message(handler)
    await a.send(B, b"1")
    await a.send(B, b"2")
    await network.settle()
    assert seen == [b"1", b"2"]


async def test_an_oversize_message_is_the_callers_bug(network):
    a, _ = pair(network)
    with pytest.raises(ValueError, match="over the limit"):
        await a.send(B, bytes(MAX_MESSAGE_BYTES + 1))


async def test_chosen_messages_are_dropped(network):
    a, b = pair(network)
    inbox = Inbox()
    b.on_message(inbox)
    network.inject(Drop(sender=A, first=1, count=1, matches=lambda message: message.startswith(b"x")))
    for text in (b"x1", b"y", b"x2", b"x3"):
        await a.send(B, text)
    await network.settle()
    assert [message for _, message in inbox] == [b"x1", b"y", b"x3"]


async def test_dead_partitioned_and_unreachable_peers_refuse(network):
    a, b = pair(network)
    network.partition([A], [B])
    with pytest.raises(PeerUnreachable):
        await a.send(B, b"")
    network.heal()
    network.inject(Unreachable(receiver=B))
    with pytest.raises(PeerUnreachable, match="no route"):
        await a.open(B, "echo")
    network.heal()
    network.kill(B)
    with pytest.raises(PeerUnreachable, match="refused"):
        await a.send(B, b"")
    with pytest.raises(PeerUnreachable, match="closed"):
        await b.send(A, b"")


async def test_a_frozen_peer_gets_its_messages_after_the_thaw(network):
    a, b = pair(network)
    inbox = Inbox()
    b.on_message(inbox)
    network.freeze(B)
    await a.send(B, b"late")
    await network.settle()
    assert inbox == []
    network.thaw(B)
    await network.settle()
    assert inbox == [(A, b"late")]


async def test_a_restarted_peer_is_reached_by_new_messages_only(network):
    a, _ = pair(network)
    network.freeze(B)
    await a.send(B, b"lost")
    inbox = Inbox()
    network.transport(B).on_message(inbox)
    await a.send(B, b"new")
    await network.settle()
    assert inbox == [(A, b"new")]


async def test_streams_carry_frames_both_ways_and_name_the_remote(network):
    a, b = pair(network)
    b.serve("echo", Echo())
    stream = await a.open(B, "echo")
    await stream.write(memoryview(b"hello"))
    assert await stream.read(5) == b"hello"
    assert stream.remote == B
    with pytest.raises(PeerUnreachable, match="does not serve"):
        await a.open(B, "other")


async def test_a_frame_over_the_readers_limit_is_refused_with_the_peers_name(network):
    a, b = pair(network)
    b.serve("echo", Echo())
    stream = await a.open(B, "echo")
    await stream.write(bytes(6))
    with pytest.raises(RemoteProtocolError) as refused:
        await stream.read(5)
    assert refused.value.peer == B
    assert "frame too long" in refused.value.rule


async def test_a_writer_waits_for_its_reader_and_then_gives_up(network):
    a, b = pair(network)

    async def never_reads(stream):
        await asyncio.Event().wait()

    b.serve("sink", never_reads)
    stream = await a.open(B, "sink")
    await stream.write(bytes(1000))
    with pytest.raises(StreamClosed, match="no progress"):
        await stream.write(bytes(1000))
    for task in network._tasks:
        task.cancel()


@pytest.mark.parametrize("fault", [CutStream, StallStream])
async def test_a_stream_fails_after_the_given_bytes(network, fault):
    a, b = pair(network)
    echo = Echo()
    b.serve("echo", echo)
    network.inject(fault(sender=A, receiver=B, after_bytes=10))
    stream = await a.open(B, "echo")
    await stream.write(bytes(10))
    await stream.read(10)
    with contextlib.suppress(StreamClosed):
        await stream.write(b"x")
    with pytest.raises(StreamClosed):
        await stream.read(1)
    await echo.ended.wait()
    assert echo.frames == [bytes(10)]


async def test_a_byte_is_corrupted_where_the_fault_says(network):
    a, b = pair(network)
    echo = Echo()
    b.serve("echo", echo)
    network.inject(CorruptStream(sender=A, offset=4))
    stream = await a.open(B, "echo")
    await stream.write(b"abc")
    await stream.write(b"def")
    assert await stream.read(3) == b"abc"
    assert await stream.read(3) == b"ddf"


async def test_a_peer_dies_after_so_many_bytes_over_all_its_streams(network):
    a, b = pair(network)
    c = network.transport(C)
    b.serve("echo", Echo())
    c.serve("echo", Echo())
    network.inject(Die(sender=A, after_bytes=10))
    to_b, to_c = await a.open(B, "echo"), await a.open(C, "echo")
    await to_b.write(bytes(6))
    with pytest.raises(StreamClosed):
        await to_c.write(bytes(6))
    with pytest.raises(PeerUnreachable):
        await b.send(A, b"")


async def test_frames_that_arrived_before_a_close_can_still_be_read(network):
    a, b = pair(network)

    async def says_goodbye(stream):
        await stream.write(b"bye")

    b.serve("bye", says_goodbye)
    stream = await a.open(B, "bye")
    assert await stream.read(10) == b"bye"
    with pytest.raises(StreamClosed):
        await stream.read(10)


async def test_discovery_records_expire(network):
    now = 100.0
    network.now = lambda: now
    await network.directory(A).publish(b"record", 101.0)
    assert await network.directory(B).records() == [b"record"]
    now = 102.0
    assert await network.directory(B).records() == []


async def test_a_writer_that_is_released_goes_on(network):
    a, b = pair(network)
    release = asyncio.Event()
    received = []

    async def reads_later(stream):
        await release.wait()
        with contextlib.suppress(StreamClosed):
            while True:
                received.append(await stream.read(2000))

    b.serve("sink", reads_later)
    stream = await a.open(B, "sink")
    await stream.write(bytes(1000))
    second = asyncio.create_task(stream.write(bytes(1000)))
    release.set()
    await second
    await stream.close()
    await network.close()
    assert [len(frame) for frame in received] == [1000, 1000]
