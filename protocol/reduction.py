"""Performs what the round machine asks of the all-reduce: one exchange at a time, and fetches of missing results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from . import exchange as xchg
from .chunks import Contribution
from .exchange import Attempt, Exchange, ExchangeCounters, ExchangeEvent, ExchangeHost, ExchangeSettings, SpanInbox
from .exchange_points import journal
from .identity import PeerId
from .messages import Accepted
from .outcomes import Observe
from .oversight import Oversight
from .record import Plan, Record, SpanResult
from .result_signer import ResultSigner
from .result_transfer import ResultFetcher, ResultServer, ResultsUnavailable
from .results import ResultBuffer, ResultStore
from .round_machine import Event, ExchangeEnded, ResultsHeld, SpanLost, SpanReduced
from .spec import Genesis
from .transport import RemoteProtocolError
from .wakeup import Signal

_FIRST_RETRY_S, _RETRY_S = 0.05, 0.5
_DISK_RETRY_S = 2.0


class Reduction:
    """The round driver's hands. ``feed`` takes machine events, ``observe`` journal points.

    ``sources``: whom to ask for a span of the present round's result, in order, after so many seconds of asking.
    """

    def __init__(
        self,
        host: ExchangeHost,
        *,
        store: ResultStore,
        signer: ResultSigner,
        oversight: Oversight,
        sources: Callable[[int, float], Sequence[PeerId]],
        feed: Callable[[Event], None],
        observe: Observe,
    ) -> None:
        self._host, self._store, self._signer, self._oversight = host, store, signer, oversight
        self._sources, self._feed, self._observe = sources, feed, observe
        self._inbox = SpanInbox(host)
        self._server = ResultServer(host.transport, store)
        self._fetcher = ResultFetcher(host.transport, store, host.executor, self._note_misconduct)
        self._exchanges: dict[str, asyncio.Task[None]] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._vouches: dict[ResultsHeld, asyncio.Task[None]] = {}
        """Audits of this round, by what the machine hears after them."""
        self._changed = Signal()
        """Fired when a span is held and when an exchange ends."""
        self.counters: ExchangeCounters | None = None
        """Of the exchange that ran last."""

    @property
    def settings(self) -> ExchangeSettings:
        """Of the exchanges that begin from now on."""
        return self._host.settings

    def obey(self, settings: ExchangeSettings) -> None:
        """From now on these limits hold."""
        self._host = replace(self._host, settings=settings)

    def start(self, plan: Plan, contribution: Contribution | None, rules: Genesis) -> None:
        """Begin a plan's exchange under the rules that the plan is made under."""
        plan_id = plan.content_id()
        task = asyncio.create_task(self._run(plan, plan_id, contribution, rules))
        self._exchanges[plan_id] = task
        task.add_done_callback(lambda _: self._end(plan_id))

    def _end(self, plan_id: str) -> None:
        self._exchanges.pop(plan_id, None)
        self._changed.fire()

    def cancel(self, plan_id: str) -> None:
        """Stop an exchange; what is held stays until the round is decided."""
        self._oversight.forget(plan_id)
        if task := self._exchanges.get(plan_id):
            task.cancel()

    def fetch(self, record: Record) -> None:
        """Get missing results in the background and report `ResultsHeld`."""
        record_id = record.content_id()
        if record_id not in self._fetches:
            task = asyncio.create_task(self._fetch(record))
            self._fetches[record_id] = task
            task.add_done_callback(lambda _: self._fetches.pop(record_id, None))

    async def obtain(self, record: Record, patience_s: float) -> memoryview | None:
        """Encoded mean of ``record``, fetched if need be; None if nobody could serve it within ``patience_s``."""
        try:
            async with asyncio.timeout(patience_s):
                await self._complete(record)
        except TimeoutError:
            return None
        return self._store.mean(record)

    def report_held(self, record: Record) -> None:
        """Tell the machine after a restart what the disk still holds."""
        if self._store.keep(record):
            self._feed(_held(record))

    def vouches(self, before: Accepted | None, now: Accepted | None) -> bool:
        """Whether a vote for ``now`` may follow one for ``before``: its results are durable here, and will stay (S2).

        They may have been here and be gone, if a flood of attempts came since.
        """
        return now is None or now == before or self._store.keep(now.record)

    def decided(self, record: Record) -> None:
        """The round is over: forget rival attempts and old rounds. The exchange of ``record`` itself may go on and
        serve members that are slower than the quorum."""
        plan_id, record_id = record.plan.content_id(), record.content_id()
        rivals = [task for other, task in self._exchanges.items() if other != plan_id]
        for task in (*rivals, *(task for other, task in self._fetches.items() if other != record_id)):
            task.cancel()
        for task in self._vouches.values():
            task.cancel()
        self._vouches.clear()
        self._oversight.forget(plan_id)
        self._host.recent.decide(record.plan)
        self._oversight.decided(record)
        self._store.prune(record)
        self._signer.prune(record.plan.round)

    async def close(self) -> None:
        tasks = [*self._exchanges.values(), *self._fetches.values(), *self._vouches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _run(self, plan: Plan, plan_id: str, contribution: Contribution | None, rules: Genesis) -> None:
        try:
            exchange = Exchange(self._host, self._inbox, self._attempt(plan, contribution, rules))
            self._oversight.keep(exchange)
            self.counters = exchange.counters
            await exchange.run()
        except OSError as error:
            self._observe("exchange.failed", {"why": f"cannot keep results on disk: {error.strerror}"})
        except RemoteProtocolError as error:
            self._note_misconduct(error)
        self._feed(ExchangeEnded(plan_id))

    def exchange(
        self,
        plan: Plan,
        contribution: Contribution,
        rules: Genesis,
        result: ResultBuffer,
        on_event: Callable[[ExchangeEvent], None],
    ) -> Exchange:
        """An exchange of a group, whose leader alone gets the means; to be run by the caller.

        Raises `RemoteProtocolError` for an unsound plan.
        """
        attempt = Attempt(
            plan=plan,
            contribution=contribution,
            result=result,
            trust=rules.trust,
            limits=rules.limits,
            sign=partial(self._signer.sign, plan.round),
            on_event=on_event,
            receivers=frozenset((plan.leader,)),
        )
        exchange = Exchange(self._host, self._inbox, attempt)
        self._oversight.keep(exchange)
        return exchange

    def counted(self, plan: Plan) -> None:
        """What a group has reduced by ``plan`` is part of the decided round: whoever sends it again copies."""
        self._host.recent.decide(plan)

    async def inspect(self, record: Record, mean: memoryview) -> tuple[set[PeerId], set[PeerId]]:
        """Audit a group's ``mean``: owners that have lied, and owners that do not show what they have averaged."""
        return await self._oversight.inspect(record, mean)

    def _attempt(self, plan: Plan, contribution: Contribution | None, rules: Genesis) -> Attempt:
        return Attempt(
            plan=plan,
            contribution=contribution,
            result=self._store.attempt(plan),
            trust=rules.trust,
            limits=rules.member_limits,
            sign=partial(self._signer.sign, plan.round),
            on_event=_Translator(plan, self._feed, self._observe, self._note_held, self._begin_vouching),
        )

    def _note_held(self, plan: Plan, result: SpanResult) -> None:
        """A span is here, with what its owner has signed."""
        self._oversight.hear(plan, result)
        self._changed.fire()

    async def _fetch(self, record: Record) -> None:
        await self._complete(record)
        self._begin_vouching(record)

    def _begin_vouching(self, record: Record) -> None:
        """Audit what is held, once; then the machine hears of it, and may vote."""
        held = _held(record)
        if held not in self._vouches:
            self._vouches[held] = asyncio.create_task(self._vouch(record, held))
        elif self._vouches[held].done():
            self._feed(held)

    async def _vouch(self, record: Record, held: ResultsHeld) -> None:
        await self._oversight.vouch(record, self._store.mean(record))
        self._feed(held)

    async def _complete(self, record: Record) -> None:
        """Until every span is durable here: from a running exchange, or from whoever has it."""
        await self._await_exchange(record)
        now_s, pause_s = asyncio.get_running_loop().time, _FIRST_RETRY_S
        began_s = now_s()
        while self._store.missing(record):
            try:
                await self._fetcher.fetch_from(record, lambda span: self._sources(span, now_s() - began_s))
            except ResultsUnavailable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S)
            except OSError as error:  # a full disk may have room again
                self._observe("exchange.failed", {"why": f"cannot keep results on disk: {error.strerror}"})
                await asyncio.sleep(_DISK_RETRY_S)

    async def _await_exchange(self, record: Record) -> None:
        """Give the record's own exchange, if it still runs, the time of one stalled stream; two must not write."""
        running = self._exchanges.get(record.plan.content_id())
        if running is None:
            return
        try:
            async with asyncio.timeout(self.settings.contact_timeout_s):
                while self._store.missing(record) and not running.done():
                    await self._changed.wait()
        except TimeoutError:
            running.cancel()
            await asyncio.wait({running})

    def _note_misconduct(self, error: RemoteProtocolError) -> None:
        self._observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})


