"""The owner's side of a span: collect everybody's chunks, reduce them in plan order, stream the mean back.

Contributions stay encoded and are kept until the span is complete, so that the span can be reduced again without a
member that fails half way. Memory: (number of members) × (encoded bytes of the span), twice that for the mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...kernels.aggregation import LeftOut
from ...kernels.codec import Bytes, Float32Array, InvalidEncoding
from ..admission import Refusal, refusals
from ..aggregation import reduce_chunk
from ..chunks import chunk_digest, leaf_of, span_chunks
from ..commitments import Leaf, Root, Tree, narrow, verify
from ..evidence import Part
from ..identity import PeerId
from ..recent import Sample
from ..record import SpanResult
from ..result_signer import AlreadySigned
from ..transport import MAX_FRAME_BYTES, Buffer, ByteStream, RemoteProtocolError, StreamClosed
from ..wakeup import Signal
from ..weights import weights
from . import wire
from .context import ExchangeContext
from .copies import SpanSamples
from .events import FirstChunkReduced, MemberExcluded, MemberLeftOut, SpanHeld, SpanLost, SpanReduced
from .ledger import SpanLedger


@dataclass
class Generation:
    """The mean of the span's chunks over one set of members, as far as it has been reduced."""

    number: int
    means: list[Buffer] = field(default_factory=list[Buffer])
    """Encoded, in chunk order. Never changed once appended: senders read them while a newer generation grows."""
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    """By chunk; members by their index in the plan."""
    samples: list[Sample] = field(default_factory=list[Sample])
    """Of the mean, by chunk."""
    squared_error: float = 0.0
    squared_mean: float = 0.0


