"""The audit of owners: before it votes, a member recomputes a few chunks of other owners' means, chosen in private.

Nobody can know which chunks a member will look at, so that an owner that alters a share s of its span passes n auditors
of k chunks each (`sample_size`) with a probability of (1 − s)^(n·k) at most. What a mean must be is a function of the
plan and of the committed contributions (`evidence.true_mean`); the owner keeps those until the round is decided and
shows them with their proofs, and where it does not, each member shows its own. A chunk that differs is a `Lie` that
convinces anybody.

On an ``audit`` stream the auditor asks for a chunk at a time (plan id, chunk as 4 bytes); the answer is `payload.NO`,
or `payload.YES`, a frame with one byte per member of the plan (1 if its part follows), and the parts (`evidence.Part`),
whose sizes follow from the grid.

An audit never holds up a round for longer than its time limit: a member that could not get its sample votes and says
so. An owner that *refuses* its sample (or shows something else than what was committed to) is complained about.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from .chunks import ChunkGrid, span_chunks, span_range, tree_of
from .commitments import Root
from .evidence import Lie, LieHeader, Part, included_members, part_bytes, true_mean
from .exchange import Exchange
from .identity import PeerId
from .offload import off_loop
from .payload import NO, YES, read_answer, read_payload, write_payload
from .quotas import AUDIT_STREAMS_PER_PEER
from .record import Plan, Record, SpanResult
from .spec import Genesis, TrustConfig
from .stream_limit import StreamLimit
from .transport import Buffer, ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport

PROTOCOL = "audit"
_REQUEST = struct.Struct("<32sI")
_RANDOM = random.SystemRandom()


def sample_size(trust: TrustConfig, grid: ChunkGrid, num_members: int, generator: random.Random = _RANDOM) -> int:
    """How many chunks a member audits in this round, so that audits cost what the run allows on average.

    Each costs the encoded chunks of all members. Where not even one fits (a model of a few chunks), one is drawn in
    that fraction of the rounds: a liar cannot tell in which, and is caught a few rounds later.
    """
    fitting = trust.audited_share * grid.total_encoded / (num_members * grid.encoded_bytes(0))
    whole = int(fitting)
    return min(trust.audited_chunks, whole + (generator.random() < fitting - whole))


def draw(plan: Plan, me: PeerId, count: int, generator: random.Random = _RANDOM) -> dict[int, list[int]]:
    """At most ``count`` chunks of others' spans at random, by span: one of each span first, in random order."""
    others = [index for index, span in enumerate(plan.spans) if span.owner != me]
    generator.shuffle(others)
    chunks = {index: _shuffled(plan, index, generator) for index in others}
    firsts = [(index, chunks[index].pop()) for index in others]
    rest = [(index, chunk) for index in others for chunk in chunks[index][: max(0, count - len(others))]]
    generator.shuffle(rest)
    drawn: dict[int, list[int]] = {}
    for index, chunk in (*firsts, *rest)[:count]:
        drawn.setdefault(index, []).append(chunk)
    return drawn


def _shuffled(plan: Plan, index: int, generator: random.Random) -> list[int]:
    span = plan.spans[index]
    chunks = range(span.first_chunk, span.first_chunk + span.num_chunks)
    return generator.sample(chunks, len(chunks))


@dataclass
class Findings:
    """What an audit of one record has shown."""

    num_drawn: int = 0
    num_checked: int = 0
    received_bytes: int = 0
    lasted_s: float = 0.0
    lies: list[Lie] = field(default_factory=list[Lie])
    refused: dict[int, str] = field(default_factory=dict[int, str])
    """Span -> what its owner did instead of showing what it has reduced."""
    unobtained: dict[PeerId, str] = field(default_factory=dict[PeerId, str])
    """Owners whose samples could not be had, without anybody having refused them."""


async def _late(jobs: Sequence[asyncio.Task[None]], limit_s: float) -> list[int]:
    """Wait for the jobs, and cancel those that are not done in time: their indices."""
    try:
        late = (await asyncio.wait(jobs, timeout=limit_s))[1] if jobs else set[asyncio.Task[None]]()
    finally:
        for job in jobs:
            job.cancel()
    await asyncio.gather(*(job for job in jobs if job not in late))
    return [index for index, job in enumerate(jobs) if job in late]


