"""Framing, time limits and ends of a stream, over a plain socket pair in place of p2pd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from atoll.protocol import transport as contract
from atoll.protocol.identity import Identity
from atoll.protocol.swarm.streams import SwarmStream, greet, receive_hello, refuse, welcome

A, B = (Identity.from_seed(bytes((number,)) * 32).peer_id for number in (1, 2))


@contextlib.asynccontextmanager
async def pair(
    timeout_s: float = 5.0,
) -> AsyncIterator[tuple[SwarmStream, SwarmStream, contract.Traffic, contract.Traffic]]:
    left, right = socket.socketpair()
    traffics = contract.Traffic(), contract.Traffic()
    one = SwarmStream(B, *await asyncio.open_connection(sock=left), traffics[0], timeout_s)
    other = SwarmStream(A, *await asyncio.open_connection(sock=right), traffics[1], timeout_s)
    try:
        yield one, other, *traffics
    finally:
        one.abort()
        other.abort()


@pytest.mark.parametrize("num_bytes", [0, 1, 65_536, 1 << 20, contract.MAX_FRAME_BYTES])
async def test_a_frame_arrives_whole_and_is_counted_with_its_header(num_bytes: int) -> None:
    async with pair() as (one, other, sent, received):
        frame = bytes(range(256)) * (num_bytes // 256) + b"x" * (num_bytes % 256)
        _, got = await asyncio.gather(one.write(frame), other.read(contract.MAX_FRAME_BYTES))
        assert got == frame
        assert sent.sent_bytes == received.received_bytes == num_bytes + 4
        assert sent.sent_to == {B: num_bytes + 4}


async def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    async with pair() as (one, other, _, received):
        await one.write(b"x" * 1001)
        with pytest.raises(contract.RemoteProtocolError) as caught:
            await other.read(1000)
        assert caught.value.peer == A
        assert received.received_bytes == 0


async def test_a_claimed_length_of_4_gigabytes_takes_no_memory() -> None:
    async with pair() as (one, other, _, _):
        one._writer.write(b"\xff\xff\xff\xff")
        with pytest.raises(contract.RemoteProtocolError):
            await other.read(contract.MAX_FRAME_BYTES)


async def test_writing_a_frame_over_the_limit_is_a_local_error() -> None:
    async with pair() as (one, _, _, _):
        with pytest.raises(ValueError, match="over the limit"):
            await one.write(bytes(contract.MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x09partial"])
async def test_an_end_before_the_agreed_end_is_a_failure(sent: bytes) -> None:
    async with pair() as (one, other, _, _):
        one._writer.write(sent)
        await one.close()
        with pytest.raises(contract.StreamClosed, match="ended it or died"):
            await other.read(100)


async def test_what_was_written_before_closing_is_still_delivered() -> None:
    async with pair() as (one, other, _, _):
        await one.write(b"last word")
        await one.close()
        await one.close()
        assert await other.read(100) == b"last word"


async def test_no_progress_ends_a_read() -> None:
    async with pair(0.05) as (one, other, _, _):
        one._writer.write(b"\0\0\0\x09part")
        with pytest.raises(contract.StreamClosed, match="nothing arrived for"):
            await other.read(100)


async def test_a_peer_that_does_not_read_ends_a_write() -> None:
    async with pair(0.1) as (one, other, _, _):
        other._reader._transport.pause_reading()
        with pytest.raises(contract.StreamClosed, match="did not read"):
            await one.write(bytes(contract.MAX_FRAME_BYTES))


async def test_a_stream_counts_as_open_after_the_application_hello() -> None:
    async with pair() as (one, other, _, _):
        answer = asyncio.create_task(greet(one, b"question", 1.0))
        assert await receive_hello(other, 1.0) == b"question"
        await welcome(other, b"answer")
        assert await answer == b"answer"


async def test_silence_after_the_hello_is_not_an_open_stream() -> None:
    async with pair() as (one, _, _, _):
        with pytest.raises(contract.StreamClosed, match="no answer within"):
            await greet(one, b"", 0.05)


async def test_a_cancelled_wait_for_a_frame_loses_nothing() -> None:
    async with pair() as (one, other, _, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.read(100), 0.01)
        await one.write(b"later")
        assert await other.read(100) == b"later"


async def test_a_cancelled_write_ends_the_stream_instead_of_corrupting_it() -> None:
    async with pair() as (one, other, _, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.write(bytes(contract.MAX_FRAME_BYTES)), 0.05)
        with pytest.raises(contract.StreamClosed):
            await other.read(contract.MAX_FRAME_BYTES)
        with pytest.raises(contract.StreamClosed):
            await one.write(b"x")


async def test_a_refusal_carries_its_reason() -> None:
    async with pair() as (one, other, _, _):
        answer = asyncio.create_task(greet(one, b"", 1.0))
        await receive_hello(other, 1.0)
        await refuse(other, "not today")
        with pytest.raises(contract.StreamClosed, match="not today"):
            await answer


@pytest.mark.parametrize("frame", [b"", b"cos\nsystem\n(S'true'\ntR.", b"GET / HTTP/1.1"])
async def test_a_malformed_hello_is_no_hello(frame: bytes) -> None:
    async with pair() as (one, other, _, _):
        await one.write(frame)
        assert await receive_hello(other, 1.0) is None
