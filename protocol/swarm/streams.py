"""Length-framed streams over a raw libp2p stream.

A frame is four bytes of big-endian length, then the payload. The dialler's first frame is a hello and the listener's
first frame a welcome; only then does a stream count as open, because libp2p "opens" streams even to a stopped process.
There is no half-close in p2pd: after one side ends, the other direction is lost too, so an end of the stream is always
reported as `StreamClosed`, and both sides agree in-band on the last frame.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .. import transport as contract
from ..identity import PeerId
from ..payload import SLOWEST_BYTES_PER_S

HEADER_BYTES = 4
HELLO = b"atoll/1 hello "
WELCOME = b"atoll/1 welcome "
REFUSAL = b"atoll/1 refused "
MAX_HELLO_BYTES = 1024
_PIECE_BYTES = 256 << 10
"""Written between two waits for the peer to read; progress is judged per piece."""
_READER_LIMIT = 1 << 20
"""asyncio's default of 64 KiB costs a third more CPU per byte (pause and resume of the socket)."""

T = TypeVar("T")


class SwarmStream:
    """`transport.ByteStream` over p2pd. Not to be written (or read) by two tasks at once.

    Cancelling a write, or a read that has begun to receive a frame, ends the stream.
    """

    def __init__(
        self,
        remote: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        traffic: contract.Traffic,
        progress_timeout_s: float,
        is_relayed: bool = False,
    ) -> None:
        self.is_relayed = is_relayed
        self._remote = remote
        self._reader = reader
        self._writer = writer
        self._traffic = traffic
        self._progress_timeout_s = progress_timeout_s
        self._closed = False
        with contextlib.suppress(AttributeError):  # not public; without it only slower
            reader._limit = max(reader._limit, _READER_LIMIT)  # type: ignore[attr-defined]  # pyright: ignore

    @property
    def remote(self) -> PeerId:
        return self._remote

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def write(self, frame: contract.Buffer) -> None:
        """Send one frame. Raises ValueError above `MAX_FRAME_BYTES`, `StreamClosed` when the peer is gone or stuck."""
        view = memoryview(frame).cast("B")
        if view.nbytes > contract.MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {view.nbytes} bytes is over the limit of {contract.MAX_FRAME_BYTES}")
        try:
            self._writer.write(view.nbytes.to_bytes(HEADER_BYTES, "big"))
            for start in range(0, view.nbytes, _PIECE_BYTES):
                self._writer.write(view[start : start + _PIECE_BYTES])
                await self._within_limit(self._writer.drain(), "the peer did not read")
            if not view.nbytes:
                await self._within_limit(self._writer.drain(), "the peer did not read")
        except (OSError, RuntimeError) as error:
            raise self._end(f"cannot write ({_reason(error)})") from None
        except asyncio.CancelledError:
            self.abort()  # a part of a frame would corrupt all that follows
            raise
        self._traffic.count_sent(self._remote, HEADER_BYTES + view.nbytes)

    async def read(self, max_bytes: int) -> bytes:
        """Receive one frame of at most ``max_bytes``; see `transport.ByteStream.read`."""
        header = await self._read_exactly(HEADER_BYTES, is_start=True)
        num_bytes = int.from_bytes(header, "big")
        if num_bytes > max_bytes:
            await self.close()
            raise contract.RemoteProtocolError(
                self._remote, "frame too large", f"{num_bytes} bytes where at most {max_bytes} are allowed"
            )
        payload = await self._read_exactly(num_bytes) if num_bytes else b""
        self._traffic.count_received(self._remote, HEADER_BYTES + num_bytes)
        return payload

    async def close(self) -> None:
        """End both directions. What was written is still delivered if the peer reads it in the progress time."""
        self._end("closed here")

    def abort(self) -> None:
        """End at once and drop what is unsent."""
        self._closed = True
        with contextlib.suppress(Exception):
            self._writer.transport.abort()

    async def _read_exactly(self, num_bytes: int, is_start: bool = False) -> bytes:
        """``num_bytes`` bytes; memory grows with what has arrived, not with what was announced."""
        pieces: list[bytes] = []
        missing = num_bytes
        loop = asyncio.get_running_loop()
        # A frame whose bytes drip in is bounded too; between frames nothing is owed.
        end_s = loop.time() + self._progress_timeout_s + num_bytes / SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(self._progress_timeout_s) as limit:
                while missing:
                    piece = await self._reader.read(missing)
                    if not piece:
                        raise self._end("the peer ended it or died")
                    pieces.append(piece)
                    missing -= len(piece)
                    limit.reschedule(min(loop.time() + self._progress_timeout_s, end_s))
        except TimeoutError:
            raise self._end(f"nothing arrived for {self._progress_timeout_s:g} s") from None
        except contract.StreamClosed:
            raise
        except (OSError, RuntimeError) as error:
            raise self._end(f"cannot read ({_reason(error)})") from None
        except asyncio.CancelledError:
            if pieces or not is_start:  # between two frames nothing is lost and the stream can be read again
                self.abort()
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _within_limit(self, step: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._progress_timeout_s):
                return await step
        except TimeoutError:
            self.abort()
            raise contract.StreamClosed(self._remote, f"{what} for {self._progress_timeout_s:g} s") from None

    def _end(self, why: str) -> contract.StreamClosed:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):
                self._writer.close()
                if self._writer.transport.get_write_buffer_size():
                    # A peer that never reads must not hold the unsent bytes for ever.
                    asyncio.get_running_loop().call_later(self._progress_timeout_s, self._writer.transport.abort)
        return contract.StreamClosed(self._remote, why)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def greet(stream: SwarmStream, payload: bytes, timeout_s: float) -> bytes:
    """Dialler's side of the hello; returns what the listener's welcome carries.

    Raises `StreamClosed` if the peer's application does not answer in time or refuses.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await stream.write(HELLO + payload)
            answer = await stream.read(MAX_HELLO_BYTES)
    except TimeoutError:
        stream.abort()
        raise contract.StreamClosed(stream.remote, f"its application gave no answer within {timeout_s:g} s") from None
    if answer.startswith(REFUSAL):
        await stream.close()
        raise contract.StreamClosed(stream.remote, answer[len(REFUSAL) :].decode("utf-8", "replace")[:200])
    if not answer.startswith(WELCOME):
        stream.abort()
        raise contract.StreamClosed(stream.remote, "its application answered something else than a welcome")
    return answer[len(WELCOME) :]


async def receive_hello(stream: SwarmStream, timeout_s: float) -> bytes | None:
    """Listener's side, first half: the hello's payload, or None if none came in time or it is malformed."""
    try:
        async with asyncio.timeout(timeout_s):
            hello = await stream.read(MAX_HELLO_BYTES)
    except (TimeoutError, contract.StreamClosed, contract.RemoteProtocolError):
        return None
    return hello[len(HELLO) :] if hello.startswith(HELLO) else None


async def welcome(stream: SwarmStream, payload: bytes = b"") -> None:
    """Listener's side, second half."""
    await stream.write(WELCOME + payload)


async def refuse(stream: SwarmStream, why: str) -> None:
    """Answer a hello with a reason and end the stream."""
    await stream.write(REFUSAL + why.encode())
    await stream.close()


OpenStream = Callable[[PeerId, str, bytes], Awaitable[tuple[SwarmStream, bytes]]]
"""(peer, protocol, hello's payload) to (stream, welcome's payload). Raises `PeerUnreachable`."""
