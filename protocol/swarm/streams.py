"""Length-framed streams, over a raw libp2p stream or (`direct`) beside it.

A frame is four bytes of big-endian length, then the payload. The dialler's first frame is a hello and the listener's
first frame a welcome; only then does a stream count as open, because libp2p "opens" streams even to a stopped process.
There is no half-close in p2pd: after one side ends, the other direction is lost too, so an end of the stream is always
reported as `StreamClosed`, and both sides agree in-band on the last frame.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .. import transport as contract
from ..bandwidth import NO_CAPS, Caps
from ..identity import PeerId
from ..payload import SLOWEST_BYTES_PER_S
from . import addresses

HEADER_BYTES = 4
HELLO = b"atoll/1 hello "
WELCOME = b"atoll/1 welcome "
REFUSAL = b"atoll/1 refused "
MAX_HELLO_BYTES = 1024
_READER_LIMIT = 1 << 20
"""asyncio's default of 64 KiB costs a third more CPU per byte (pause and resume of the socket)."""

T = TypeVar("T")


class FramedStream(abc.ABC):
    """`transport.ByteStream` over something that carries bytes. Not to be written (or read) by two tasks at once.

    Cancelling a write, or a read that has begun to receive a frame, ends the stream.
    """

    def __init__(
        self, remote: PeerId, traffic: contract.Traffic, progress_timeout_s: float, caps: Caps = NO_CAPS
    ) -> None:
        self._remote = remote
        self._traffic = traffic
        self._progress_timeout_s = progress_timeout_s
        self._caps = caps
        self._closed = False

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
        header, piece_bytes = view.nbytes.to_bytes(HEADER_BYTES, "big"), self._caps.sending.piece_bytes
        try:
            for start in range(0, max(1, view.nbytes), piece_bytes):
                piece = view[start : start + piece_bytes]
                await self._caps.sending.spend(len(header) + piece.nbytes)
                await self._within_limit(self._put(header, piece), "the peer did not read")
                header = b""
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
        self._begin_frame(num_bytes)
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

    async def _read_exactly(self, num_bytes: int, is_start: bool = False) -> bytes:
        """``num_bytes`` bytes; memory grows with what has arrived, not with what was announced."""
        pieces: list[bytes] = []
        missing, cap = num_bytes, self._caps.receiving
        loop = asyncio.get_running_loop()
        # A frame whose bytes drip in is bounded too; between frames nothing is owed.
        end_s = loop.time() + self._progress_timeout_s + num_bytes / SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(self._progress_timeout_s) as limit:
                while missing:
                    taken = await self._take(min(missing, cap.piece_bytes))
                    if not taken:
                        raise self._end("the peer ended it or died")
                    pieces += taken
                    num_taken = sum(map(len, taken))
                    missing -= num_taken
                    wait_s = cap.charge(num_taken)
                    if wait_s:
                        end_s += wait_s  # our own cap is not the peer's fault
                        limit.reschedule(None)
                        await cap.sleep(wait_s)
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
            self._finish()
        return contract.StreamClosed(self._remote, why)

    def abort(self) -> None:
        """End at once and drop what is unsent."""
        self._closed = True
        self._drop()

    @abc.abstractmethod
    def _begin_frame(self, num_bytes: int) -> None:
        """So many bytes were announced; raises `StreamClosed` if that means something else."""

    @abc.abstractmethod
    async def _put(self, header: bytes, piece: memoryview) -> None:
        """Send both; waits while the peer does not read. Raises `OSError` or `RuntimeError`."""

    @abc.abstractmethod
    async def _take(self, max_bytes: int) -> Sequence[bytes]:
        """Bytes that have arrived, at least one; nothing at the end. Raises `OSError` or `RuntimeError`."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """The stream ends; what was sent is still to be delivered. Never raises."""

    @abc.abstractmethod
    def _drop(self) -> None:
        """The stream ends and nothing needs to be delivered. Idempotent, never raises."""


class SwarmStream(FramedStream):
    """Over p2pd."""

    def __init__(
        self,
        remote: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        traffic: contract.Traffic,
        progress_timeout_s: float,
        address: str = "",
        caps: Caps = NO_CAPS,
    ) -> None:
        super().__init__(remote, traffic, progress_timeout_s, caps)
        self.address = address
        """Of the remote end of the connection, without the peer's id; empty if p2pd did not say."""
        self._reader = reader
        self._writer = writer
        with contextlib.suppress(AttributeError):  # not public; without it only slower
            reader._limit = max(reader._limit, _READER_LIMIT)  # type: ignore[attr-defined]  # pyright: ignore

    @property
    def is_relayed(self) -> bool:
        return addresses.is_relayed(self.address)

    def _begin_frame(self, num_bytes: int) -> None:
        pass

    async def _put(self, header: bytes, piece: memoryview) -> None:
        if header:
            self._writer.write(header)
        if piece.nbytes:
            self._writer.write(piece)
        await self._writer.drain()

    async def _take(self, max_bytes: int) -> Sequence[bytes]:
        piece = await self._reader.read(max_bytes)
        return (piece,) if piece else ()

    def _finish(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.close()
            if self._writer.transport.get_write_buffer_size():
                # A peer that never reads must not hold the unsent bytes for ever.
                asyncio.get_running_loop().call_later(self._progress_timeout_s, self._writer.transport.abort)

    def _drop(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Refused(contract.StreamClosed):
    """The peer's application answered a hello with a reason why not."""


async def greet(stream: FramedStream, payload: bytes, timeout_s: float) -> bytes:
    """Dialler's side of the hello; returns what the listener's welcome carries.

    Raises `StreamClosed` if the peer's application does not answer in time, and `Refused` if it refuses.
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
        raise Refused(stream.remote, answer[len(REFUSAL) :].decode("utf-8", "replace")[:200])
    if not answer.startswith(WELCOME):
        stream.abort()
        raise contract.StreamClosed(stream.remote, "its application answered something else than a welcome")
    return answer[len(WELCOME) :]


async def receive_hello(stream: FramedStream, timeout_s: float) -> bytes | None:
    """Listener's side, first half: the hello's payload, or None if none came in time or it is malformed."""
    try:
        async with asyncio.timeout(timeout_s):
            hello = await stream.read(MAX_HELLO_BYTES)
    except (TimeoutError, contract.StreamClosed, contract.RemoteProtocolError):
        return None
    return hello[len(HELLO) :] if hello.startswith(HELLO) else None


async def welcome(stream: FramedStream, payload: bytes = b"") -> None:
    """Listener's side, second half."""
    await stream.write(WELCOME + payload)


async def refuse(stream: FramedStream, why: str) -> None:
    """Answer a hello with a reason and end the stream."""
    await stream.write(REFUSAL + why.encode())
    await stream.close()


OpenStream = Callable[[PeerId, str, bytes], Awaitable[tuple[SwarmStream, bytes]]]
"""(peer, protocol, hello's payload) to (stream, welcome's payload). Raises `PeerUnreachable`."""
OpenRaw = Callable[[PeerId, str, bytes, float], Awaitable[tuple[SwarmStream, bytes]]]
"""The same, with the libp2p protocol's whole name and a time limit in seconds."""
ServeRaw = Callable[[SwarmStream, bytes, str], Awaitable[None]]
"""Gets a stream, the hello's payload and the address of the remote end."""