def _held(record: Record) -> ResultsHeld:
    return ResultsHeld(record.plan.content_id(), tuple(result.digest for result in record.results))


class _Translator:
    """Turns an exchange's events into the machine's, and notes what is held."""

    def __init__(
        self,
        plan: Plan,
        feed: Callable[[Event], None],
        observe: Observe,
        on_held: Callable[[Plan, SpanResult], None],
        on_complete: Callable[[Record], None],
    ) -> None:
        self._plan, self._plan_id, self._feed, self._observe = plan, plan.content_id(), feed, observe
        self._on_held, self._on_complete = on_held, on_complete
        self._results: dict[int, SpanResult] = {}

    def __call__(self, event: ExchangeEvent) -> None:
        journal(event, self._observe)
        match event:
            case xchg.SpanReduced():
                self._feed(SpanReduced(event.result))
            case xchg.SpanHeld():
                self._hold(event)
            case xchg.SpanLost():
                self._feed(SpanLost(self._plan_id, event.span, event.why))
            case _:
                pass

    def _hold(self, event: xchg.SpanHeld) -> None:
        self._results[event.span] = event.result
        self._on_held(self._plan, event.result)
        if len(self._results) == len(self._plan.spans):
            results = tuple(self._results[index] for index in range(len(self._plan.spans)))
            self._on_complete(Record(plan=self._plan, results=results))
