"""One attempt of a round's all-reduce on one node, and the inbox that streams from other members arrive at.

Every member streams every span to its owner and gets the mean back on the same stream while it still sends: per peer
2(N−1)/N of the encoded size in each direction, as in a ring, but a slow peer delays only what it owns (butterfly
all-reduce; Ryabinin et al. 2021, "Moshpit SGD", and hivemind's averager use the same pattern).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..chunks import ChunkGrid, covers
from ..evidence import Part
from ..identity import PeerId
from ..record import Plan, SpanResult
from ..stream_limit import StreamLimit
from ..tasks import run_all
from ..transport import ByteStream, RemoteProtocolError
from ..wakeup import Signal
from . import wire
from .context import Attempt, ExchangeContext, ExchangeHost
from .events import ExchangeCounters, ExchangeReport, SpanLost
from .member import SpanMember
from .owner import SpanOwner


class SpanInbox:
    """Serves ``span`` streams and hands each to the exchange of its plan; one per node.

    A stream may come before its plan does and then waits for `ExchangeSettings.contact_timeout_s`.
    """

    def __init__(self, host: ExchangeHost) -> None:
        self._grid, self._settings = host.grid, host.settings
        self._exchanges: dict[str, Exchange] = {}
        self._limit = StreamLimit(self._settings.max_streams_per_peer)
        self._changed = Signal()
        host.transport.serve(wire.PROTOCOL, self._handle)

    def attach(self, exchange: Exchange) -> None:
        self._exchanges[exchange.plan_id] = exchange
        self._changed.fire()

    def detach(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange.plan_id, None)

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            header = await wire.SpanHeader.read(stream, self._grid.num_chunks)
            exchange = await self._exchange_of(header, stream)
            if exchange is not None:
                await exchange.serve(stream, header)

    async def _exchange_of(self, header: wire.SpanHeader, stream: ByteStream) -> Exchange | None:
        try:
            async with asyncio.timeout(self._settings.contact_timeout_s):
                while header.plan_id not in self._exchanges:
                    await self._wait_or_keep_alive(stream)
        except TimeoutError:
            return None
        return self._exchanges[header.plan_id]

    async def _wait_or_keep_alive(self, stream: ByteStream) -> None:
        if not await self._changed.wait_for(self._settings.keepalive_interval_s):
            await stream.write(wire.Control(wire.KEEPALIVE).encode())


class Exchange:
    """Carries out one plan on this node.

    Events are delivered in order by plain calls in the event loop. A failing member costs only its own contribution, a
    failing owner only its spans; neither raises. Cancelling `run` ends all streams of the plan.

    Raises `RemoteProtocolError` naming the leader for a plan that does not fit the grid or weighs nothing.
    """

    def __init__(self, host: ExchangeHost, inbox: SpanInbox, attempt: Attempt) -> None:
        check_plan(attempt.plan, host.grid)
        host.recent.begin(attempt.plan)
        if not _is_counted_on(attempt, host.me):
            attempt = replace(attempt, contribution=None)
        self._context = ExchangeContext(host, attempt)
        self._inbox = inbox
        spans = enumerate(attempt.plan.spans)
        self._owners = {index: SpanOwner(self._context, index) for index, span in spans if span.owner == host.me}
        self._streams: set[asyncio.Task[None]] = set()

    @property
    def plan(self) -> Plan:
        """What it carries out."""
        return self._context.attempt.plan

    @property
    def plan_id(self) -> str:
        return self._context.attempt.plan_id

    @property
    def counters(self) -> ExchangeCounters:
        return self._context.counters

    def exhibit(self, chunk: int) -> list[Part | None]:
        """Per member of the plan, the encoded ``chunk`` of its contribution with its proof, if this node can show it.

        As owner of a reduced span all that the mean is over, else this node's own.
        """
        for owner in self._owners.values():
            if (parts := owner.exhibit(chunk)) is not None:
                return parts
        host, contribution = self._context.host, self._context.attempt.contribution
        part = None if contribution is None else Part.of(contribution, host.grid, chunk)
        return [part if member.peer == host.me else None for member in self.plan.members]

    async def run(self) -> ExchangeReport:
        """Returns when every span is durable or lost here, and every member that still listens has been served.

        Raises OSError when results cannot be made durable (full or failing disk).
        """
        self._inbox.attach(self)
        try:
            work = {index: owner.run() for index, owner in self._owners.items()}
            work |= {member.span: member.run() for member in self._members()}
            outcomes = dict(zip(work, await run_all(work.values()), strict=True))
            while self._streams:
                await asyncio.wait(set(self._streams))
            return self._report(outcomes)
        finally:
            self._inbox.detach(self)
            await self._end_streams()

    def _members(self) -> list[SpanMember]:
        contribution = self._context.attempt.contribution
        if contribution is None:
            return []
        others = [index for index in range(len(self.plan.spans)) if index not in self._owners]
        return [SpanMember(self._context, index, contribution) for index in others]

    async def serve(self, stream: ByteStream, header: wire.SpanHeader) -> None:
        """Handle a member's stream; returns when it is finished or the exchange has ended."""
        owner = self._owners.get(header.span)
        if owner is None:
            raise RemoteProtocolError(stream.remote, "span is owned by another peer", f"span {header.span}")
        task = asyncio.create_task(owner.serve(stream, header))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _end_streams(self) -> None:
        for task in self._streams:
            task.cancel()
        if self._streams:
            await asyncio.wait(set(self._streams))

    def _report(self, outcomes: dict[int, SpanResult | SpanLost | None]) -> ExchangeReport:
        held = {span: outcome for span, outcome in outcomes.items() if isinstance(outcome, SpanResult)}
        lost = {span: outcome for span, outcome in outcomes.items() if isinstance(outcome, SpanLost)}
        return ExchangeReport(held, lost, self._context.counters)


def check_plan(plan: Plan, grid: ChunkGrid) -> None:
    """Raise `RemoteProtocolError` (of the leader) for a plan that no honest leader makes on this grid."""
    if not covers(grid, plan.spans):
        raise RemoteProtocolError(plan.leader, "spans do not cover the grid")
    if len({member.peer for member in plan.members}) != len(plan.members):
        raise RemoteProtocolError(plan.leader, "member named twice")
    if not any(member.tokens for member in plan.members):
        raise RemoteProtocolError(plan.leader, "plan without tokens")


def _is_counted_on(attempt: Attempt, me: PeerId) -> bool:
    """Whether the plan counts on exactly the contribution that we have, and quotes what others may check of it."""
    mine = attempt.contribution
    if mine is None:
        return False
    said = (mine.commitment, mine.num_inner_steps, mine.inner_state)
    return said in ((m.commitment, m.num_inner_steps, m.inner_state) for m in attempt.plan.members if m.peer == me)
