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
from .attestations import Attestations
from .chunks import Contribution
from .identity import PeerId
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
    round_of,
)
from .outcomes import Aborted, Outcome, RoundEvent, committed
from .peers import PeerTable
from .reduction import Reduction
from .replica import Replica, next_roster
from .round_machine import Action, Event, Phase, Received, RoundState, Rules
from .spec import Genesis
from .transport import RemoteProtocolError
from .votes import VoteStore

FAR_BEHIND_ROUNDS = 4
"""Results are kept by everybody for this many rounds; who is further behind needs a snapshot."""

_MAX_QUEUED = 8192
_DISK_RETRY_S = 1.0

Observer: TypeAlias = Callable[[RoundEvent], None]
Sync: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Offer:
    """The node offers a contribution."""

    contribution: Contribution
    outcome: asyncio.Future[Outcome]


class RoundLoop:
    """One node's rounds, one after another. `reduction` is set before `begin`."""

    reduction: Reduction

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
        on_new_head: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._genesis, self._replica, self._votes = genesis, replica, votes
        self._lease_samples, self._num_chunks = lease_samples, num_chunks
        self._mail, self._peers, self._observer, self._sync, self._clock = mail, peers, observer, sync, clock
        self._on_new_head = on_new_head
        self._queue: asyncio.Queue[tuple[Event | Offer, float]] = asyncio.Queue()
        self._early: dict[tuple[PeerId, str], Received] = {}
        """Messages for the round after the present one."""
        self._state: RoundState | None = None
        self._is_tick_queued = False
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

    def feed(self, event: Event | Offer) -> None:
        """Queue an event; never waits. A tick is left out while another one waits."""
        if isinstance(event, machine.Tick):
            if self._is_tick_queued:
                return
            self._is_tick_queued = True
        self._queue.put_nowait((event, self._clock()))

    def is_flooded(self) -> bool:
        """Whether so much waits that further messages are better lost; everything is repeated anyway."""
        return self._queue.qsize() >= _MAX_QUEUED

    def observe(self, point: str, fields: dict[str, object]) -> None:
        """Tell the node what happened in the present round."""
        self._observer(RoundEvent(point, self.round, fields))

    def reject(self, error: RemoteProtocolError) -> None:
        self.observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})

    def settle(self, outcome: Outcome) -> None:
        """Answer the pending contribution, if there is one."""
        offer, self.pending = self.pending, None
        if offer is not None and not offer.outcome.done():
            offer.outcome.set_result(outcome)

    def send_commit(self, peer: PeerId, round_number: int) -> None:
        """Send a commit with its certificate, if it is here."""
        for commit in self._replica.commits(round_number, 1):
            self._mail.post((peer,), commit)

    # --- events -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle events for ever."""
        while True:
            event, at_s = await self._queue.get()
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
                self._is_tick_queued = False
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
            parent=self._replica.head_record_id,
            parent_state=self._replica.state_hash,
            tokens=contribution.tokens,
            commitment=contribution.commitment,
            num_inner_steps=contribution.num_inner_steps,
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
        is_far_behind = bool(self._peers.ahead(self._replica.head_round + FAR_BEHIND_ROUNDS))
        if self._sync is not None and (is_far_behind or self._disagrees()):
            await self._resync(self._sync)

    async def _resync(self, sync: Sync) -> None:
        self.observe("state.syncing", {})
        await sync()
        self.settle(Aborted("the state was replaced by a newer one"))
        await self.begin()
        self._on_new_head()

    # --- the machine --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head."""
        number, roster = self.round, next_roster(self._replica)
        for peer in roster:
            self._peers.add(peer)
        abstain = self._votes.forgot(number)
        if abstain:
            self.observe("votes.abstaining", {})
        rules = Rules(
            genesis=self._genesis,
            me=self._mail.me,
            round=number,
            parent=self._replica.head_record_id,
            parent_state=self._replica.state_hash,
            roster=roster,
            data_cursor=self._replica.data_cursor,
            lease_samples=self._lease_samples,
            num_chunks=self._num_chunks,
            abstain=abstain,
        )
        acceptor = await asyncio.to_thread(self._votes.load, number)
        self._mail.begin_round()
        self._state = machine.begin(rules, acceptor, self._peers.views(), self._clock())
        if acceptor.accepted is not None:
            self.reduction.report_held(acceptor.accepted.record)
        early, self._early = self._early, {}
        for event in early.values():
            self.feed(event)

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
        elif not isinstance(event, machine.Tick):  # which comes again by itself
            self.spawn(self._again(event, self.round))

    async def _again(self, event: Event, round_number: int) -> None:
        """An event that the disk refused has not happened yet: feed it again, unless its round is over by then."""
        await asyncio.sleep(_DISK_RETRY_S)
        is_withdrawn = isinstance(event, machine.Contributed) and self.pending is None
        if self.round == round_number and not is_withdrawn:
            self.feed(event)

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
                self.reduction.start(action.plan, self.pending.contribution if self.pending else None)
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
            mean = await self.reduction.obtain(commit.record, self._genesis.timing.attempt_timeout_s)
            if mean is None and self._sync is not None:
                await self._resync(self._sync)
                return
        number = self.round
        state_hash = await self._replica.apply(commit, mean)
        self.reduction.decided(commit.record)
        self._votes.prune(number)
        contribution = self.pending.contribution if self.pending else None
        outcome = committed(commit, state_hash, self._mail.me, contribution.commitment if contribution else None)
        self._observer(RoundEvent("round.applied", number, {"outcome": outcome}))
        if contribution is not None and contribution.round <= number:
            self.settle(outcome)
        self._attest(commit.record.content_id(), state_hash)
        await self.begin()
        self._on_new_head()

    # --- agreement and journal ----------------------------------------------------------------------------------------

    def _attest(self, record_id: str, state_hash: str) -> None:
        attest = Attest(round=self._replica.head_round, record=record_id, state_hash=state_hash)
        raw = self._mail.post(self._peers.others(), attest)
        self.attestations.add(self._mail.me, attest, raw)
        self.check_agreement()

    def check_agreement(self) -> None:
        """Say if most of the roster has another state than ours; the next tick does something about it."""
        if self._disagrees():
            self.observe("state.disagrees", {"ours": self._replica.state_hash, "theirs": self._majority()})

    def _disagrees(self) -> bool:
        return self._majority() not in (None, self._replica.state_hash)

    def _majority(self) -> str | None:
        """S4: the state hash that most of the roster has after our head."""
        head = (self._replica.head_round, self._replica.head_record_id)
        return self.attestations.majority(*head, next_roster(self._replica))

    def _mark(self, message: Message) -> None:
        """Journal points of messages, said when the message has left."""
        point = self._mail.new_point(message)
        if point is not None:
            self.spawn(self._observe_when_sent(RoundEvent(point, self.round)))

    async def _observe_when_sent(self, event: RoundEvent) -> None:
        await self._mail.flush()
        self._observer(event)

    def spawn(self, work: Any) -> None:
        """Run in the background until `close`."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.settle(Aborted("the node is stopping"))
