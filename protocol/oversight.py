"""One node's watch over owners and leaders: what they have said, whether it is true, and what follows if it is not.

Brings together `audit` (recomputing), `docket` (evidence) and the comparison of signed statements, and turns proof into
the machine's `Proven`. The round loop asks `note` about each message and `vouch` before it lets the machine vote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from .amendments import RunRules
from .audit import Auditor, Findings
from .docket import Docket
from .event_queue import size_of
from .evidence import Evidence, Lie, TwoProposals, TwoResults, Verdict, ballot_of, contradict
from .evidence_store import EvidenceStore
from .exchange import Exchange, ExchangeHost
from .identity import PeerId
from .messages import PlanMessage, Proposal, SpanDone
from .outcomes import Observe
from .quotas import STATED_BYTES, STATED_BYTES_PER_PEER, Shares
from .record import Plan, Record, SpanResult
from .round_machine import Distrusted, Event, Proven, Received
from .signed_results import is_signed, says_the_same
from .spot_checks import SpotChecks
from .standing import Standing
from .tasks import Background
from .transport import RemoteProtocolError

K = TypeVar("K")
V = TypeVar("V")
_SHARE_OF_ATTEMPT = 0.1
"""Of an attempt's time an audit may take."""
_MAX_REMEMBERED = 1 << 13
_REQUESTS_PER_CHUNK = 2
"""Of an auditor to one peer: as owner, and as member of a span whose owner does not answer."""


