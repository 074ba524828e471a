"""Span results by digest, from any peer that holds them: the ``result`` stream, both ends.

The client sends a digest (32 bytes); the server answers `HAVE` and the span's bytes, or `HAVE_NOT`. The client knows
the length from the plan and checks the digest, so it does not matter whom it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .chunks import DIGEST_BYTES, ChunkGrid, span_digest
from .exchange.wire import pieces, read_payload
from .identity import PeerId
from .messages import Record
from .results import ResultBuffer, ResultStore
from .transport import Buffer, ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport

PROTOCOL = "result"
HAVE, HAVE_NOT = b"Y", b"N"
_FRAME_BYTES = 1 << 20
_MAX_STREAMS_PER_PEER = 8


class ResultServer:
    """Serves every held span to whoever names its digest."""

    def __init__(self, transport: Transport, store: ResultStore) -> None:
        self._store = store
        self._num_streams: dict[PeerId, int] = {}
        transport.serve(PROTOCOL, self._handle)

    async def _handle(self, stream: ByteStream) -> None:
        number = self._num_streams.get(stream.remote, 0)
        if number >= _MAX_STREAMS_PER_PEER:
            raise RemoteProtocolError(stream.remote, "too many streams", f"{number} are open")
        self._num_streams[stream.remote] = number + 1
        try:
            await self._answer(stream)
        finally:
            self._num_streams[stream.remote] -= 1

    async def _answer(self, stream: ByteStream) -> None:
        digest = await stream.read(DIGEST_BYTES)
        data = self._store.find(digest.hex())
        await stream.write(HAVE_NOT if data is None else HAVE)
        for piece in pieces(data or b"", _FRAME_BYTES):
            await stream.write(piece)
        await stream.read(1)  # the client ends the stream once it has everything


async def fetch_span(transport: Transport, peer: PeerId, digest: str, num_bytes: int) -> Buffer | None:
    """The span's bytes, verified; None if ``peer`` is unreachable, does not have them or sends others."""
    try:
        stream = await transport.open(peer, PROTOCOL)
    except PeerUnreachable:
        return None
    try:
        await stream.write(bytes.fromhex(digest))
        if await stream.read(1) != HAVE:
            return None
        data = await read_payload(stream, num_bytes)
        return data if await asyncio.to_thread(span_digest, data) == digest else None
    except (StreamClosed, RemoteProtocolError):
        return None
    finally:
        await stream.close()


async def fetch_missing(transport: Transport, store: ResultStore, record: Record, peers: Sequence[PeerId]) -> bool:
    """Try to get every missing span of ``record`` from ``peers`` in turn; whether all are durably here now."""
    for index in store.missing(record):
        await _fetch_from_any(transport, store, record, index, peers)
    return not store.missing(record)


async def _fetch_from_any(
    transport: Transport, store: ResultStore, record: Record, index: int, peers: Sequence[PeerId]
) -> None:
    span, digest = record.plan.spans[index], record.results[index].digest
    encoded = store.grid.span_range(span)
    for peer in sorted(peers, key=lambda peer: peer != span.owner):
        data = await fetch_span(transport, peer, digest, encoded.stop - encoded.start)
        if data is not None:
            await asyncio.to_thread(_put, store.attempt(record.plan), store.grid, record, index, data)
            return


def _put(buffer: ResultBuffer, grid: ChunkGrid, record: Record, index: int, data: Buffer) -> None:
    span, view = record.plan.spans[index], memoryview(data)
    start = grid.span_range(span).start
    for chunk in grid.span_chunks(span):
        encoded = grid.encoded_range(chunk)
        buffer.write_chunk(chunk, view[encoded.start - start : encoded.stop - start])
    buffer.hold(span, record.results[index].digest)
