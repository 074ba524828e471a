"""Copies of members' inner optimizer states on their way to those who check their steps.

On an ``inner_state`` stream the checker sends a digest (32 bytes), once; the answer is `payload.NO`, or `SHORT` or
`LONG` and the copy, whose two possible lengths both sides know from the model. It goes straight to disk: it is twice as
long as an encoded contribution. A copy is served from a file that does not change, so nobody's training waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from .chunks import DIGEST_BYTES
from .identity import PeerId
from .offload import off_loop
from .payload import FIRST_BYTES_PATIENCE_S, NO, SLOWEST_BYTES_PER_S
from .quotas import INNER_STATE_STREAMS_PER_PEER
from .stream_limit import StreamLimit
from .transport import MAX_FRAME_BYTES, ByteStream, RemoteProtocolError, Transport

PROTOCOL = "inner_state"
SHORT, LONG = b"S", b"L"
_FRAME_BYTES = 1 << 20
_TIMES_SERVED = 4
"""To one peer of one copy; a checker that was cut off asks again."""


class NotShown(Exception):
    """The member does not show what it has committed to, over a stream that it has accepted."""


class InnerStateServer:
    """Shows this node's own copies to members of the roster."""

    def __init__(
        self, transport: Transport, executor: Executor, roster: Callable[[], tuple[PeerId, ...]], sizes: tuple[int, int]
    ) -> None:
        self._executor, self._roster, self._sizes = executor, roster, sizes
        self._shown: dict[bytes, Path] = {}
        self._num_served: Counter[tuple[bytes, PeerId]] = Counter()
        self._limit = StreamLimit(INNER_STATE_STREAMS_PER_PEER)
        transport.serve(PROTOCOL, self._handle)

    def show(self, digest: str, path: Path) -> None:
        """From now on; of older copies only the last one is still shown."""
        self._shown.pop(bytes.fromhex(digest), None)
        self._shown[bytes.fromhex(digest)] = path
        while len(self._shown) > 2:
            del self._shown[next(iter(self._shown))]
        self._num_served = Counter({key: count for key, count in self._num_served.items() if key[0] in self._shown})

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            digest = await stream.read(DIGEST_BYTES)
            path = self._shown.get(digest)
            file = None if path is None or not self._may_see(stream.remote, digest) else await self._open(path)
            if file is None:
                await stream.write(NO)
                return
            with file:
                await self._send(stream, file)

    def _may_see(self, peer: PeerId, digest: bytes) -> bool:
        if peer not in self._roster():
            return False
        self._num_served[digest, peer] += 1
        return self._num_served[digest, peer] <= _TIMES_SERVED

    async def _open(self, path: Path) -> BinaryIO | None:
        try:
            return await off_loop(self._executor, path.open, "rb")
        except OSError:
            return None

    async def _send(self, stream: ByteStream, file: BinaryIO) -> None:
        piece = await off_loop(self._executor, file.read, _FRAME_BYTES)
        await stream.write(SHORT if len(piece) == self._sizes[0] else LONG)
        while piece:
            await stream.write(piece)
            piece = await off_loop(self._executor, file.read, _FRAME_BYTES)


async def fetch(
    transport: Transport, executor: Executor, peer: PeerId, digest: str, sizes: tuple[int, int], path: Path
) -> None:
    """Get a member's copy into ``path``, or leave nothing there.

    Raises `NotShown` for a refusal, other bytes, or a copy that does not come at a reasonable speed; `PeerUnreachable`,
    `StreamClosed`; OSError if the disk does not take it.
    """
    stream = await transport.open(peer, PROTOCOL)
    temporary = path.with_suffix(".part")
    try:
        await stream.write(bytes.fromhex(digest))
        num_bytes = await _announced(stream, sizes)
        limit_s = FIRST_BYTES_PATIENCE_S + num_bytes / SLOWEST_BYTES_PER_S
        async with asyncio.timeout(limit_s):
            await _receive(stream, executor, num_bytes, digest, temporary)
        temporary.replace(path)
    except TimeoutError:
        raise NotShown("it comes too slowly") from None
    except RemoteProtocolError as error:
        raise NotShown(f"{error.rule} {error.detail}".strip()) from None
    finally:
        temporary.unlink(missing_ok=True)
        await stream.close()


async def _announced(stream: ByteStream, sizes: tuple[int, int]) -> int:
    """How long the copy is."""
    answer = await stream.read(1)
    if answer == NO:
        raise NotShown("it does not show what its steps began with")
    if answer not in (SHORT, LONG):
        raise NotShown("malformed answer")
    return sizes[answer == LONG]


async def _receive(stream: ByteStream, executor: Executor, num_bytes: int, digest: str, path: Path) -> None:
    hasher = blake3()
    with path.open("wb") as file:
        while num_bytes:
            piece = await stream.read(min(num_bytes, MAX_FRAME_BYTES))
            if not piece:
                raise NotShown("empty frame inside a copy")
            hasher.update(piece)
            await off_loop(executor, file.write, piece)
            num_bytes -= len(piece)
    if hasher.hexdigest() != digest:
        raise NotShown("shows something else than it has committed to")
