"""Payloads of a length that both sides know, cut into frames; shared by all bulk streams."""

from __future__ import annotations

import asyncio

from .transport import MAX_FRAME_BYTES, Buffer, ByteStream, RemoteProtocolError, StreamClosed

SLOWEST_BYTES_PER_S = 8 << 10
"""A sender that is slower than this over a whole payload counts as stalled, however steadily its bytes drip."""
FIRST_BYTES_PATIENCE_S = 30.0

YES = b"Y"
"""The payload that was asked for follows."""
NO = b"N"
"""The peer does not have it (any more)."""


def pieces(payload: Buffer, frame_bytes: int) -> list[memoryview]:
    """``payload`` in frames of at most ``frame_bytes``, without copying."""
    view = memoryview(payload).cast("B")
    return [view[start : start + frame_bytes] for start in range(0, len(view), frame_bytes)]


async def write_payload(stream: ByteStream, payload: Buffer, frame_bytes: int = 1 << 20) -> None:
    """Send ``payload``; the receiver must know its length. Raises `StreamClosed`."""
    for piece in pieces(payload, frame_bytes):
        await stream.write(piece)


async def read_payload(stream: ByteStream, num_bytes: int) -> Buffer:
    """Exactly ``num_bytes``, in as many frames as the sender likes. Raises `RemoteProtocolError` beyond that.

    Raises `StreamClosed` for a sender that drips: each frame within the stream's progress limit, the payload never.
    """
    limit_s = FIRST_BYTES_PATIENCE_S + num_bytes / SLOWEST_BYTES_PER_S
    try:
        async with asyncio.timeout(limit_s):
            return await _read_pieces(stream, num_bytes)
    except TimeoutError:
        raise StreamClosed(stream.remote, f"{num_bytes} bytes did not come within {limit_s:.0f} s") from None


async def _read_pieces(stream: ByteStream, num_bytes: int) -> Buffer:
    first = await _read_piece(stream, num_bytes)
    if len(first) == num_bytes:
        return first
    payload = bytearray(first)
    while len(payload) < num_bytes:
        payload += await _read_piece(stream, num_bytes - len(payload))
    return payload


async def _read_piece(stream: ByteStream, num_bytes: int) -> bytes:
    piece = await stream.read(min(num_bytes, MAX_FRAME_BYTES))
    if not piece:
        raise RemoteProtocolError(stream.remote, "empty frame inside a payload")
    return piece


async def read_answer(stream: ByteStream) -> bool:
    """Whether the payload follows."""
    answer = await stream.read(len(YES))
    if answer not in (YES, NO):
        raise RemoteProtocolError(stream.remote, "malformed answer")
    return answer == YES
