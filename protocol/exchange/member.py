"""A member's side of a span that another peer owns: send my chunks, receive the mean, both at once."""

from __future__ import annotations

import asyncio
import time

from ...kernels.codec import InvalidEncoding
from ..chunks import Contribution, leaf_of, span_chunks
from ..commitments import Leaf, Tree
from ..parsing import Unreadable, parse
from ..record import SpanResult
from ..signed_results import is_signed
from ..transport import Buffer, ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed
from . import wire
from .context import ExchangeContext
from .events import FirstChunkSent, SelfExcluded, SpanHeld, SpanLost


class SpanMember:
    """Exchanges one span with its owner."""

    def __init__(self, context: ExchangeContext, span: int, contribution: Contribution) -> None:
        self._context, self._attempt, self._host = context, context.attempt, context.host
        self.span = span
        self._owner = self._attempt.plan.spans[span].owner
        self._chunks = span_chunks(self._host.grid, self._attempt.plan.spans[span])
        self._contribution = contribution
        self._leaves: list[Leaf] = []
        """Of the chunks of the mean that have arrived."""
        self._num_resets = 0

    async def run(self) -> SpanResult | SpanLost | None:
        """The span's result once it is durable here; `SpanLost` if the owner fails; None if it excluded this node.

        None as well where this node is no receiver of means.
        """
        try:
            stream = await self._host.transport.open(self._owner, wire.PROTOCOL)
        except PeerUnreachable as error:
            return self._lose(f"unreachable: {error.why}")
        try:
            result = await self._exchange(stream)
        except StreamClosed as error:
            return self._lose(error.why)
        except RemoteProtocolError as error:
            return self._lose(f"{error.rule} {error.detail}".strip(), error.rule)
        finally:
            await stream.close()
        if result is None or not self._is_for_us:
            return None
        await self._context.hold(self.span, result)
        self._attempt.on_event(SpanHeld(self.span, result))
        return result

    @property
    def _is_for_us(self) -> bool:
        return self._attempt.gives_means_to(self._host.me)

    def _lose(self, why: str, rule: str | None = None) -> SpanLost:
        lost = SpanLost(self.span, self._owner, why[: wire.MAX_REASON_BYTES], rule)
        self._attempt.on_event(lost)
        return lost

    async def _exchange(self, stream: ByteStream) -> SpanResult | None:
        sender = asyncio.create_task(self._send(stream))
        try:
            return await self._receive(stream)
        finally:
            sender.cancel()
            await asyncio.wait({sender})

    async def _send(self, stream: ByteStream) -> None:
        contribution = self._contribution
        try:
            first, stop = self._chunks.start, self._chunks.stop
            proof = contribution.tree.proof(first, stop - first)
            header = wire.SpanHeader(self._attempt.plan_id, self.span, contribution.leaves[first:stop] + proof)
            await self._context.write(stream, header.encode())
            for chunk in self._chunks:
                await self._context.write_payload(stream, contribution.encoded[self._host.grid.encoded_range(chunk)])
                self._context.say_once(FirstChunkSent(self.span))
        except StreamClosed:
            # Whatever the owner had to say about it, the receiving half reads.
            return

    async def _receive(self, stream: ByteStream) -> SpanResult | None:
        limit = wire.max_control_bytes(self._attempt.plan)
        while True:
            started_s = time.perf_counter()
            frame = await wire.Control.read(stream, limit)
            self._context.counters.wait_s += time.perf_counter() - started_s
            match frame.tag:
                case wire.CHUNK:
                    await self._receive_chunk(stream, frame.argument)
                case wire.RESET:
                    self._reset()
                case wire.KEEPALIVE:
                    pass
                case wire.EXCLUDED:
                    why = frame.text[: wire.MAX_REASON_BYTES].decode(errors="replace")
                    self._attempt.on_event(SelfExcluded(self.span, self._owner, why))
                    return None
                case wire.FINAL:
                    return await self._accept(stream, frame.text)
                case _:
                    raise RemoteProtocolError(self._owner, "unknown control frame")

    def _reset(self) -> None:
        self._num_resets += 1
        if self._num_resets > len(self._attempt.plan.members):
            raise RemoteProtocolError(self._owner, "more resets than members")
        self._leaves.clear()

    async def _receive_chunk(self, stream: ByteStream, position: int) -> None:
        if position != len(self._leaves) or position >= len(self._chunks):
            raise RemoteProtocolError(self._owner, "chunk out of order", f"{position}, not {len(self._leaves)}")
        chunk = self._chunks[position]
        data = await self._context.read_payload(stream, self._host.grid.encoded_bytes(chunk))
        leaf = await self._context.off_loop(self._check, chunk, data)
        self._attempt.result.write_chunk(chunk, data)
        self._leaves.append(leaf)

    def _check(self, chunk: int, data: Buffer) -> Leaf:
        """Refuse a mean that no encoder produces, and hash it (runs in the executor)."""
        started_s = time.perf_counter()
        try:
            self._host.grid.codec.check(data, self._host.grid.chunk_length(chunk))
        except InvalidEncoding as error:
            raise RemoteProtocolError(self._owner, "invalid encoding", f"mean of chunk {chunk}: {error}") from None
        leaf = leaf_of(self._host.grid, chunk, data)
        self._context.counters.check_s += time.perf_counter() - started_s
        return leaf

    async def _accept(self, stream: ByteStream, text: bytes) -> SpanResult:
        result = self._parse(text)
        if self._is_for_us and len(self._leaves) != len(self._chunks):
            raise RemoteProtocolError(self._owner, "final frame before the last chunk")
        if self._is_for_us and result.digest != Tree(self._leaves).root.digest:
            raise RemoteProtocolError(self._owner, "mean does not match its digest")
        await self._context.write(stream, wire.ACKNOWLEDGED)
        return result

    def _parse(self, text: bytes) -> SpanResult:
        plan = self._attempt.plan
        try:
            result = parse(SpanResult, text)
        except Unreadable:
            raise RemoteProtocolError(self._owner, "malformed span result") from None
        is_mine = result.plan == self._attempt.plan_id and result.span == self.span
        if not is_mine or len(result.included) != len(plan.members) or not any(result.included):
            raise RemoteProtocolError(self._owner, "span result of another plan")
        if not is_signed(result, self._owner):
            raise RemoteProtocolError(self._owner, "span result without its owner's signature")
        return result
