"""One attempt of a group's reduction, as its delegate carries it out: plan out, exchange, audit."""

from __future__ import annotations

import asyncio

from ..chunks import Contribution
from ..exchange import ExchangeEvent, SelfExcluded, SpanHeld, SpanLost
from ..exchange_points import journal
from ..identity import PeerId
from ..messages import GroupPlan
from ..offload import off_loop
from ..record import Plan, Record, SpanResult
from ..spec import Genesis
from ..wakeup import Signal
from .parts import GroupParts


class GroupAttempt:
    """`run` it, then look at who failed; `stop` it when the contributions may change."""

    def __init__(self, parts: GroupParts, plan: Plan, own: Contribution, genesis: Genesis) -> None:
        self._parts, self.plan, self._own, self._genesis = parts, plan, own, genesis
        self._held: dict[int, SpanResult] = {}
        self._changed = Signal()
        self._exchange: asyncio.Task[object] | None = None
        self.lost: set[PeerId] = set()
        """Owners that have failed, or do not show what they have averaged."""
        self.liars: set[PeerId] = set()
        """Owners whose means are not the means of what they were sent."""

    async def run(self) -> Record | None:
        """The group's result; None if an owner has failed or lied. Members are served until `stop`. Raises OSError."""
        parts, plan = self._parts, self.plan
        parts.mail.post([member.peer for member in plan.members if member.peer != parts.me], GroupPlan(plan=plan))
        buffer = await off_loop(parts.executor, parts.store.attempt, plan)
        exchange = parts.reduction.exchange(plan, self._own, self._genesis, buffer, self._note)
        self._exchange = asyncio.create_task(exchange.run())
        while self._record is None and not self.lost and not self._exchange.done():
            await self._changed.wait_for(self._genesis.timing.heartbeat_interval_s)
        if self._exchange.done():
            self._exchange.result()
        record = self._record
        return record if record is not None and await self._is_honest(record) else None

    @property
    def _record(self) -> Record | None:
        """What the group has reduced, once all of it is here."""
        spans = self.plan.spans
        if len(self._held) < len(spans):
            return None
        return Record(plan=self.plan, results=tuple(self._held[index] for index in range(len(spans))))

    async def _is_honest(self, record: Record) -> bool:
        self.liars, refusing = await self._parts.reduction.inspect(record, self._parts.store.mean(record))
        self.lost |= refusing
        return not self.liars and not refusing

    def _note(self, event: ExchangeEvent) -> None:
        journal(event, self._parts.points.observe)
        match event:
            case SpanHeld():
                self._held[event.span] = event.result
            case SpanLost() | SelfExcluded():  # of the latter the mean goes on without ours, and to the others only
                self.lost.add(event.owner)
            case _:
                pass
        self._changed.fire()

    async def stop(self) -> None:
        """End the exchange, and forget what was to be shown of it."""
        self._parts.reduction.cancel(self.plan.content_id())
        if self._exchange is not None:
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
