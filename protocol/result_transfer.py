"""Result spans by digest, from any peer that holds them: for voters that lack one, and for whoever missed a round.

On a ``result`` stream the client asks for a digest at a time (32 bytes); the answer is `payload.NO`, or `payload.YES`
and the bytes, whose number the client knows from the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from ..kernels.codec import InvalidEncoding
from .chunks import DIGEST_BYTES, covers, leaf_of, span_chunks
from .commitments import Leaf, Tree
from .identity import PeerId
from .offload import off_loop
from .payload import NO, YES, pieces, read_answer, read_payload, write_payload
from .quotas import RESULT_STREAMS_PER_PEER
from .record import Record
from .results import ResultBuffer, ResultStore
from .stream_limit import StreamLimit
from .tasks import run_all
from .transport import Buffer, ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport

PROTOCOL = "result"


class ResultsUnavailable(Exception):
    """No peer that was asked could give some spans of a record. An expected loss: try other peers, or later."""

    def __init__(self, record: Record, causes: dict[int, dict[PeerId, str]]) -> None:
        spans = ", ".join(
            f"span {span} ({'; '.join(f'…{peer[-5:]}: {why}' for peer, why in tried.items()) or 'no peer to ask'})"
            for span, tried in sorted(causes.items())
        )
        super().__init__(f"round {record.plan.round}: nobody could give {spans}")
        self.causes = causes
        """Span -> what each peer that was asked answered."""


class ResultServer:
    """Answers ``result`` streams from a store; one per node."""

    def __init__(
        self, transport: Transport, store: ResultStore, max_streams_per_peer: int = RESULT_STREAMS_PER_PEER
    ) -> None:
        self._store = store
        self._limit = StreamLimit(max_streams_per_peer)
        transport.serve(PROTOCOL, self._handle)

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            while True:
                await self._answer(stream)

    async def _answer(self, stream: ByteStream) -> None:
        digest = await stream.read(DIGEST_BYTES)
        if len(digest) != DIGEST_BYTES:
            raise RemoteProtocolError(stream.remote, "malformed result request")
        view = self._store.find(digest.hex())
        await stream.write(NO if view is None else YES)
        if view is not None:
            # Frames end where chunks end, so that the client can check chunk by chunk.
            for chunk in pieces(view, self._store.grid.encoded_bytes(0)):
                await write_payload(stream, chunk)


def rotated(peers: Sequence[PeerId], span: int) -> list[PeerId]:
    """``peers``, beginning with another one for each span."""
    first = span % len(peers) if peers else 0
    return [*peers[first:], *peers[:first]]


@dataclass
class ResultFetcher:
    """Completes records from other peers."""

    transport: Transport
    store: ResultStore
    executor: Executor
    on_misconduct: Callable[[RemoteProtocolError], None] = lambda _: None
    max_concurrent: int = 4

    async def fetch(self, record: Record, peers: Sequence[PeerId]) -> ResultBuffer:
        """As `fetch_from`; ``peers`` are asked in order, starting at another one for each span."""
        return await self.fetch_from(record, lambda span: rotated(peers, span))

    async def fetch_from(self, record: Record, sources: Callable[[int], Sequence[PeerId]]) -> ResultBuffer:
        """The buffer with all spans of ``record``, verified and durable; already held spans are not asked for again.

        ``sources``: whom to ask for a span, in order. Raises `ResultsUnavailable`, keeping what has arrived; ValueError
        for a record that does not fit the grid; OSError when the disk is full.
        """
        if not covers(self.store.grid, record.plan.spans):
            raise ValueError(f"record of round {record.plan.round} does not cover the grid")
        buffer = await off_loop(self.executor, self.store.attempt, record.plan)
        missing = self.store.missing(record)
        limit = asyncio.Semaphore(self.max_concurrent)
        answers = await run_all(self._fetch_span(record, span, sources(span), buffer, limit) for span in missing)
        causes = {span: tried for span, tried in zip(missing, answers, strict=True) if tried is not None}
        if causes:
            raise ResultsUnavailable(record, causes)
        return buffer

    async def _fetch_span(
        self, record: Record, span: int, peers: Sequence[PeerId], buffer: ResultBuffer, limit: asyncio.Semaphore
    ) -> dict[PeerId, str] | None:
        """None when the span is held, else what each peer answered."""
        tried: dict[PeerId, str] = {}
        buffer.forget(record.plan.spans[span])
        async with limit:
            for peer in (peer for peer in peers if peer != self.transport.peer_id):
                why = await self._try(record, span, peer, buffer)
                if why is None:
                    return None
                tried[peer] = why
        return tried

    async def _try(self, record: Record, span: int, peer: PeerId, buffer: ResultBuffer) -> str | None:
        try:
            stream = await self.transport.open(peer, PROTOCOL)
        except PeerUnreachable as error:
            return error.why
        try:
            return await self._transfer(stream, record, span, buffer)
        except StreamClosed as error:
            return error.why
        except RemoteProtocolError as error:
            self.on_misconduct(error)
            return error.rule
        finally:
            await stream.close()

    async def _transfer(self, stream: ByteStream, record: Record, span: int, buffer: ResultBuffer) -> str | None:
        digest = record.results[span].digest
        await stream.write(bytes.fromhex(digest))
        if not await read_answer(stream):
            return "does not have it"
        leaves: list[Leaf] = []
        grid = self.store.grid
        for chunk in span_chunks(grid, record.plan.spans[span]):
            data = await read_payload(stream, grid.encoded_bytes(chunk))
            leaves.append(await off_loop(self.executor, self._check, stream.remote, chunk, data))
            buffer.write_chunk(chunk, data)
        if Tree(leaves).root.digest != digest:
            raise RemoteProtocolError(stream.remote, "result does not match its digest", f"span {span}")
        await off_loop(self.executor, buffer.hold, record.plan.spans[span], digest)
        return None

    def _check(self, peer: PeerId, chunk: int, data: Buffer) -> Leaf:
        try:
            self.store.grid.codec.check(data, self.store.grid.chunk_length(chunk))
        except InvalidEncoding as error:
            raise RemoteProtocolError(peer, "invalid encoding", f"chunk {chunk}: {error}") from None
        return leaf_of(self.store.grid, chunk, data)