class SpanOwner:
    """Reduces one span of a plan that this node owns."""

    def __init__(self, context: ExchangeContext, span: int) -> None:
        self._context, self._attempt, self._host = context, context.attempt, context.host
        self._span = span
        self._chunks = span_chunks(self._host.grid, self._attempt.plan.spans[span])
        members = self._attempt.plan.members
        self._ledger = SpanLedger(len(members), len(self._chunks), self._weigh)
        self._index = {member.peer: index for index, member in enumerate(members)}
        self._received: list[list[Buffer]] = [[] for _ in members]
        self._proofs: dict[int, tuple[tuple[Leaf, ...], tuple[Leaf, ...]]] = {}
        """Member -> leaves of the span's chunks, and their proof."""
        self._samples = SpanSamples(self._host.recent, self._attempt.plan, self._chunks, self._attempt.trust)
        self._contacted: set[int] = set()
        self._generation = Generation(0)
        self._result: SpanResult | None = None
        self._lost: SpanLost | None = None
        self._changed = Signal()

    # Reducing

    async def run(self) -> SpanResult | SpanLost:
        """Reduce the span; returns when it is durable here, or lost because nobody's contribution is left."""
        timers = [asyncio.create_task(timer) for timer in (self._contact_timer(), self._delivery_timer())]
        try:
            self._refuse_unfit()
            self._take_own()
            while not self._ledger.is_complete:
                if self._ledger.is_hopeless:
                    return self._give_up("no contribution with any weight is left")
                await self._reduce_next()
            return await self._finish()
        finally:
            for timer in timers:
                timer.cancel()

    def _weigh(self, included: Sequence[bool]) -> Sequence[float]:
        return weights(self._attempt.plan, included, self._attempt.trust, self._attempt.limits)

    def _refuse_unfit(self) -> None:
        """Leave out whom the plan itself shows to be unfit, as every owner does."""
        for member, refusal in refusals(self._attempt.plan.members).items():
            self._refuse(member, refusal)

    def _take_own(self) -> None:
        mine = self._index.get(self._host.me)
        contribution = self._attempt.contribution
        if mine is None:
            return
        self._contacted.add(mine)
        if mine in self._ledger.excluded:
            return
        if contribution is None:
            self._exclude(mine, "no contribution", "this node no longer has what it announced")
            return
        first, count = self._chunks.start, len(self._chunks)
        leaves = contribution.leaves[first : first + count]
        self._proofs[mine] = (leaves, contribution.tree.proof(first, count))
        for chunk in self._chunks:
            self._received[mine].append(contribution.encoded[self._host.grid.encoded_range(chunk)])
            self._ledger.receive(mine)

    async def _reduce_next(self) -> None:
        chunk = self._ledger.next_chunk
        if chunk is None:
            await self._changed.wait()
            return
        generation = self._current_generation()
        members, shares = self._ledger.members, self._ledger.weights
        datas = [self._received[member][chunk] for member in members]
        if self._attempt.trust.copy_cosine and await self._refuse_copies(chunk, members, datas, shares):
            return
        mean = await self._context.off_loop(self._reduce, generation, chunk, members, datas, shares)
        if self._ledger.reduce(generation.number):
            generation.means.append(mean)
            self._context.say_once(FirstChunkReduced(self._span))
            self._changed.fire()

    async def _refuse_copies(self, position: int, members: list[int], datas: list[Buffer], shares: list[float]) -> bool:
        """Whether somebody is left out because it sends what was sent before, going by the chunks up to this one."""
        weighty = [member for member, share in zip(members, shares, strict=True) if share > 0]
        encoded = dict(zip(members, datas, strict=True))
        found = await self._context.off_loop(self._samples.look, position, encoded, weighty)
        for member, refusal in found.items():
            self._refuse(member, refusal)
        return bool(found)

    def _current_generation(self) -> Generation:
        if self._generation.number != self._ledger.generation:
            self._generation = Generation(self._ledger.generation)
        return self._generation

    def _reduce(
        self, generation: Generation, chunk: int, members: list[int], datas: list[Buffer], shares: list[float]
    ) -> Buffer:
        """Encoded mean of a chunk (runs in the executor)."""
        grid, counters = self._host.grid, self._context.counters
        started_s = time.perf_counter()
        reduced = reduce_chunk(grid, self._chunks[chunk], datas, shares, self._attempt.trust.aggregation)
        counters.reduce_s += time.perf_counter() - started_s
        generation.leaves.append(leaf_of(grid, self._chunks[chunk], reduced.encoded.data))
        generation.left_out += [each._replace(contribution=members[each.contribution]) for each in reduced.left_out]
        generation.samples.append(self._host.recent.sampler.pick(self._chunks[chunk], reduced.values))
        self._measure_error(generation, reduced.values, reduced.encoded)
        return reduced.encoded.data

    def _measure_error(self, generation: Generation, mean: Float32Array, encoded: Bytes) -> None:
        decoded = np.empty_like(mean)
        self._host.grid.codec.decode(encoded, decoded)
        decoded -= mean
        generation.squared_error += float(np.dot(decoded, decoded))
        generation.squared_mean += float(np.dot(mean, mean))

    def _report_left_out(self) -> None:
        """Whom the aggregation took no notice of, once per member."""
        for member in sorted({left_out.contribution for left_out in self._generation.left_out}):
            each = [left_out for left_out in self._generation.left_out if left_out.contribution == member]
            worst = min(each, key=lambda left_out: left_out.value - left_out.limit)
            peer, rule = self._peer(member), self._attempt.trust.aggregation
            self._attempt.on_event(MemberLeftOut(self._span, peer, rule, len(each), worst.value, worst.limit))

    async def _finish(self) -> SpanResult | SpanLost:
        self._context.counters.squared_error += self._generation.squared_error
        self._context.counters.squared_mean += self._generation.squared_mean
        digest = Tree(self._generation.leaves).root.digest
        included = self._ledger.included
        self._report_left_out()
        result = SpanResult(plan=self._attempt.plan_id, span=self._span, included=included, digest=digest)
        await self._remember()
        try:
            self._result = await self._context.off_loop(self._attempt.sign, result)
        except AlreadySigned as error:
            return self._give_up(str(error))
        self._attempt.on_event(SpanReduced(self._span, self._result))
        self._changed.fire()
        for chunk, mean in zip(self._chunks, self._generation.means, strict=True):
            self._attempt.result.write_chunk(chunk, mean)
        await self._context.hold(self._span, self._result)
        self._attempt.on_event(SpanHeld(self._span, self._result))
        return self._result

    async def _remember(self) -> None:
        """Keep what this span is made of, for as long as later rounds are compared with it."""
        if self._attempt.trust.copy_cosine:
            done = await self._context.off_loop(self._samples.finish, self._ledger.members, self._generation.samples)
            self._host.recent.offer(self._attempt.plan, done)

    def exhibit(self, chunk: int) -> list[Part | None] | None:
        """What the mean of ``chunk`` is over, per member of the plan; None if this is not known (yet)."""
        if self._result is None or chunk not in self._chunks:
            return None
        flags = enumerate(self._result.included)
        return [self._part(member, chunk) if is_in else None for member, is_in in flags]

    def _part(self, member: int, chunk: int) -> Part:
        first, num_chunks = self._chunks.start, self._host.grid.num_chunks
        leaves, proof = self._proofs[member]
        return Part(
            leaves[chunk - first],
            narrow(num_chunks, first, leaves, proof, chunk),
            self._received[member][chunk - first],
        )

    def _give_up(self, why: str) -> SpanLost:
        self._lost = SpanLost(self._span, self._host.me, why)
        self._attempt.on_event(self._lost)
        self._changed.fire()
        return self._lost

    # Excluding

    def _exclude(self, member: int, rule: str, detail: str = "", *, misconduct: bool = False) -> None:
        if self._ledger.exclude(member, rule):
            self._say_excluded(member, MemberExcluded(self._span, self._peer(member), rule, detail, misconduct))

    def _refuse(self, member: int, refusal: Refusal) -> None:
        """Leave a member out for what it contributes, whether or not all of it is here."""
        rule, detail = refusal.rule, str(refusal)
        if self._ledger.refuse(member, f"{rule}: {detail}"):
            measured = refusal.value, refusal.limit
            self._say_excluded(member, MemberExcluded(self._span, self._peer(member), rule, detail, False, *measured))

    def _say_excluded(self, member: int, event: MemberExcluded) -> None:
        self._received[member].clear()
        self._attempt.on_event(event)
        self._changed.fire()

    def _peer(self, member: int) -> PeerId:
        return self._attempt.plan.members[member].peer

    async def _contact_timer(self) -> None:
        """Go on without members that open no stream: at once when they are dead, else when the time is over."""
        limit_s, step_s = self._host.settings.contact_timeout_s, self._host.settings.keepalive_interval_s
        waited_s = 0.0
        while waited_s < limit_s:
            await asyncio.sleep(min(step_s, limit_s - waited_s))
            waited_s += step_s
            for member in self._missing():
                if not self._host.is_alive(self._attempt.plan.members[member].peer):
                    self._exclude(member, "dead", "it opened no stream, and its heartbeats have stopped")
        for member in self._missing():
            self._exclude(member, "no contact", f"it opened no stream within {limit_s:g} s of the plan")

    def _missing(self) -> list[int]:
        return [member for member in self._ledger.members if member not in self._contacted]

    async def _delivery_timer(self) -> None:
        limit_s = self._attempt.plan.attempt_timeout_s * self._host.settings.contribution_share
        await asyncio.sleep(limit_s)
        for member in self._ledger.members:
            self._exclude(member, "too slow", f"its contribution was not complete within {limit_s:g} s")

    # One member's stream

    async def serve(self, stream: ByteStream, header: wire.SpanHeader) -> None:
        """Receive a member's contribution while streaming the mean back. Never raises on the member's account."""
        member = self._index.get(stream.remote)
        if member is None or member in self._contacted:
            rule = "not a member of the plan" if member is None else "second stream for one span"
            raise RemoteProtocolError(stream.remote, rule)
        self._contacted.add(member)
        receiver = asyncio.create_task(self._receive(stream, member, header))
        refusal = None
        try:
            refusal = await self._send_mean(stream, member)
        except StreamClosed as error:
            self._exclude(member, "connection lost", error.why)
        except RemoteProtocolError as error:
            self._exclude(member, error.rule, error.detail, misconduct=True)
        finally:
            receiver.cancel()
            await asyncio.wait({receiver})
        if not receiver.cancelled():
            receiver.result()
        if refusal is not None:
            await self._dismiss(stream, refusal)

    async def _dismiss(self, stream: ByteStream, why: str) -> None:
        """Tell a member that it is out, and let it close the stream, so that the reason is not lost on the way."""
        with contextlib.suppress(StreamClosed, RemoteProtocolError, TimeoutError):
            await self._control(stream, wire.EXCLUDED, text=why.encode()[: wire.MAX_REASON_BYTES])
            async with asyncio.timeout(self._host.settings.keepalive_interval_s):
                while True:
                    await stream.read(MAX_FRAME_BYTES)

    async def _receive(self, stream: ByteStream, member: int, header: wire.SpanHeader) -> None:
        try:
            await self._receive_chunks(stream, member, header)
        except StreamClosed as error:
            self._exclude(member, "connection lost", error.why)
        except RemoteProtocolError as error:
            self._exclude(member, error.rule, error.detail, misconduct=True)

    async def _receive_chunks(self, stream: ByteStream, member: int, header: wire.SpanHeader) -> None:
        leaves = self._committed_leaves(stream, member, header)
        for chunk, leaf in zip(self._chunks, leaves, strict=True):
            data = await self._context.read_payload(stream, self._host.grid.encoded_bytes(chunk))
            await self._context.off_loop(self._check, stream, chunk, leaf, data)
            if member in self._ledger.excluded:
                return
            self._received[member].append(data)
            self._ledger.receive(member)
            self._changed.fire()

    def _committed_leaves(self, stream: ByteStream, member: int, header: wire.SpanHeader) -> tuple[Leaf, ...]:
        committed, num_chunks = self._attempt.plan.members[member], len(self._chunks)
        root = Root(committed.commitment, committed.squared_norm)
        leaves, proof = header.entries[:num_chunks], header.entries[num_chunks:]
        if len(leaves) == num_chunks and verify(root, self._host.grid.num_chunks, self._chunks.start, leaves, proof):
            self._proofs[member] = (leaves, proof)
            return leaves
        raise RemoteProtocolError(stream.remote, "leaves do not match the commitment")

    def _check(self, stream: ByteStream, chunk: int, leaf: Leaf, data: Buffer) -> None:
        """Refuse a chunk that is not what was committed to or that no encoder produces (runs in the executor)."""
        started_s = time.perf_counter()
        grid, num_elements = self._host.grid, self._host.grid.chunk_length(chunk)
        if chunk_digest(data) != leaf.digest:
            raise RemoteProtocolError(stream.remote, "chunk does not match its digest", f"chunk {chunk}")
        try:
            grid.codec.check(data, num_elements)
        except InvalidEncoding as error:
            raise RemoteProtocolError(stream.remote, "invalid encoding", f"chunk {chunk}: {error}") from None
        squared_norm = grid.codec.squared_norm(data, num_elements)
        if squared_norm != leaf.squared_norm:
            detail = f"chunk {chunk}: {squared_norm:g}, committed to {leaf.squared_norm:g}"
            raise RemoteProtocolError(stream.remote, "squared norm is not the committed one", detail)
        self._context.counters.check_s += time.perf_counter() - started_s

    async def _send_mean(self, stream: ByteStream, member: int) -> str | None:
        """Stream the mean as it grows, up to the acknowledgement. Returns why the member is refused, if it is."""
        generation, position = self._generation, 0
        gives_mean = self._attempt.gives_means_to(stream.remote)
        while (refusal := self._refusal(member)) is None:
            current = self._current_generation()
            if current is not generation:
                if position:
                    await self._control(stream, wire.RESET, current.number)
                generation, position = current, 0
            elif gives_mean and position < len(generation.means):
                await self._control(stream, wire.CHUNK, position)
                await self._context.write_payload(stream, generation.means[position])
                position += 1
            elif self._result is not None:
                await self._control(stream, wire.FINAL, text=self._result.canonical())
                await self._read_acknowledgement(stream)
                return None
            else:
                await self._wait_or_keep_alive(stream)
        return refusal

    def _refusal(self, member: int) -> str | None:
        return self._lost.why if self._lost is not None else self._ledger.excluded.get(member)

    async def _wait_or_keep_alive(self, stream: ByteStream) -> None:
        if not await self._changed.wait_for(self._host.settings.keepalive_interval_s):
            await self._control(stream, wire.KEEPALIVE)

    async def _control(self, stream: ByteStream, tag: bytes, argument: int = 0, text: bytes = b"") -> None:
        await self._context.write(stream, wire.Control(tag, argument, text).encode())

    async def _read_acknowledgement(self, stream: ByteStream) -> None:
        if await stream.read(len(wire.ACKNOWLEDGED)) != wire.ACKNOWLEDGED:
            raise RemoteProtocolError(stream.remote, "malformed acknowledgement")
