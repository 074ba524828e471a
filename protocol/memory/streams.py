"""Streams of the in-memory network: bounded pipes with a progress limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..identity import PeerId
from ..transport import MAX_FRAME_BYTES, Buffer, RemoteProtocolError, StreamClosed
from ..wakeup import Signal

if TYPE_CHECKING:
    from .network import MemoryNetwork


@dataclass
class Pipe:
    """One direction of a stream."""

    sender: PeerId
    receiver: PeerId
    protocol: str
    frames: deque[bytes] = field(default_factory=deque[bytes])
    buffered_bytes: int = 0
    written_bytes: int = 0
    ended: str | None = None
    stalled: bool = False
    changed: Signal = field(default_factory=Signal)

    def put(self, frame: bytes) -> None:
        self.written_bytes += len(frame)
        if not self.stalled:
            self.frames.append(frame)
            self.buffered_bytes += len(frame)
        self.changed.fire()

    def take(self) -> bytes:
        frame = self.frames.popleft()
        self.buffered_bytes -= len(frame)
        self.changed.fire()
        return frame

    def end(self, why: str) -> None:
        self.ended = self.ended or why
        self.changed.fire()


class MemoryStream:
    """One end of a stream (`transport.ByteStream`)."""

    def __init__(self, network: MemoryNetwork, outgoing: Pipe, incoming: Pipe) -> None:
        self._network = network
        self._outgoing = outgoing
        self._incoming = incoming

    @property
    def remote(self) -> PeerId:
        return self._incoming.sender

    async def write(self, frame: Buffer) -> None:
        data = bytes(frame)
        if len(data) > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
        await self._network.pass_faults(self._outgoing, len(data))
        await self._until(self._outgoing, self._has_room)
        if self._outgoing.ended is not None:
            raise StreamClosed(self.remote, self._outgoing.ended)
        self._network.deliver(self._outgoing, data)

    async def read(self, max_bytes: int) -> bytes:
        await self._until(self._incoming, self._has_frame)
        if not self._incoming.frames:
            raise StreamClosed(self.remote, self._incoming.ended or "ended")
        if len(self._incoming.frames[0]) > max_bytes:
            length = len(self._incoming.frames[0])
            await self.close()
            raise RemoteProtocolError(self.remote, "frame too long", f"{length} bytes where {max_bytes} are allowed")
        frame = self._incoming.take()
        self._network.count_received(self._incoming, frame)
        return frame

    async def close(self) -> None:
        self.end("closed by the remote peer")

    def end(self, why: str) -> None:
        """End both directions with a reason; frames that have arrived can still be read."""
        self._outgoing.end(why)
        self._incoming.end(why)

    def uses(self, pipe: Pipe) -> bool:
        return pipe is self._outgoing or pipe is self._incoming

    def wake(self) -> None:
        self._outgoing.changed.fire()

    def _has_room(self) -> bool:
        pipe = self._outgoing
        room = not pipe.frames or pipe.buffered_bytes < self._network.window_bytes
        return pipe.ended is not None or (room and not pipe.stalled and not self._network.is_frozen(pipe))

    def _has_frame(self) -> bool:
        pipe = self._incoming
        return pipe.ended is not None or (bool(pipe.frames) and not self._network.is_frozen(pipe))

    async def _until(self, pipe: Pipe, condition: Callable[[], bool]) -> None:
        if condition():
            return
        limit_s = self._network.progress_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await pipe.changed.wait()
        except TimeoutError:
            why = f"no progress for {limit_s:g} s"
            self.end(why)
            raise StreamClosed(self.remote, why) from None
