"""Ordered, repeated, de-duplicated control messages."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from atoll.protocol import transport as contract
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.swarm.messages import MAX_UNANSWERED, Inbox, Outbox, new_session
from atoll.protocol.swarm.streams import SwarmStream

A, B = (Identity.from_seed(bytes((number,)) * 32).peer_id for number in (1, 2))


class Wire:
    """Connects one outbox to one inbox; each connection can be cut, and the receiver can be away."""

    def __init__(self) -> None:
        self.inbox, self.got = Inbox(), list[bytes]()
        self.is_away = False
        self.num_opened = 0
        self.ends: list[SwarmStream] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.arrived = asyncio.Condition()

    async def open(self, peer: PeerId, _protocol: str, session: bytes) -> tuple[SwarmStream, bytes]:
        if self.is_away:
            raise contract.PeerUnreachable(peer, "away")
        self.num_opened += 1
        left, right = socket.socketpair()
        near = SwarmStream(B, *await asyncio.open_connection(sock=left), contract.Traffic(), 5.0)
        far = SwarmStream(A, *await asyncio.open_connection(sock=right), contract.Traffic(), 5.0)
        self.ends.append(far)
        self.tasks.append(asyncio.create_task(self.receive(far, session)))
        return near, b""

    async def receive(self, stream: SwarmStream, session: bytes) -> None:
        with contextlib.suppress(contract.StreamClosed):
            await self.inbox.receive(stream, session, self.on_message)

    async def on_message(self, _peer: PeerId, message: bytes) -> None:
        async with self.arrived:
            self.got.append(message)
            self.arrived.notify_all()

    async def wait_for(self, *messages: bytes) -> None:
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: self.got == list(messages))

    def cut(self) -> None:
        self.tasks[-1].cancel()
        self.ends[-1].abort()


async def test_messages_arrive_in_order_over_one_stream() -> None:
    wire = Wire()
    outbox = Outbox(B, new_session(), wire.open, 5.0)
    expected = [str(number).encode() for number in range(100)]
    await asyncio.gather(*map(outbox.send, expected))
    await wire.wait_for(*expected)
    assert wire.num_opened == 1
    await outbox.close()


async def test_a_cut_connection_loses_and_doubles_nothing() -> None:
    wire = Wire()
    outbox = Outbox(B, new_session(), wire.open, 5.0)
    await outbox.send(b"one")
    await wire.wait_for(b"one")
    await outbox.all_answered.wait()
    wire.tasks[-1].cancel()  # the peer reads no more, then its p2pd dies
    await outbox.send(b"two")
    wire.cut()
    await outbox.send(b"three")
    await outbox.send(b"four")
    await wire.wait_for(b"one", b"two", b"three", b"four")
    await outbox.close()


async def test_after_a_failure_sends_fail_at_once_until_the_pause_is_over() -> None:
    wire = Wire()
    outbox = Outbox(B, new_session(), wire.open, 5.0)
    wire.is_away = True
    with pytest.raises(contract.PeerUnreachable, match="away"):
        await outbox.send(b"lost")
    wire.is_away = False
    with pytest.raises(contract.PeerUnreachable, match=r"away \(next attempt in"):
        await outbox.send(b"lost too")
    outbox.retry_now()
    await outbox.send(b"kept")
    await wire.wait_for(b"kept")
    await outbox.close()


async def test_a_restarted_sender_begins_a_new_session() -> None:
    wire = Wire()
    for text in (b"before", b"after"):
        outbox = Outbox(B, new_session(), wire.open, 5.0)
        await outbox.send(text)
        await outbox.all_answered.wait()
        await outbox.close()
    assert wire.got == [b"before", b"after"]


async def test_a_peer_that_answers_nothing_is_given_up() -> None:
    wire = Wire()
    outbox = Outbox(B, new_session(), wire.open, 0.05)
    await outbox.send(b"first")
    await outbox.all_answered.wait()
    wire.tasks[-1].cancel()
    await asyncio.gather(*(outbox.send(b"x") for _ in range(MAX_UNANSWERED)))
    with pytest.raises(contract.PeerUnreachable, match="answers no messages"):
        await outbox.send(b"one too many")
    await outbox.close()


async def test_an_exception_of_the_handler_does_not_end_the_connection() -> None:
    wire = Wire()
    original = wire.on_message

    async def fails_once(peer: PeerId, message: bytes) -> None:
        if message == b"bad":
            raise RuntimeError("bug")
        await original(peer, message)

    wire.on_message = fails_once  # type: ignore[method-assign]
    outbox = Outbox(B, new_session(), wire.open, 5.0)
    await outbox.send(b"bad")
    await outbox.send(b"good")
    await wire.wait_for(b"good")
    await outbox.close()
