"""Streams beside libp2p: agreed on, made, reused, given up, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import pytest

from atoll.protocol import transport as contract
from atoll.protocol.bandwidth import NO_CAPS, BandwidthCap, Caps
from atoll.protocol.swarm.direct import bundle
from atoll.protocol.swarm.direct import path as direct_path
from atoll.protocol.swarm.direct.handover import Handover
from atoll.protocol.swarm.streams import SwarmStream

from .direct_lab import Libp2p, Node, echo


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    made: list[Node] = []
    yield made
    await asyncio.gather(*(node.stop() for node in made))
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if "atoll" in repr(task)]
    assert not left


def pair(nodes: list[Node], **of_a: object) -> tuple[Node, Node]:
    libp2p = Libp2p()
    nodes += [Node(libp2p, 1, **of_a), Node(libp2p, 2)]  # type: ignore[arg-type]
    return nodes[0], nodes[1]


async def flood(stream: contract.ByteStream) -> None:
    while True:
        await stream.write(bytes(1 << 20))


async def opened(here: Node, there: Node) -> contract.ByteStream:
    stream = await here.path.open(there.me, "span")
    assert stream is not None
    return stream


async def until(condition: object, limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_frames_go_both_ways_and_are_counted_as_on_libp2p(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    stream = await opened(a, b)
    assert stream.remote == b.me
    for num_bytes in (0, 1, 16_380, 16_381, 65_536, 1 << 20, contract.MAX_FRAME_BYTES):
        frame = bytes(range(256)) * (num_bytes // 256) + b"x" * (num_bytes % 256)
        _, got = await asyncio.gather(stream.write(frame), stream.read(contract.MAX_FRAME_BYTES))
        assert got == frame
    await stream.close()
    assert a.traffic.sent_to[b.me] == b.traffic.received_from[a.me] > 5 << 20
    assert a.changes == [(b.me, "")]


async def test_over_a_long_way_several_connections_carry_one_stream(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LONG_ROUND_TRIP_S", 0.0)
    monkeypatch.setattr(bundle, "BLOCK_BYTES", 100_000)
    a, b = pair(nodes)
    for _ in range(3):
        stream = await opened(a, b)
        for num_bytes in (0, 1, 99_995, 100_000, 100_001, 1 << 20, contract.MAX_FRAME_BYTES):
            frame = bytes(range(251)) * (num_bytes // 251) + b"x" * (num_bytes % 251)
            _, got = await asyncio.gather(stream.write(frame), stream.read(contract.MAX_FRAME_BYTES))
            assert got == frame
        await stream.close()
        await until(lambda: a.path._pool._idle)
    (served,) = b.path._served[a.me]
    assert served.num_sockets == bundle.NUM_CONNECTIONS
    assert len(b.offers) == 1
    assert not b.path._listener._handovers._pending


async def test_if_a_further_connection_fails_nothing_is_left_open(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LONG_ROUND_TRIP_S", 0.0)
    monkeypatch.setattr("atoll.protocol.swarm.direct.listener.HANDSHAKE_TIMEOUT_S", 0.3)
    a, b = pair(nodes, reachable=False)
    part = Handover.part
    strange = Handover(a.me, b"", bytes(16), bytes(32))
    monkeypatch.setattr(Handover, "part", lambda self, index: part(strange if index == 1 else self, index))
    num_open = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(b.path._listener._handovers, "issue_parts", _honest_parts(b.path._listener._handovers, part))
    assert await a.path.open(b.me, "span") is None
    await until(lambda: len(os.listdir("/proc/self/fd")) <= num_open)
    assert not b.path._listener._parts


def _honest_parts(handovers, part):
    def issue(handover: Handover, num_parts: int, _now_s: float) -> list[Handover]:
        parts = [part(handover, index) for index in range(num_parts)]
        for each in parts:
            handovers._add(each)
        return parts

    return issue


async def test_a_second_stream_takes_the_same_connection(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    for _ in range(5):
        stream = await opened(a, b)
        await stream.write(b"once more")
        assert await stream.read(100) == b"once more"
        await stream.close()
        await until(lambda: a.path._pool._idle)
    assert len(b.offers) == 1


async def test_what_was_under_way_when_a_stream_ended_is_not_read_by_the_next(nodes: list[Node]) -> None:
    a, b = pair(nodes)

    async def talkative(stream: contract.ByteStream) -> None:
        for number in range(100):
            await stream.write(str(number).encode())
        await stream.read(1)

    b.handler = talkative
    stream = await opened(a, b)
    assert await stream.read(10) == b"0"
    await stream.close()
    await until(lambda: a.path._pool._idle)
    b.handler = echo
    stream = await opened(a, b)
    await stream.write(b"mine")
    assert await stream.read(10) == b"mine"
    assert len(b.offers) == 1


async def test_the_end_of_a_stream_is_a_failure_for_who_waits_for_more(nodes: list[Node]) -> None:
    a, b = pair(nodes)

    async def short(stream: contract.ByteStream) -> None:
        await stream.write(b"first of two")

    b.handler = short
    stream = await opened(a, b)
    assert await stream.read(100) == b"first of two"
    with pytest.raises(contract.StreamClosed, match="the peer ended it"):
        await stream.read(100)
    with pytest.raises(contract.StreamClosed):
        await stream.write(b"too late")


async def test_a_last_frame_arrives_although_its_sender_closes_at_once(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    got: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow(stream: contract.ByteStream) -> None:
        await asyncio.sleep(0.05)
        got.set_result(sum([len(await stream.read(1 << 20)) for _ in range(8)]))

    b.handler = slow
    stream = await opened(a, b)
    for _ in range(8):
        await stream.write(bytes(1 << 20))
    await stream.close()
    assert await got == 8 << 20


async def test_a_write_that_is_cancelled_half_way_ends_the_connection_with_it(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    stuck = asyncio.Event()

    async def deaf(_stream: contract.ByteStream) -> None:
        await stuck.wait()

    b.handler = deaf
    stream = await opened(a, b)

    writer = asyncio.create_task(flood(stream))
    await asyncio.sleep(0.05)
    assert not writer.done(), "a peer that does not read holds the writer back"
    writer.cancel()
    await asyncio.wait({writer})
    assert writer.cancelled()
    with pytest.raises(contract.StreamClosed):
        await stream.read(10)
    assert not a.path._pool._idle
    stuck.set()


async def test_a_peer_that_does_not_read_ends_the_stream_after_the_progress_limit(nodes: list[Node]) -> None:
    a, b = pair(nodes, progress_timeout_s=0.2)
    stuck = asyncio.Event()

    async def deaf(_stream: contract.ByteStream) -> None:
        await stuck.wait()

    b.handler = deaf
    stream = await opened(a, b)
    with pytest.raises(contract.StreamClosed, match="did not read"):
        await flood(stream)
    stuck.set()


async def test_a_peer_that_says_nothing_ends_the_stream_after_the_progress_limit(nodes: list[Node]) -> None:
    a, b = pair(nodes, progress_timeout_s=0.1)
    stream = await opened(a, b)
    with pytest.raises(contract.StreamClosed, match="nothing arrived"):
        await stream.read(1)


async def test_a_frame_over_the_limit_is_refused_and_the_connection_not_used_again(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    stream = await opened(a, b)
    await stream.write(bytes(1001))
    with pytest.raises(contract.RemoteProtocolError, match="1001 bytes"):
        await stream.read(1000)
    await asyncio.sleep(0.01)
    assert not a.path._pool._idle


async def test_a_node_behind_a_router_dials_out_and_others_open_streams_over_that(nodes: list[Node]) -> None:
    home, public = pair(nodes, reachable=False)
    for opener, other in ((home, public), (public, home)):
        stream = await opened(opener, other)
        await stream.write(b"hello")
        assert await stream.read(10) == b"hello"
        await stream.close()
    assert home.changes == [(public.me, "")]
    assert public.changes == [(home.me, "")]


async def test_two_nodes_behind_routers_stay_with_libp2p(nodes: list[Node]) -> None:
    libp2p = Libp2p()
    a, b = Node(libp2p, 1, reachable=False), Node(libp2p, 2, reachable=False)
    nodes += [a, b]
    assert await a.path.open(b.me, "span") is None
    assert "cannot be dialled" in a.changes[0][1]


async def test_a_port_that_does_not_answer_is_left_to_libp2p_at_once_and_not_tried_again_soon(
    nodes: list[Node],
) -> None:
    a, b = pair(nodes, reachable=False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    b.path._listener.port = port
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await a.path.open(b.me, "span") is None
    assert loop.time() - started_s < 0.5
    assert a.changes == [(b.me, f"port {port}: connection refused (tried again after 30 s)")]
    num_offers = len(b.offers)
    assert await a.path.open(b.me, "span") is None
    assert len(b.offers) == num_offers


async def test_a_port_that_swallows_packets_costs_no_more_than_the_dial_limit(nodes: list[Node]) -> None:
    a, b = pair(nodes, reachable=False)
    with socket.socket() as silent:  # its backlog is full: the next connection gets no answer
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        b.path._listener.port = silent.getsockname()[1]
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert await a.path.open(b.me, "span") is None
        assert loop.time() - started_s < 2.0
        assert "no answer within 1 s" in a.changes[0][1]
        for filler in fillers:
            filler.close()


async def test_if_one_way_fails_the_next_stream_tries_the_other(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    b.path._listener.port = 1  # nothing listens there
    assert await a.path.open(b.me, "span") is None
    stream = await opened(a, b)
    await stream.write(b"dialled by you")
    assert await stream.read(100) == b"dialled by you"


async def test_an_application_that_refuses_is_not_asked_again_over_libp2p(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    with pytest.raises(contract.PeerUnreachable, match="does not serve unknown"):
        await a.path.open(b.me, "unknown")


async def test_a_peer_that_knows_nothing_of_this_is_left_to_libp2p(nodes: list[Node]) -> None:
    a, b = pair(nodes, reachable=False)
    await b.stop()
    assert await a.path.open(b.me, "span") is None
    assert a.path._outcomes.retry_in_s(b.me, asyncio.get_running_loop().time()) > 20
    assert a.changes == [], "it never took another path"


async def test_a_pooled_connection_that_died_is_replaced_without_a_word(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    await (await opened(a, b)).close()
    await until(lambda: a.path._pool._idle)
    b.path.drop(a.me)
    stream = await opened(a, b)
    await stream.write(b"again")
    assert await stream.read(10) == b"again"


async def test_a_pooled_connection_that_ends_is_dropped(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    await (await opened(a, b)).close()
    await until(lambda: a.path._pool._idle)
    b.path.drop(a.me)
    await until(lambda: not a.path._pool._idle)


async def test_a_stranger_gets_no_ticket(nodes: list[Node]) -> None:
    a, b = pair(nodes)
    b.strangers.add(a.me)
    assert await a.path.open(b.me, "span") is None
    assert not b.path._listener._handovers._pending
    assert "does not list you" in a.changes[0][1]


async def test_more_streams_at_once_than_allowed_are_left_to_libp2p(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_path, "MAX_OPEN_PER_PEER", 2)
    a, b = pair(nodes)
    streams = [await a.path.open(b.me, "span") for _ in range(3)]
    assert [stream is not None for stream in streams] == [True, True, False]
    assert streams[0] is not None
    await streams[0].close()
    await until(lambda: a.path._num_open[b.me] == 1)
    assert await a.path.open(b.me, "span") is not None


async def test_more_connections_than_a_peer_may_have_are_refused(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_path, "MAX_SERVED_PER_PEER", 1)
    a, b = pair(nodes)
    await opened(a, b)
    assert await a.path.open(b.me, "span") is None
    assert "too many connections" in a.path._outcomes.reason(b.me)


async def test_it_works_over_ipv6(nodes: list[Node]) -> None:
    libp2p = Libp2p()
    try:
        a, b = Node(libp2p, 1, host="::1"), Node(libp2p, 2, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    nodes += [a, b]
    stream = await opened(a, b)
    await stream.write(b"six")
    assert await stream.read(10) == b"six"


class Clock:
    """Passes by sleeping only."""

    def __init__(self) -> None:
        self.now_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def cap(self, bytes_per_s: float) -> BandwidthCap:
        return BandwidthCap(bytes_per_s, lambda: self.now_s, self.sleep)


@pytest.mark.parametrize("bytes_per_s", [1e6, 4e6])
@pytest.mark.parametrize("direction", ["sending", "receiving"])
@pytest.mark.parametrize("kind", ["direct", "libp2p"])
async def test_a_cap_holds_within_five_percent_over_both_paths(
    nodes: list[Node], kind: str, direction: str, bytes_per_s: float
) -> None:
    clock, num_frames, frame = Clock(), 8, bytes(int(bytes_per_s / 4))
    caps = Caps(**{"sending": NO_CAPS.sending, "receiving": NO_CAPS.receiving, direction: clock.cap(bytes_per_s)})
    a, b = pair(nodes, caps=caps)
    b.handler = _swallow_and_send_back(num_frames)
    stream = await (opened(a, b) if kind == "direct" else over_libp2p(a, b))
    for _ in range(num_frames):
        await stream.write(frame)
    for _ in range(num_frames):
        assert await stream.read(len(frame)) == frame
    assert num_frames * len(frame) / clock.now_s == pytest.approx(bytes_per_s, rel=0.05)
    await stream.close()


async def over_libp2p(a: Node, b: Node) -> contract.ByteStream:
    left, right = socket.socketpair()
    far = SwarmStream(a.me, *await asyncio.open_connection(sock=right), contract.Traffic(), 5.0)

    async def serve() -> None:
        await b.handler(far)

    b._spawn(serve())
    return SwarmStream(b.me, *await asyncio.open_connection(sock=left), contract.Traffic(), 5.0, caps=a.caps)


def _swallow_and_send_back(num_frames: int):
    async def handler(stream: contract.ByteStream) -> None:
        frames = [await stream.read(contract.MAX_FRAME_BYTES) for _ in range(num_frames)]
        for frame in frames:
            await stream.write(frame)
        with contextlib.suppress(contract.StreamClosed):
            await stream.read(1)

    return handler
