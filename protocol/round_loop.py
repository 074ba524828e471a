"""Feeds the round machine, event after event, and performs each event's actions in order.

What must be durable is durable before anything that follows from it is sent; a commit is applied before the next round
begins. This is the only place that touches the machine's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from . import round_machine as machine
from .allowance import Allowances
from .attestations import Attestations
from .chunks import Contribution
from .event_queue import EventQueue
from .identity import PeerId
from .lag import FAR_BEHIND_ROUNDS, Lag, Prove
from .mail import Mail
from .messages import (
    Attest,
    Commit,
    CommitRequest,
    Heartbeat,
    Message,
    PlanMessage,
    Prepare,
    Proposal,
    Ready,
    Record,
    round_of,
)
from .outcomes import Aborted, Outcome, RoundEvent, committed
from .oversight import Oversight
from .peers import PeerTable
from .receipts import statements_root
from .reduction import Reduction
from .replica import Replica
from .round_machine import Action, Event, Phase, Received, RoundState, Rules
from .signed_results import is_sealed, is_signed
from .spec import Genesis
from .transport import RemoteProtocolError
from .votes import VoteStore

_COMMITS_AT_ONCE = 16
"""Commits that one peer gets without delay; then one per heartbeat. Whoever missed more rounds asks for the state."""
_REJECTIONS_AT_ONCE, _REJECTIONS_PER_S = 32, 0.1
"""Of one peer that are said and journalled; the rest is refused in silence."""
_DISK_RETRY_S = 2.0

Observer: TypeAlias = Callable[[RoundEvent], None]
Sync: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Offer:
    """The node offers a contribution."""

    contribution: Contribution
    outcome: asyncio.Future[Outcome]


class RoundLoop:
    """One node's rounds, one after another. `reduction` and `oversight` are set before `begin`."""

    reduction: Reduction
    oversight: Oversight

    def __init__(
        self,
        *,
        genesis: Genesis,
        replica: Replica,
        lease_samples: int,
        num_chunks: int,
        votes: VoteStore,
        mail: Mail,
        peers: PeerTable,
        observer: Observer,
        sync: Sync | None,
        prove: Prove | None,
        on_new_head: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._genesis, self._replica, self._votes = genesis, replica, votes
        self._lease_samples, self._num_chunks = lease_samples, num_chunks
        self._mail, self._peers, self._observer, self._sync, self._clock = mail, peers, observer, sync, clock
        self._on_new_head = on_new_head
        self.queue: EventQueue[Event | Offer] = EventQueue(clock)
        self._early: dict[tuple[PeerId, str], Received] = {}
        """Messages for the round after the present one."""
        self._state: RoundState | None = None
        interval_s = genesis.timing.heartbeat_interval_s
        self._commits_to = Allowances(1 / interval_s, _COMMITS_AT_ONCE, clock)
        self._rejections = Allowances(_REJECTIONS_PER_S, _REJECTIONS_AT_ONCE, clock)
        self._lag = Lag(prove or self._believe, interval_s, clock)
        self._is_unwritable = False
        """The last attempt to write votes failed, which is said once."""
        self._background: set[asyncio.Task[None]] = set()
        self.pending: Offer | None = None
        self.attestations = Attestations()

    @property
    def round(self) -> int:
        return self._replica.head_round + 1

    @property
    def phase(self) -> Phase:
        return Phase.TRAINING if self._state is None else self._state.phase

    def observe(self, point: str, fields: dict[str, object]) -> None:
        """Tell the node what happened in the present round; of one peer's misconduct only so much."""
        if point != "peer.rejected" or self._rejections.take(PeerId(str(fields["peer"]))):
            self._observer(RoundEvent(point, self.round, fields))

    def reject(self, error: RemoteProtocolError) -> None:
        self.observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})

    def settle(self, outcome: Outcome) -> None:
        """Answer the pending contribution, if there is one."""
        offer, self.pending = self.pending, None
        if offer is not None and not offer.outcome.done():
            offer.outcome.set_result(outcome)

    def send_commit(self, peer: PeerId, round_number: int) -> None:
        """Send a commit with its certificate, if it is here: a large answer to a small question, so not too often."""
        if round_number <= self._replica.head_round and self._commits_to.take(peer):
            for commit in self._replica.commits(round_number, 1):
                self._mail.post((peer,), commit)

    # --- events -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle events for ever."""
        while True:
            event, at_s = await self.queue.get()
            await self._take(event, at_s)
            while self._mail.own:
                await self._take(self._mail.own.popleft(), self._clock())

    async def _take(self, event: Event | Offer, at_s: float) -> None:
        match event:
            case Offer():
                await self._offer(event, at_s)
            case Received() if not isinstance(event.body, Heartbeat):
                await self._route(event, at_s)
            case machine.Tick():
                await self._advance(event, at_s)
                await self._keep_up()
            case _:
                await self._advance(event, at_s)

    async def _offer(self, offer: Offer, at_s: float) -> None:
        contribution = offer.contribution
        if contribution.round != self.round:
            self.settle(self._missed(contribution))
            return
        ready = Ready(
            round=self.round,
            parent=self._replica.standing.record_id,
            parent_state=self._replica.state_hash,
            tokens=contribution.tokens,
            commitment=contribution.commitment,
            num_inner_steps=contribution.num_inner_steps,
            tokens_per_s=contribution.tokens_per_s,
            squared_norm=contribution.squared_norm,
        )
        await self._advance(machine.Contributed(ready), at_s)

    def _missed(self, contribution: Contribution) -> Outcome:
        commits = self._replica.commits(contribution.round, 1)
        if not commits:
            return Aborted(f"round {contribution.round} is not the present one, {self.round}")
        return committed(commits[0], self._replica.state_hash, self._mail.me, contribution.commitment)

    async def _route(self, event: Received, at_s: float) -> None:
        """Messages of this round go to the machine, those of the next wait, those of past ones get the commit."""
        number = round_of(event.body)
        if number == self.round:
            if self.oversight.note(event):
                await self._advance(event, at_s)
        elif number < self.round:
            if isinstance(event.body, Ready | PlanMessage | Proposal | Prepare):
                self.send_commit(event.sender, number)
        elif isinstance(event.body, Commit):
            self._mail.post((event.sender,), CommitRequest(fragment=0, round=self.round))
        elif number == self.round + 1 and event.sender in self._peers.all:
            self._early[event.sender, event.body.kind] = event

    async def _keep_up(self) -> None:
        """Get a snapshot when the results that lead up to the others are not kept any more, or our state is damaged."""
        if self._sync is not None and self._lag.may_ask and (self._is_far_behind() or self._disagrees()):
            await self._resync(self._sync)

    def _is_far_behind(self) -> bool:
        """Whether it is proven that results alone may not lead to the others any more. Begins to ask for a proof."""
        head_round = self._replica.head_round
        is_claimed = self._sync is not None and bool(self._peers.ahead(head_round + FAR_BEHIND_ROUNDS))
        if self._lag.begins_proof(head_round, is_claimed=is_claimed):
            self.spawn(self._look_ahead(head_round))
        return self._lag.is_proven(head_round)

    async def _believe(self) -> int:
        """Without anybody to prove it, what peers say of themselves."""
        return max(self._peers.rounds(), default=0)

    async def _look_ahead(self, head_round: int) -> None:
        if (why := await self._lag.prove(head_round)) is not None:
            self.observe("state.unproven", {"why": why})

    async def _resync(self, sync: Sync) -> bool:
        """Whether there is another state now. If not, nothing has changed, a contribution that waits included."""
        before = (self._replica.head_round, self._replica.state_hash)
        self.observe("state.syncing", {})
        await sync()
        is_fruitful = before != (self._replica.head_round, self._replica.state_hash)
        self._lag.pace(is_fruitful=is_fruitful)
        if is_fruitful:
            self.settle(Aborted("the state was replaced by a newer one"))
            await self.begin()
            self._on_new_head()
        return is_fruitful

    # --- the machine --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head."""
        number, standing = self.round, self._replica.standing
        for peer in standing.roster:
            self._peers.add(peer)
        abstain = await asyncio.to_thread(self._votes.forgot, number)
        if abstain:
            self.observe("votes.abstaining", {})
        self.oversight.begin(self._genesis, standing)
        rules = Rules(
            genesis=self._genesis,
            me=self._mail.me,
            standing=standing,
            parent_state=self._replica.state_hash,
            lease_samples=self._lease_samples,
            num_chunks=self._num_chunks,
            abstain=abstain,
            proven=self.oversight.proven,
            is_signed=is_signed,
            is_sealed=is_sealed,
        )
        acceptor = machine.Acceptor() if abstain else await asyncio.to_thread(self._votes.load, number)
        self._mail.begin_round()
        self._state = machine.begin(rules, acceptor, self._peers.views(), self._clock())
        if acceptor.accepted is not None:
            self.reduction.report_held(acceptor.accepted.record)
        for commit in self._replica.commits(number, 1):
            # The chain is ahead of the state: a crash, or a state restored from an older checkpoint. It is decided.
            self.queue.put(Received(self._mail.me, commit, b""))
        early, self._early = self._early, {}
        for event in early.values():
            self.queue.put(event)

    async def _advance(self, event: Event, at_s: float) -> None:
        if self._state is None:
            return
        try:
            state, actions = machine.advance(self._state, event, at_s)
        except RemoteProtocolError as error:
            self.reject(error)
            return
        if await self._persist(actions):
            self._state = state
            for action in actions:
                await self._perform(action)
        elif not isinstance(event, Received | machine.Tick):
            # Nobody repeats what happens here. It is due again when the disk may take the vote.
            self.spawn(self._feed_later(event, self.round))

    async def _feed_later(self, event: Event, round_number: int) -> None:
        await asyncio.sleep(self._genesis.timing.heartbeat_interval_s)
        is_withdrawn = isinstance(event, machine.Contributed) and self.pending is None
        if self.round == round_number and not is_withdrawn:
            self.queue.put(event)

    async def _persist(self, actions: tuple[Action, ...]) -> bool:
        """Make promises and votes durable before anything else happens. False: nothing may happen."""
        acceptors = [action.acceptor for action in actions if isinstance(action, machine.Persist)]
        if not acceptors:
            return True
        try:
            await asyncio.to_thread(self._votes.save, self.round, acceptors[-1])
        except OSError as error:
            if not self._is_unwritable:
                self.observe("votes.unwritable", {"why": error.strerror or str(error)})
            self._is_unwritable = True
            return False
        self._is_unwritable = False
        return True

    async def _perform(self, action: Action) -> None:
        match action:
            case machine.Persist():
                pass  # done
            case machine.Send():
                self._mail.post(action.to, action.message)
                self._mark(action.message)
            case machine.StartExchange():
                self.reduction.start(action.plan, self.pending.contribution if self.pending else None, self._genesis)
            case machine.CancelExchange():
                self.reduction.cancel(action.plan_id)
            case machine.FetchResults():
                self.reduction.fetch(action.record)
            case machine.GiveUp():
                self.observe("round.aborted", {"reason": action.reason})
                self.settle(Aborted(action.reason))
            case machine.Decide():
                await self._apply(action.commit)
            case _:
                assert_never(action)

    async def _apply(self, commit: Commit) -> None:
        """Get the decided bytes, take the outer step, tell everybody our state hash, begin the next round."""
        self.observe("round.committed", {"commit": commit})
        mean = None
        while mean is None:
            mean = await self._obtain(commit.record)
            if mean is None and self._sync is not None and await self._resync(self._sync):
                return
            if mean is None:
                self.observe("results.unavailable", {})
        number = self.round
        state_hash = await self._apply_durably(commit, mean)
        self.reduction.decided(commit.record)
        self._votes.prune(number)
        contribution = self.pending.contribution if self.pending else None
        outcome = committed(commit, state_hash, self._mail.me, contribution.commitment if contribution else None)
        self._observer(RoundEvent("round.applied", number, {"outcome": outcome}))
        if contribution is not None and contribution.round <= number:
            self.settle(outcome)
        self._attest(commit, state_hash)
        await self.begin()
        self._on_new_head()

    async def _apply_durably(self, commit: Commit, mean: memoryview) -> str:
        """The round is decided and there is no way around it: on a full disk wait until it takes the commit."""
        while True:
            try:
                return await self._replica.apply(commit, mean)
            except OSError as error:
                self.observe("state.unwritable", {"why": error.strerror or str(error)})
                await asyncio.sleep(_DISK_RETRY_S)

    async def _obtain(self, record: Record) -> memoryview | None:
        """The decided bytes; None if nobody gives them in time, or as soon as it is clear that nobody has to."""
        obtaining = asyncio.ensure_future(self.reduction.obtain(record, self._genesis.timing.attempt_timeout_s))
        try:
            while not obtaining.done() and not (self._is_far_behind() and self._lag.may_ask):
                await asyncio.wait({obtaining}, timeout=self._genesis.timing.heartbeat_interval_s)
            return obtaining.result() if obtaining.done() else None
        finally:
            obtaining.cancel()

    # --- agreement and journal ----------------------------------------------------------------------------------------

    def _attest(self, commit: Commit, state_hash: str) -> None:
        attest = Attest(
            round=self._replica.head_round,
            record=commit.record.content_id(),
            state_hash=state_hash,
            receipts=statements_root(self._genesis.run_id, commit),
        )
        raw = self._mail.post(self._peers.others(), attest)
        self.attestations.add(self._mail.me, attest, raw, self._replica.head_round)
        self.check_agreement()

    def check_agreement(self) -> None:
        """Say if most of the roster has another state than ours; the next tick does something about it."""
        if self._disagrees():
            self.observe("state.disagrees", {"ours": self._replica.state_hash, "theirs": self._majority()})

    def _disagrees(self) -> bool:
        return self._majority() not in (None, self._replica.state_hash)

    def _majority(self) -> str | None:
        """S4: the state hash that most of the roster has after our head."""
        standing = self._replica.standing
        return self.attestations.majority(standing.round, standing.record_id, standing.roster)

    def _mark(self, message: Message) -> None:
        """Journal points of messages, said when the message has left."""
        point = self._mail.new_point(message)
        if point is not None:
            self.spawn(self._observe_when_sent(RoundEvent(point, self.round)))

    async def _observe_when_sent(self, event: RoundEvent) -> None:
        await self._mail.flush()
        self._observer(event)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """Run in the background until `close`."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.settle(Aborted("the node is stopping"))
