"""Hostile peers and orderly ends on real p2pd daemons."""

from __future__ import annotations

import asyncio
import logging

import pytest

from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.swarm import SeedCause, seeds
from atoll.protocol.transport import ByteStream, RemoteProtocolError, StreamClosed

from .swarm_lab import Lab


async def test_stopping_with_open_streams_logs_no_traceback(lab: Lab, caplog: pytest.LogCaptureFixture):
    first = await lab.start("first")
    second = await lab.start("second", first)
    opened = asyncio.Event()

    async def wait_for_ever(stream: ByteStream) -> None:
        opened.set()
        await stream.read(10)

    first.transport.serve("slow", wait_for_ever)
    await second.transport.open(first.peer_id, "slow")
    await opened.wait()
    caplog.set_level(logging.ERROR)
    await first.stop()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_peer_that_breaks_the_protocol_again_and_again_is_said_a_few_times(lab: Lab):
    first = await lab.start("first")
    second = await lab.start("second", first)
    num_served = 0

    async def refuse(stream: ByteStream) -> None:
        nonlocal num_served
        num_served += 1
        raise RemoteProtocolError(stream.remote, "malformed")

    first.transport.serve("strict", refuse)
    for _ in range(60):
        stream = await second.transport.open(first.peer_id, "strict")
        with pytest.raises(StreamClosed):
            await stream.read(10)
    assert num_served == 60
    said = [event for event in lab.events if event.kind == "peer_refused"]
    assert 1 <= len(said) <= 20


async def test_addresses_that_peers_once_stated_are_not_probed_at_a_start(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """Only libp2p dials them: no plain connection to what a peer claims; garbage stops no start."""
    probed: list[tuple[str, int]] = []

    async def note(host: str, port: int, _timeout_s: float) -> SeedCause:
        probed.append((host, port))
        return SeedCause.REFUSED

    monkeypatch.setattr(seeds, "tcp_cause", note)
    ghost = Identity.from_seed(b"g" * 32).peer_id
    known = {
        ghost: ("/ip4/127.0.0.1/tcp/1", "--help", "/ip4/127.0.0.1/tcp/99999"),
        PeerId("no peer"): ("/ip4/127.0.0.1/tcp/2",),
        PeerId("x" * 5000): ("\x1b[31m",),
    }
    swarm = await lab.start("only", f"/ip4/127.0.0.1/tcp/3/p2p/{ghost}", known_peers=known)
    assert swarm.health().alive
    assert set(probed) == {("127.0.0.1", 3)}
