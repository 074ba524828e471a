"""Messages, streams and the directory between real p2p daemons on loopback."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from atoll.protocol import transport as contract
from atoll.protocol.swarm._hivemind import Libp2pPeerId
from atoll.protocol.swarm.directory import SKEW_ALLOWANCE_S

from .swarm_lab import Lab, make_heartbeat, num_open_files, until


async def echo(stream: contract.ByteStream) -> None:
    while True:
        await stream.write(await stream.read(contract.MAX_FRAME_BYTES))


async def test_three_peers_that_know_one_seed_exchange_messages_in_order(lab: Lab) -> None:
    a = await lab.start("a")
    b, c = await asyncio.gather(lab.start("b", a), lab.start("c", a))
    for number in range(50):
        await b.transport.send(c.peer_id, str(number).encode())
    await c.transport.send(b.peer_id, b"back")
    assert [await lab.received(c) for _ in range(50)] == [(b.peer_id, str(n).encode()) for n in range(50)]
    assert await lab.received(b) == (c.peer_id, b"back")
    assert b.transport.traffic.sent_to[c.peer_id] > 50 * 12
    assert c.transport.traffic.received_from[b.peer_id] > 50 * 12


async def test_a_stream_carries_frames_both_ways_and_names_its_authenticated_peer(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    remotes: list[str] = []

    async def handler(stream: contract.ByteStream) -> None:
        remotes.append(stream.remote)
        await echo(stream)

    a.transport.serve("span", handler)
    stream = await b.transport.open(a.peer_id, "span")
    for num_bytes in (0, 1, 4 << 20):
        frame = b"\x5a" * num_bytes
        _, got = await asyncio.gather(stream.write(frame), stream.read(contract.MAX_FRAME_BYTES))
        assert got == frame
    await stream.close()
    assert remotes == [b.peer_id]


async def test_the_last_frame_arrives_although_the_sender_closes_at_once(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def slow(stream: contract.ByteStream) -> None:
        await asyncio.sleep(0.1)
        got.set_result(b"".join([await stream.read(1 << 20) for _ in range(8)]))

    a.transport.serve("span", slow)
    stream = await b.transport.open(a.peer_id, "span")
    for _ in range(8):
        await stream.write(bytes(1 << 20))
    await stream.close()
    assert len(await got) == 8 << 20


async def test_a_protocol_that_nobody_serves_is_refused_with_its_reason(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    with pytest.raises(contract.PeerUnreachable, match="does not serve"):
        await b.transport.open(a.peer_id, "unknown")


async def test_a_peer_that_went_away_is_unreachable_and_its_streams_end(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    a.transport.serve("span", echo)
    stream = await b.transport.open(a.peer_id, "span")
    await a.stop()
    with pytest.raises(contract.StreamClosed):
        await stream.read(10)
    with pytest.raises(contract.PeerUnreachable):
        await b.transport.open(a.peer_id, "span")
    with pytest.raises(contract.PeerUnreachable):
        await b.transport.send(a.peer_id, b"anybody?")


async def test_two_runs_never_meet(lab: Lab) -> None:
    a = await lab.start("a")
    stranger = await lab.start("b", run_id="cd" * 32, known_peers={a.peer_id: (a.addresses[0],)})
    await stranger.connect(a.peer_id, a.addresses)
    assert a.peer_id in stranger.health().connected_peers
    for attempt in (stranger.transport.send(a.peer_id, b"x"), stranger.transport.open(a.peer_id, "span")):
        with pytest.raises(contract.PeerUnreachable, match="not supported"):
            await attempt
    await a.directory.publish(make_heartbeat(lab.identity("a")), 0)
    assert await stranger.directory.records() == []


async def test_a_peer_over_the_stream_limit_is_disconnected_and_its_descriptors_freed(lab: Lab) -> None:
    a = await lab.start("a", max_streams_per_peer=8, refuse_s=60.0)
    b = await lab.start("b", a)
    a.transport.serve("span", echo)
    before = num_open_files()
    opened: list[Any] = await asyncio.gather(
        *(b.transport.open(a.peer_id, "span") for _ in range(40)), return_exceptions=True
    )
    assert any(isinstance(result, contract.PeerUnreachable) for result in opened)
    assert "peer_refused" in lab.kinds()
    for stream in opened:
        if not isinstance(stream, BaseException):
            await stream.close()
    await until(lambda: num_open_files() <= before + 2)
    with pytest.raises(contract.PeerUnreachable):
        await b.transport.open(a.peer_id, "span")


async def test_every_peer_finds_the_records_of_all(lab: Lab) -> None:
    a = await lab.start("a")
    b, c = await asyncio.gather(lab.start("b", a), lab.start("c", a))
    raws = {name: make_heartbeat(lab.identity(name), name=name) for name in "abc"}
    for swarm, name in ((a, "a"), (b, "b"), (c, "c")):
        await swarm.directory.publish(raws[name], time.time() + 60)
    for swarm in (a, b, c):
        assert {*await swarm.directory.records()} == {*raws.values()}


async def test_a_newer_record_replaces_the_older_one_and_never_the_reverse(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    identity, now = lab.identity("a"), time.time()
    old = make_heartbeat(identity, sequence=1, expires=now + 60)
    new = make_heartbeat(identity, sequence=2, expires=now + 61)
    await a.directory.publish(old, now + 60)
    assert await b.directory.records() == [old]
    await a.directory.publish(new, now + 61)
    assert await b.directory.records() == [new]
    node = b._directory._node
    peer = Libp2pPeerId.from_base58(a.peer_id)
    key = node.protocol.record_validator._key
    replayed = await node.protocol.call_store(
        peer, [type(node.node_id).from_bytes(key)], [node.protocol.serializer.dumps(old)],
        [now + 60 + SKEW_ALLOWANCE_S], subkeys=[str(a.peer_id)],
    )  # fmt: skip
    assert replayed == [False]
    assert await b.directory.records() == [new]


async def test_a_record_under_anothers_name_is_refused_by_the_holder(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    genuine = make_heartbeat(lab.identity("a"))
    await a.directory.publish(genuine, 0)
    node, forged = b._directory._node, make_heartbeat(lab.identity("b"), name="I am a")
    assert not await node.store(
        f"atoll/1/{'ab' * 32}/peers", forged, time.time() + 60 + SKEW_ALLOWANCE_S, subkey=str(a.peer_id)
    )
    assert not await node.store("another key", b"x", time.time() + 60)
    assert await a.directory.records() == [genuine]
    with pytest.raises(ValueError, match="signed itself"):
        await b.directory.publish(genuine, 0)


async def test_the_dht_works_although_clocks_differ_by_an_hour(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    late = make_heartbeat(lab.identity("b"), expires=time.time() - 3600 + 60)
    early = make_heartbeat(lab.identity("a"), expires=time.time() + 3600 + 60)
    await b.directory.publish(late, 0)
    await a.directory.publish(early, 0)
    for swarm in (a, b):
        assert {*await swarm.directory.records()} == {late, early}


async def test_ipv6_works_where_the_host_has_it(lab: Lab) -> None:
    try:
        a = await lab.start("a", listen=("/ip6/::1/tcp/0",))
    except OSError:
        pytest.skip("no IPv6 here")
    b = await lab.start("b", a, listen=("/ip6/::1/tcp/0",))
    await b.transport.send(a.peer_id, b"six")
    assert await lab.received(a) == (b.peer_id, b"six")


async def test_quic_works(lab: Lab) -> None:
    a = await lab.start("a", listen=("/ip4/127.0.0.1/udp/0/quic-v1",))
    b = await lab.start("b", a, listen=("/ip4/127.0.0.1/udp/0/quic-v1",))
    await b.transport.send(a.peer_id, b"quick")
    assert await lab.received(a) == (b.peer_id, b"quick")