class Oversight:
    """``feed`` takes machine events, ``observe`` journal points. `begin` before each round.

    ``shut_out`` refuses ejected peers whatever they send.
    """

    def __init__(
        self,
        host: ExchangeHost,
        rules: RunRules,
        *,
        store: EvidenceStore,
        spot_checks: SpotChecks,
        shut_out: Callable[[Iterable[PeerId]], None],
        feed: Callable[[Event], None],
        observe: Observe,
    ) -> None:
        self._rules, self._store, self._shut_out = rules, store, shut_out
        self._genesis = rules.genesis
        self._feed, self._observe = feed, observe
        self._spot_checks = spot_checks
        spot_checks.convict = self._charge
        self._roster: tuple[PeerId, ...] = ()
        self._auditor = Auditor(host.me, host.grid, host.transport, host.executor, self._max_requests())
        self._docket = Docket(
            host.grid,
            host.transport,
            store,
            host.executor,
            rules=lambda: self._rules,
            roster=lambda: self._roster,
            on_proven=self._note_proven,
            on_misconduct=self._note_misconduct,
        )
        self._ejected: frozenset[PeerId] = frozenset()
        self._plans: dict[str, Plan] = {}
        self._results: dict[tuple[str, int], SpanResult] = {}
        """What owners have signed in this round, as heard first."""
        self._statements: dict[tuple[PeerId, str, tuple[int, ...]], tuple[PlanMessage | Proposal, bytes]] = {}
        """What leaders have sent at each ballot of this round, as heard first."""
        self._stated = Shares(STATED_BYTES_PER_PEER, STATED_BYTES)
        self._reminded: set[tuple[PeerId, int, PeerId]] = set()
        """Leaders that were given evidence in this round: at which ballot, and against whom."""
        self._charged: set[PeerId] = set()
        """Peers against whom evidence is being verified."""
        self._background = Background()

    @property
    def proven(self) -> frozenset[PeerId]:
        """Peers against whom this node holds evidence."""
        return self._docket.proven

    def begin(self, rules: RunRules, standing: Standing) -> None:
        """A round begins (again): ejected peers are refused from now on, and what is of earlier rounds is forgotten."""
        self._rules, self._genesis = rules, rules.at(standing.round + 1)
        self._roster, self._ejected = standing.roster, frozenset(standing.ejected)
        self._auditor.max_chunks_served = self._max_requests()
        self._shut_out(standing.ejected)
        self._spot_checks.begin(self._genesis)
        self._store.prune(standing.ejected)
        self._plans.clear()
        self._results.clear()
        self._statements.clear()
        self._stated = Shares(STATED_BYTES_PER_PEER, STATED_BYTES)
        self._reminded.clear()

    def _max_requests(self) -> int:
        return _REQUESTS_PER_CHUNK * self._genesis.trust.audited_chunks

    def keep(self, exchange: Exchange) -> None:
        """Show others what this exchange is about, until `forget`."""
        self._auditor.keep(exchange)
        self._spot_checks.planned(exchange)

    def forget(self, plan_id: str) -> None:
        self._auditor.forget(plan_id)

    def decided(self, record: Record) -> None:
        """The round is over: contributions may change from now on."""
        self._spot_checks.decided(record)
        self.forget(record.plan.content_id())

    # --- statements ---------------------------------------------------------------------------------------------------

    def note(self, event: Received) -> bool:
        """Compare what a leader or an owner says with what it has said before. False: do not act on it now."""
        body = event.body
        if event.sender not in self._roster:
            return True  # the machine refuses it
        match body:
            case PlanMessage() | Proposal() if not self._compare(event, body):
                return False
            case PlanMessage():
                _remember(self._plans, body.plan.content_id(), body.plan)
                self._remind(event.sender, body.plan)
                return self._is_justified(event.sender, body.plan)
            case Proposal():
                is_coherent = {self.hear(body.record.plan, result) for result in body.record.results} <= {True}
                return self._is_justified(event.sender, body.record.plan) and is_coherent
            case SpanDone():
                plan = self._plans.get(body.result.plan)
                return plan is None or self.hear(plan, body.result)
            case _:
                return True

    def hear(self, plan: Plan, result: SpanResult) -> bool:
        """An owner has signed ``result``. False if it has signed another one, which is not proven yet."""
        if result.span >= len(plan.spans) or not is_signed(result, owner := plan.spans[result.span].owner):
            return True  # the machine refuses it
        known = _remember(self._results, (result.plan, result.span), result)
        if says_the_same(known, result) or owner in self.proven:
            return True
        self._charge(TwoResults(accused=owner, first=known, second=result))
        return False

    def _compare(self, event: Received, body: PlanMessage | Proposal) -> bool:
        """False: its sender says more than leaders do in a round; each would cost memory, and time for signatures."""
        if not event.raw:
            return True  # from our own chain
        key = (event.sender, body.kind, ballot_of(body))
        if key not in self._statements:
            if not self._stated.take(event.sender, size_of(event)):
                return False
            self._statements[key] = body, event.raw
        others = [self._statements.get((event.sender, kind, ballot_of(body))) for kind in ("plan", "proposal")]
        for earlier, raw in (other for other in others if other is not None):
            if contradict(earlier, body) and event.sender not in self.proven:
                self._charge(TwoProposals(accused=event.sender, first=raw.hex(), second=event.raw.hex()))
        return True

    def _is_justified(self, sender: PeerId, plan: Plan) -> bool:
        """Ask for the evidence that a plan's ejections rest on, as far as it is not here."""
        missing = set(plan.ejected) - self._ejected - self.proven
        if missing:
            self._background.spawn(self._docket.seek(missing, sender, self._roster))
        return not missing

    def _remind(self, leader: PeerId, plan: Plan) -> None:
        """Give a leader what it lacks that still counts on somebody who is proven to lie: no such plan gets our vote.

        It may have been out of reach when the evidence was spread. If the liar itself leads, the others lack it.
        """
        for accused in {PeerId(leader), *(PeerId(span.owner) for span in plan.spans)} & self.proven:
            if (leader, plan.ballot, accused) not in self._reminded:
                self._reminded.add((leader, plan.ballot, accused))
                receivers = (leader,) if leader != accused else self._roster
                self._background.spawn(self._docket.remind(accused, receivers))

    # --- audit --------------------------------------------------------------------------------------------------------

    async def vouch(self, record: Record, mean: memoryview) -> None:
        """Audit the means of ``record``; returns when a member may vote, or has found out why it must not."""
        if not self._genesis.trust.audited_chunks:
            return
        findings = await self._audit(record, mean)
        if findings.refused:  # who has decided the round has nothing to show any more: then the commit ends this here
            await asyncio.sleep(self._genesis.timing.heartbeat_interval_s)
        self._journal(record, findings)
        for lie in findings.lies:
            await self._prosecute(lie)
        refused = {span: why for span, why in findings.refused.items() if not _is_convicted(findings, span)}
        for span, why in refused.items():
            self._feed(Distrusted(record.plan.content_id(), span, why))
        if refused:  # others may settle it without us; until the next attempt this record gets no vote from here
            await asyncio.sleep(record.plan.attempt_timeout_s)

    async def inspect(self, record: Record, mean: memoryview) -> tuple[set[PeerId], set[PeerId]]:
        """Audit a group's mean: owners that have lied, and owners that do not show what they have averaged.

        Followers decide nothing, so nobody else needs a proof: their delegate does without them.
        """
        if not self._genesis.trust.audited_chunks:
            return set(), set()
        findings = await self._audit(record, mean)
        self._journal(record, findings)
        owners = [span.owner for span in record.plan.spans]
        return {PeerId(lie.accused) for lie in findings.lies}, {owners[span] for span in findings.refused}

    async def _audit(self, record: Record, mean: memoryview) -> Findings:
        timing = self._genesis.timing
        limit_s = min(timing.progress_timeout_s, timing.attempt_timeout_s * _SHARE_OF_ATTEMPT)
        return await self._auditor.audit(record, mean, self._genesis, limit_s)

    def _journal(self, record: Record, findings: Findings) -> None:
        counts = {"num_chunks": findings.num_checked, "num_drawn": findings.num_drawn}
        spent = {"received_bytes": findings.received_bytes, "lasted_s": findings.lasted_s}
        self._observe("audit.done", {**counts, **spent})
        for lie in findings.lies:
            self._observe("audit.lie", {"peer": lie.accused, "chunk": lie.header.chunk})
        for span, why in findings.refused.items():
            self._observe("audit.refused", {"peer": record.plan.spans[span].owner, "why": why})
        for peer, why in findings.unobtained.items():
            self._observe("audit.incomplete", {"peer": peer, "why": why})

    # --- evidence -----------------------------------------------------------------------------------------------------

    def _prosecute(self, evidence: Evidence) -> asyncio.Future[None]:
        """Keep and spread evidence in the background. The result is there as soon as the machine knows of it."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._background.spawn(self._spread(evidence, known))
        return known

    def _charge(self, evidence: TwoResults | TwoProposals | Verdict) -> None:
        """As `_prosecute`, one at a time against each peer: who contradicts itself can do so a thousand times."""
        accused = PeerId(evidence.accused)
        if accused not in self._charged:
            self._charged.add(accused)
            self._prosecute(evidence).add_done_callback(lambda _: self._charged.discard(accused))

    async def _spread(self, evidence: Evidence, known: asyncio.Future[None]) -> None:
        try:
            is_sound = await self._docket.keep(evidence)
        except OSError as error:
            is_sound = False
            self._observe("evidence.unwritable", {"why": error.strerror or str(error)})
        finally:
            if not known.done():
                known.set_result(None)
        if is_sound:
            await self._docket.spread(evidence, self._roster)
            if isinstance(evidence, Lie):  # for a leader that does not take evidence
                result = evidence.header.result
                self._feed(Distrusted(result.plan, result.span, "its mean is not the mean of what it was sent"))

    def _note_proven(self, peer: PeerId, kind: str) -> None:
        self._observe("peer.proven", {"peer": peer, "kind": kind})
        self._feed(Proven(peer))

    def _note_misconduct(self, error: RemoteProtocolError) -> None:
        self._observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})

    async def close(self) -> None:
        await self._background.close()


def _remember(known: dict[K, V], key: K, value: V) -> V:
    """What was first heard under ``key``. Whoever sends more than honest peers ever do is not remembered."""
    if key not in known and len(known) < _MAX_REMEMBERED:
        known[key] = value
    return known.get(key, value)


def _is_convicted(findings: Findings, span: int) -> bool:
    return any(lie.header.result.span == span for lie in findings.lies)
