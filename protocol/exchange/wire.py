"""Frames of a ``span`` stream.

Member to owner: one header (plan, span, the leaves of the span's chunks with their proof), then the encoded chunks in
order, then, once everything has come back, an acknowledgement. Owner to member: control frames, each `CHUNK` followed
by that chunk's bytes. Payloads are cut into pieces of at most a frame; how many bytes follow is known to both sides
from the plan and the grid and is never read from a frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..commitments import ENTRY_BYTES, Leaf
from ..payload import pieces as pieces
from ..payload import read_payload as read_payload
from ..record import Plan
from ..transport import MAX_FRAME_BYTES, ByteStream, RemoteProtocolError

PROTOCOL = "span"

_MAGIC = b"ats2"
_HEADER = struct.Struct("<4s32sI")
_CONTROL = struct.Struct("<cI")

CHUNK = b"C"
"""The bytes of chunk ``argument`` (counted within the span) of the mean follow."""
RESET = b"R"
"""All chunks of the mean sent so far are void; generation ``argument`` starts at the first chunk."""
KEEPALIVE = b"K"
"""The owner is alive and waits for others."""
EXCLUDED = b"X"
"""The member's contribution is not in this span; a reason follows and the stream ends."""
FINAL = b"F"
"""All chunks were sent; a `SpanResult` as JSON follows in the frame."""
ACKNOWLEDGED = b"A"

MAX_REASON_BYTES = 200


@dataclass(frozen=True)
class SpanHeader:
    """What a member opens a stream with."""

    plan_id: str
    span: int
    entries: tuple[Leaf, ...]
    """Leaves of the span's chunks, then their proof (`commitments.Tree.proof`)."""

    def encode(self) -> bytes:
        entries = b"".join(entry.encode() for entry in self.entries)
        return _HEADER.pack(_MAGIC, bytes.fromhex(self.plan_id), self.span) + entries

    @classmethod
    async def read(cls, stream: ByteStream, num_chunks: int) -> SpanHeader:
        """Raises `RemoteProtocolError` for anything else than a header of a span of at most ``num_chunks``.

        How many entries there must be, only the plan says, which may come later than the stream.
        """
        frame = await stream.read(min(max_header_bytes(num_chunks), MAX_FRAME_BYTES))
        try:
            magic, plan_id, span = _HEADER.unpack_from(frame)
            if magic != _MAGIC:
                raise ValueError(f"{len(frame)} bytes of another protocol")
            return cls(plan_id.hex(), span, Leaf.decode_all(memoryview(frame)[_HEADER.size :]))
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(stream.remote, "malformed span header", str(error)) from None


def max_header_bytes(num_chunks: int) -> int:
    """Longest header on a grid: all leaves, or one of them with a proof of two nodes a level."""
    return _HEADER.size + ENTRY_BYTES * max(num_chunks, 2 + 2 * num_chunks.bit_length())


@dataclass(frozen=True)
class Control:
    """A frame from owner to member."""

    tag: bytes
    argument: int = 0
    text: bytes = b""

    def encode(self) -> bytes:
        return _CONTROL.pack(self.tag, self.argument) + self.text

    @classmethod
    async def read(cls, stream: ByteStream, max_bytes: int) -> Control:
        frame = await stream.read(max_bytes)
        if len(frame) < _CONTROL.size:
            raise RemoteProtocolError(stream.remote, "malformed control frame", f"{len(frame)} bytes")
        tag, argument = _CONTROL.unpack_from(frame)
        return cls(tag, argument, frame[_CONTROL.size :])


def max_control_bytes(plan: Plan) -> int:
    """Longest control frame that an honest owner sends under ``plan``: a final one."""
    return _CONTROL.size + 768 + 6 * len(plan.members)
