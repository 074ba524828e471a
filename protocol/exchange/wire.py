"""Frames of a ``span`` stream.

Member to owner: one header (plan, span, digests of all chunks of the contribution), then the span's encoded chunks in
order, then, once everything has come back, an acknowledgement. Owner to member: control frames, each `CHUNK` followed
by that chunk's bytes. Payloads are cut into pieces of at most a frame; how many bytes follow is known to both sides
from the plan and the grid and is never read from a frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..chunks import DIGEST_BYTES
from ..messages import Plan
from ..payload import pieces as pieces
from ..payload import read_payload as read_payload
from ..transport import ByteStream, RemoteProtocolError

PROTOCOL = "span"

_MAGIC = b"ats1"
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
    leaves: tuple[bytes, ...]

    def encode(self) -> bytes:
        return _HEADER.pack(_MAGIC, bytes.fromhex(self.plan_id), self.span) + b"".join(self.leaves)

    @classmethod
    async def read(cls, stream: ByteStream, num_chunks: int) -> SpanHeader:
        """Raises `RemoteProtocolError` unless it is a header with exactly ``num_chunks`` digests."""
        num_bytes = _HEADER.size + num_chunks * DIGEST_BYTES
        frame = await stream.read(num_bytes)
        if len(frame) != num_bytes or not frame.startswith(_MAGIC):
            raise RemoteProtocolError(stream.remote, "malformed span header", f"{len(frame)} bytes, not {num_bytes}")
        _, plan_id, span = _HEADER.unpack_from(frame)
        starts = range(_HEADER.size, num_bytes, DIGEST_BYTES)
        return cls(plan_id.hex(), span, tuple(frame[start : start + DIGEST_BYTES] for start in starts))


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
    return _CONTROL.size + 512 + 6 * len(plan.members)
