"""One stream after another on a direct connection, framed as on libp2p.

Frames are the same, and so is their meaning. What differs is the end: a connection outlives its streams, so each side
ends a stream with the length `END` in place of a frame's, and reads away what the other had under way until that says
`END` too. A connection that ends before is the failure that it is on libp2p.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ... import transport as contract
from ...bandwidth import NO_CAPS, Caps
from ...identity import PeerId
from ...payload import SLOWEST_BYTES_PER_S
from ..streams import HEADER_BYTES, FramedStream
from .bundle import Carrier
from .connection import RECORD_BYTES

END = 0xFFFFFFFF
MAX_DISCARDED_BYTES = contract.MAX_FRAME_BYTES
"""What is read away at the end of a stream; with more under way it is cheaper to close the connection."""
_PATIENCE_BYTES = 160 << 10
"""Of a frame, before its receiver is woken. At 100 Mbit/s this halves what receiving costs."""
_HEAD_BYTES = RECORD_BYTES - HEADER_BYTES


class DirectStream(FramedStream):
    """``on_end`` is called once: with True if the connection can carry another stream after `settle`."""

    def __init__(
        self,
        remote: PeerId,
        connection: Carrier,
        traffic: contract.Traffic,
        progress_timeout_s: float,
        on_end: Callable[[bool], None],
        caps: Caps = NO_CAPS,
    ) -> None:
        super().__init__(remote, traffic, progress_timeout_s, caps)
        self._connection = connection
        self._on_end: Callable[[bool], None] | None = on_end
        self._num_owed = 0
        """Bytes of the frame that is being received."""
        self._is_writing = self._is_reading = False
        # At the slowest rate that counts as progress, so many bytes come well within the time limit.
        self._patience_bytes = max(1, min(_PATIENCE_BYTES, int(progress_timeout_s * SLOWEST_BYTES_PER_S / 2)))
        self._peer_ended = False

    async def write(self, frame: contract.Buffer) -> None:
        self._is_writing = True  # and it stays so if this fails half-way
        await super().write(frame)
        self._is_writing = False

    async def _put(self, header: bytes, piece: memoryview) -> None:
        self._require_open()
        if header:  # in one record with what follows
            head, piece = header + bytes(piece[:_HEAD_BYTES]), piece[_HEAD_BYTES:]
            await self._connection.send(head)
        if piece.nbytes and not await self._connection.send(piece):
            await asyncio.sleep(0)  # a peer that reads as fast as we write must not keep the loop for itself

    async def _take(self, max_bytes: int) -> Sequence[bytes]:
        self._require_open()
        self._is_reading = True
        try:
            pieces = await self._connection.receive(max_bytes, min(self._num_owed, self._patience_bytes))
        finally:
            self._is_reading = False
        self._num_owed -= sum(map(len, pieces))
        return pieces

    def _require_open(self) -> None:
        if self._on_end is None:
            raise ConnectionAbortedError("the stream has ended")

    def _begin_frame(self, num_bytes: int) -> None:
        if num_bytes == END:
            self._peer_ended, self._num_owed = True, 0
            raise self._end("the peer ended it")
        self._num_owed = num_bytes

    def _finish(self) -> None:
        # In the middle of a frame nobody knows where the next one begins.
        self._say_end(not (self._num_owed or self._is_writing or self._is_reading or self._connection.is_closed))

    def _drop(self) -> None:
        self._say_end(False)

    def _say_end(self, is_reusable: bool) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            if not is_reusable:
                self._connection.abort()
            on_end(is_reusable)

    async def settle(self) -> None:
        """Make the connection ready for another stream. Raises `OSError` if it cannot be."""
        await self._connection.send(END.to_bytes(HEADER_BYTES, "big"))
        left = MAX_DISCARDED_BYTES
        while not self._peer_ended:
            num_bytes = int.from_bytes(await self._discard(HEADER_BYTES), "big")
            self._peer_ended = num_bytes == END
            if not self._peer_ended:
                left -= HEADER_BYTES + num_bytes
                if left < 0:
                    raise ConnectionAbortedError("too much under way")
                await self._discard(num_bytes)

    async def _discard(self, num_bytes: int) -> bytes:
        """Read ``num_bytes`` away; returns the last few, which is all of a header."""
        last = b""
        while num_bytes:
            pieces = await self._connection.receive(min(num_bytes, RECORD_BYTES))
            if not pieces:
                raise ConnectionResetError("it ended the connection")
            num_bytes -= sum(map(len, pieces))
            last = (last + b"".join(pieces))[-HEADER_BYTES:]
        return last