class _Refused(Exception):
    """The peer says, or shows, that it does not have what it has signed for."""


class Auditor:
    """One node's audits, and its answers to those of others."""

    def __init__(
        self, me: PeerId, grid: ChunkGrid, transport: Transport, executor: Executor, max_chunks_served: int
    ) -> None:
        self._me, self._grid, self._transport, self._executor = me, grid, transport, executor
        self.max_chunks_served = max_chunks_served
        """Requests of one peer about one plan that are answered."""
        self._shown: dict[str, Exchange] = {}
        self._num_served: Counter[tuple[str, PeerId]] = Counter()
        self._limit = StreamLimit(AUDIT_STREAMS_PER_PEER)
        transport.serve(PROTOCOL, self._handle)

    def keep(self, exchange: Exchange) -> None:
        """Answer for this exchange until `forget`."""
        self._shown[exchange.plan_id] = exchange

    def forget(self, plan_id: str) -> None:
        """The round is decided or the contribution withdrawn: its bytes may change from now on."""
        if self._shown.pop(plan_id, None) is not None:
            self._num_served = Counter({key: n for key, n in self._num_served.items() if key[0] != plan_id})

    # --- answering ----------------------------------------------------------------------------------------------------

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            while await self._answer(stream):
                pass

    async def _answer(self, stream: ByteStream) -> bool:
        """False after a no: auditors ask once per stream, and questions that are not counted must not be for free."""
        request = await stream.read(_REQUEST.size)
        if len(request) != _REQUEST.size:
            raise RemoteProtocolError(stream.remote, "malformed audit request")
        plan_id, chunk = _REQUEST.unpack(request)
        exchange = self._shown.get(plan_id.hex())
        if exchange is None or stream.remote not in exchange.plan.roster or chunk >= self._grid.num_chunks:
            await stream.write(NO)
            return False
        self._count(stream.remote, exchange.plan_id)
        parts = exchange.exhibit(chunk)
        await stream.write(YES)
        await stream.write(bytes(part is not None for part in parts))
        for part in parts:
            if part is not None:
                await write_payload(stream, part.encode())
        return True

    def _count(self, peer: PeerId, plan_id: str) -> None:
        self._num_served[plan_id, peer] += 1
        if self._num_served[plan_id, peer] > self.max_chunks_served:
            raise RemoteProtocolError(peer, "audits more chunks than the run's rules say")

    # --- asking -------------------------------------------------------------------------------------------------------

    async def audit(self, record: Record, mean: memoryview, genesis: Genesis, limit_s: float) -> Findings:
        """Recompute a sample of the encoded ``mean`` of ``record``, in at most ``limit_s``."""
        started_s, findings = time.perf_counter(), Findings()
        count = sample_size(genesis.trust, self._grid, len(record.plan.members))
        drawn = draw(record.plan, self._me, count)
        findings.num_drawn = sum(map(len, drawn.values()))
        jobs = [
            asyncio.create_task(self._audit_span(record, record.results[span], chunks, mean, genesis, findings))
            for span, chunks in drawn.items()
        ]
        for span in await _late(jobs, limit_s):
            findings.unobtained[record.plan.spans[list(drawn)[span]].owner] = f"not within {limit_s:g} s"
        findings.lasted_s = time.perf_counter() - started_s
        return findings

    async def _audit_span(
        self,
        record: Record,
        result: SpanResult,
        chunks: Sequence[int],
        mean: memoryview,
        genesis: Genesis,
        findings: Findings,
    ) -> None:
        """Look at some chunks of a span; its owner is asked first, then each member for its own part."""
        owner = record.plan.spans[result.span].owner
        for chunk in chunks:
            try:
                parts = await self._ask(owner, record.plan, result, chunk, findings)
            except _Refused as refusal:
                findings.refused[result.span] = str(refusal)
                parts = {}
            except (PeerUnreachable, StreamClosed) as error:
                findings.unobtained[owner] = error.why
                parts = {}
            parts = await self._complete(record.plan, result, chunk, parts, findings)
            if parts is None:
                findings.unobtained.setdefault(owner, "its members do not show what they have sent")
                continue
            lie = await off_loop(self._executor, self._compare, record, result, chunk, mean, genesis, parts)
            findings.num_checked += 1
            if lie is not None:
                findings.lies.append(lie)
                return

    async def _complete(
        self, plan: Plan, result: SpanResult, chunk: int, parts: dict[int, Part], findings: Findings
    ) -> dict[int, Part] | None:
        """The parts that the owner did not show, from the members that they are of; None if one is not to be had."""
        for index in included_members(result):
            if index in parts:
                continue
            try:
                parts |= await self._ask(plan.members[index].peer, plan, result, chunk, findings, only=index)
            except (_Refused, PeerUnreachable, StreamClosed):
                return None
        return parts

    async def _ask(
        self, peer: PeerId, plan: Plan, result: SpanResult, chunk: int, findings: Findings, only: int | None = None
    ) -> dict[int, Part]:
        """Verified parts of ``peer``: all that ``result`` includes, or ``only`` one. Raises `_Refused` without them."""
        wanted = included_members(result) if only is None else [only]
        if peer == self._me:
            return self._own(plan, chunk, wanted)
        stream = await self._transport.open(peer, PROTOCOL)
        try:
            await stream.write(_REQUEST.pack(bytes.fromhex(result.plan), chunk))
            if not await read_answer(stream):
                raise _Refused("it does not show what it has averaged")
            parts = await self._read_parts(stream, plan, chunk, findings)
        except RemoteProtocolError as error:
            raise _Refused(f"{error.rule} {error.detail}".strip()) from None
        finally:
            await stream.close()
        if not set(wanted) <= parts.keys():
            raise _Refused("it does not show all that it has averaged")
        return {index: parts[index] for index in wanted}

    def _own(self, plan: Plan, chunk: int, wanted: Sequence[int]) -> dict[int, Part]:
        exchange = self._shown.get(plan.content_id())
        parts = {} if exchange is None else dict(enumerate(exchange.exhibit(chunk)))
        found = {index: part for index in wanted if (part := parts.get(index)) is not None}
        if len(found) < len(wanted):
            raise _Refused("this node has not kept its own contribution")
        return found

    async def _read_parts(self, stream: ByteStream, plan: Plan, chunk: int, findings: Findings) -> dict[int, Part]:
        flags = await stream.read(len(plan.members))
        if len(flags) != len(plan.members) or set(flags) - {0, 1}:
            raise RemoteProtocolError(stream.remote, "malformed audit answer")
        num_bytes = part_bytes(self._grid.num_chunks, chunk, self._grid.encoded_bytes(chunk))
        parts: dict[int, Part] = {}
        for index in (index for index, flag in enumerate(flags) if flag):
            data = await read_payload(stream, num_bytes)
            findings.received_bytes += num_bytes
            parts[index] = await off_loop(self._executor, self._check, stream.remote, plan, index, chunk, data)
        return parts

    def _check(self, peer: PeerId, plan: Plan, index: int, chunk: int, data: Buffer) -> Part:
        member, num_chunks = plan.members[index], self._grid.num_chunks
        try:
            part = Part.decode(data, num_chunks, chunk)
        except ValueError as error:
            raise RemoteProtocolError(peer, "malformed part", str(error)) from None
        if not part.is_bound_to(Root(member.commitment, member.squared_norm), num_chunks, chunk):
            raise RemoteProtocolError(peer, "shows other bytes than were committed to", f"chunk {chunk}")
        return part

    def _compare(
        self,
        record: Record,
        result: SpanResult,
        chunk: int,
        mean: memoryview,
        genesis: Genesis,
        parts: Mapping[int, Part],
    ) -> Lie | None:
        """The lie, if ``chunk`` of the mean is not what ``parts`` give (runs in the executor)."""
        grid, contributions = self._grid, tuple(parts[index] for index in included_members(result))
        honest = true_mean(genesis, grid, record.plan, result, chunk, contributions)
        if honest == bytes(mean[grid.encoded_range(chunk)]):
            return None
        span = record.plan.spans[result.span]
        chunks = span_chunks(grid, span)
        tree = tree_of(grid, mean[span_range(grid, span)], chunks)
        data, place = bytes(mean[grid.encoded_range(chunk)]), chunk - chunks.start
        header = LieHeader(plan=record.plan, result=result, chunk=chunk, squared_norm=tree.root.squared_norm)
        return Lie(header, Part(tree.leaves[place], tree.proof(place, 1), data), contributions)
