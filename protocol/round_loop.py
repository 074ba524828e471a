"""Feeds the round machine, event after event, and performs each event's actions in order.

What must be durable is durable before anything that follows from it is sent; a commit is applied before the next round
begins. This is the only place that touches the machine's state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, assert_never

from . import round_machine as machine
from .agreement import Agreement
from .amending import Amending, Learned
from .amendments import RunRules
from .chunks import Contribution
from .commit_server import CommitServer
from .contact import Contact
from .decided import apply_durably, obtain
from .driver import DriverSetup
from .early import EarlyMessages
from .event_queue import EventQueue
from .grace import NUM_ROUNDS, Pace
from .messages import (
    Amendments,
    Commit,
    CommitRequest,
    Heartbeat,
    PlanMessage,
    Prepare,
    Proposal,
    Provisional,
    Ready,
    round_of,
)
from .outcomes import Aborted, Committed, Outcome
from .oversight import Oversight
from .pending import Offer, Pending, ready_of
from .recollection import Recollected
from .reduction import Reduction
from .resync import Resync
from .round_machine import Action, Event, Phase, Received, RoundState, Rules
from .rule_changes import RuleChanges, is_about_rules
from .seclusion import Seclusion
from .signed_results import is_sealed, is_signed
from .spec import PROTOCOL_VERSION, Genesis
from .tasks import Background
from .topology import Topology
from .transport import RemoteProtocolError, RulesDiffer
from .vote_writer import VoteWriter
from .votes import VoteStore, is_alive_in

_OUTDATED = "the run has gone on to a protocol that this version does not speak"


Work: TypeAlias = Event | Offer | Learned | Recollected
"""What waits for the round loop."""


class RoundLoop:
    """One node's rounds, one after another."""

    def __init__(
        self,
        setup: DriverSetup,
        contact: Contact,
        *,
        queue: EventQueue[Work],
        votes: VoteStore,
        commits: CommitServer,
        reduction: Reduction,
        oversight: Oversight,
        topology: Topology,
        pending: Pending,
        on_rules: Callable[[Genesis], None],
    ) -> None:
        self._setup, self._book, self._replica, self._clock = setup, setup.book, setup.replica, setup.clock
        self._contact, self._mail, self._peers, self._points = contact, contact.mail, contact.peers, contact.points
        self._votes, self._commits, self._on_rules = votes, commits, on_rules
        self._topology, self.pending = topology, pending
        self.queue, self._reduction, self._oversight = queue, reduction, oversight
        self._genesis = setup.rules
        timing, observe = self._genesis.timing, contact.points.observe
        self._early = EarlyMessages()
        self._state: RoundState | None = None
        self._paces: deque[Pace] = deque(maxlen=NUM_ROUNDS)
        self._background = Background()
        self._seclusion = Seclusion(timing.quorum_timeout_s, observe)
        self._vote_writer = VoteWriter(votes, reduction, observe)
        self.amending = Amending(self._book, self._mail, observe, timing.heartbeat_interval_s, self._clock)
        self._rule_changes = RuleChanges(setup, contact, self.amending)
        self.agreement = Agreement(self._genesis.run_id, self._replica, self._mail, self._peers, observe)
        self._resync = Resync(setup, contact, self.agreement, self._background.spawn)

    @property
    def round(self) -> int:
        return self._replica.head_round + 1

    @property
    def genesis(self) -> Genesis:
        """The rules that this round is held under."""
        return self._genesis

    @property
    def phase(self) -> Phase:
        return Phase.TRAINING if self._state is None else self._state.phase

    @property
    def abstains(self) -> bool:
        """Whether this node may have forgotten what it has said in this round: it neither votes nor leads.

        A founder that has yet to ask the others is about to know better.
        """
        return self._state is not None and self._state.rules.abstain and not self._votes.is_unsure

    @property
    def provisional(self) -> Provisional | None:
        """How far from a quorum this node is, if it hears from none."""
        return None if self._state is None else machine.provisional(self._state, self._clock())

    # --- events -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle events for ever."""
        while True:
            event, at_s = await self.queue.get()
            await self._take(event, at_s)
            while self._mail.own:
                await self._take(self._mail.own.popleft(), self._clock())

    async def _take(self, event: Work, at_s: float) -> None:
        match event:
            case Offer():
                await self._offer(event, at_s)
            case Learned():
                await self._adopt(await self._rule_changes.learn(event, self._state))
            case Recollected():
                await self._recollect(event)
            case Received(sender, Amendments() as body):
                await self._adopt(await self._rule_changes.hear(sender, body, self._state))
            case Received() if not isinstance(event.body, Heartbeat):
                await self._route(event, at_s)
            case machine.Tick():
                await self._advance(event, at_s)
                self._seclusion.note(self.provisional)
                await self._keep_up()
                if self._state is not None:
                    await self._adopt(await self._rule_changes.recover(self._state))
            case _:
                await self._advance(event, at_s)

    async def _recollect(self, event: Recollected) -> None:
        if not self._votes.is_unsure:
            return  # a commit has told meanwhile
        num_members = len(self._replica.standing.roster)
        await asyncio.to_thread(self._votes.recollect, num_members, has_forgotten=event.has_forgotten)
        if event.has_forgotten:
            self._points.observe("votes.abstaining", {})
        elif self._state is not None and not self._book.rules.is_settled(self.round):
            self._state = replace(self._state, rules=replace(self._state.rules, abstain=False))

    async def _offer(self, offer: Offer, at_s: float) -> None:
        contribution = offer.contribution
        if contribution.round != self.round:
            self.pending.settle(await self._missed(contribution))
            return
        if self._state is None:
            self.pending.settle(Aborted(_OUTDATED))
            return
        if self._state.ready is not None or self._topology.diverts(contribution):
            return  # offered already, when the round was begun anew; or to somebody else than the roster
        await self._advance(machine.Contributed(ready_of(contribution, self._replica, self._mail.life)), at_s)

    async def _missed(self, contribution: Contribution) -> Outcome:
        commits = self._replica.commits(contribution.round, 1)
        if not commits:
            return Aborted(f"round {contribution.round} is not the present one, {self.round}")
        return await self._outcome(commits[0], self._replica.state_hash)

    async def _outcome(self, commit: Commit, state_hash: str) -> Committed:
        return Committed(commit, state_hash, await self._topology.counted(commit))

    async def _route(self, event: Received, at_s: float) -> None:
        """Messages of this round go to the machine, those of the next wait, those of past ones get the commit."""
        number = round_of(event.body)
        if number == self.round:
            if self._oversight.note(event):
                await self._advance(event, at_s)
        elif number < self.round:
            if isinstance(event.body, Ready | PlanMessage | Proposal | Prepare):
                self._commits.send(event.sender, number)
        elif isinstance(event.body, Commit):
            self._mail.post((event.sender,), CommitRequest(fragment=0, round=self.round))
        elif number == self.round + 1 and event.sender in self._peers.all:
            self._early.keep(event)

    async def _keep_up(self) -> None:
        """Get a snapshot when the results that lead up to the others are not kept any more, or our state is damaged."""
        if self._state is not None and self._resync.is_due:
            await self._replace_state()

    async def _replace_state(self) -> bool:
        """Whether there is another state now. If not, nothing has changed, a contribution that waits included."""
        if not await self._resync.run():
            return False
        self.pending.settle(Aborted("the state was replaced by a newer one"))
        await self.begin()
        self._contact.heartbeats.say_now()
        return True

    # --- the rules ----------------------------------------------------------------------------------------------------

    async def _adopt(self, rules: RunRules | None) -> None:
        """Put new rules in force: for this round at once, or it might never end."""
        if rules is None:
            return
        before = self._book.rules
        self._book.take(rules)
        if rules.lineage != before.lineage:
            await self._change_lineage()
        elif rules.at(self.round).rules_id != before.at(self.round).rules_id and self.phase is not Phase.DECIDED:
            await self._begin_anew()
        self._contact.heartbeats.say_now()

    async def _begin_anew(self) -> None:
        """The same round under other rules, as after a restart: what was promised and voted on holds."""
        self._cancel_attempt()
        await self.begin()
        if self.pending.offer is not None and self._state is not None:
            await self._offer(self.pending.offer, self._clock())

    async def _change_lineage(self) -> None:
        """Leave the present lineage. Nothing that was said in it counts in the new one."""
        lineage = self._book.rules.lineage
        self._cancel_attempt()
        self.pending.settle(Aborted(f"the run goes on in lineage {lineage}"))
        self._early = EarlyMessages()
        self.queue.drop_messages()
        self._peers.forget_heartbeats()
        self.agreement.forget()
        self._mail.begin_lineage(lineage)
        self._votes.begin_lineage(lineage)
        await self._replica.begin_lineage()
        self._points.observe("lineage.begun", {"lineage": lineage, "round": self._replica.head_round})
        await self.begin()

    def _cancel_attempt(self) -> None:
        if self._state is not None and self._state.attempt is not None:
            self._reduction.cancel(self._state.attempt.plan_id)

    def _obey(self, number: int) -> bool:
        """Go by the rules of a round; whether this node speaks the protocol that they require."""
        genesis = self._book.rules.at(number)
        if genesis.rules_id != self._genesis.rules_id:
            self._points.observe("rules.in_force", {"rules": genesis})
        self._genesis = genesis
        self._on_rules(genesis)
        required = genesis.control.required_protocol
        if required > PROTOCOL_VERSION:
            self._points.observe("rules.outdated", {"wanted": required, "found": PROTOCOL_VERSION})
        return required <= PROTOCOL_VERSION

    # --- the machine --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head."""
        number, standing = self.round, self._replica.standing
        if not self._obey(number):
            self._state = None  # this round is not for us: whatever is said in it is not understood
            self.pending.settle(Aborted(_OUTDATED))
            return
        for peer in standing.roster:
            self._peers.add(peer)
        has_forgotten = await asyncio.to_thread(self._votes.forgot, number)
        if has_forgotten and not self._votes.is_unsure:
            self._points.observe("votes.abstaining", {})
        abstain = has_forgotten or self._book.rules.is_settled(number)
        self._oversight.begin(self._book.rules, standing)
        acceptor = machine.Acceptor() if abstain else await asyncio.to_thread(self._votes.load, number)
        self._points.begin_round()
        self._state = machine.begin(self._rules(number, abstain=abstain), acceptor, self._peers.views(), self._clock())
        if acceptor.accepted is not None:
            self._reduction.report_held(acceptor.accepted.record)
        for commit in self._replica.commits(number, 1):
            # The chain is ahead of the state: a crash, or a state restored from an older checkpoint. It is decided.
            self.queue.put(Received(self._mail.me, commit, b""))
        for event in self._early.take_all():
            self.queue.put(event)
        await self._topology.begin(self._genesis)

    def _rules(self, number: int, *, abstain: bool) -> Rules:
        """What the round machine goes by in this round."""
        return Rules(
            genesis=self._genesis,
            me=self._mail.me,
            standing=self._replica.standing,
            parent_state=self._replica.state_hash,
            lease_samples=self._setup.facts.lease_samples,
            num_chunks=self._setup.grid.num_chunks,
            abstain=abstain,
            alternatives=tuple(self._book.rules.possible(number))[1:],
            began_unix_s=self._setup.wall_clock(),
            recent=tuple(self._paces),
            proven=self._oversight.proven,
            is_signed=is_signed,
            is_sealed=is_sealed,
        )

    async def _advance(self, event: Event, at_s: float) -> None:
        if self._state is None:
            return
        try:
            state, actions = machine.advance(self._state, event, at_s)
        except RulesDiffer as error:
            self._contact.heartbeats.say_to(error.peer)
            return
        except RemoteProtocolError as error:
            self._points.reject(error)
            return
        if await self._vote_writer.persist(self.round, self._state.acceptor.accepted, actions):
            self._state = state
            for action in actions:
                await self._perform(action)
        elif not isinstance(event, Received | machine.Tick):
            # Nobody repeats what happens here. It is due again when the disk may take the vote.
            self._background.spawn(self._feed_later(event, self.round))

    async def _feed_later(self, event: Event, round_number: int) -> None:
        await asyncio.sleep(self._genesis.timing.heartbeat_interval_s)
        is_withdrawn = isinstance(event, machine.Contributed) and self.pending.offer is None
        if self.round == round_number and not is_withdrawn:
            self.queue.put(event)

    async def _perform(self, action: Action) -> None:
        match action:
            case machine.Persist():
                pass  # done
            case machine.Send():
                self._mail.post(action.to, action.message)
                self._points.posted(action.message)
            case machine.StartExchange():
                self._reduction.start(action.plan, self.pending.contribution, self._genesis)
            case machine.CancelExchange():
                self._reduction.cancel(action.plan_id)
            case machine.FetchResults():
                self._reduction.fetch(action.record)
            case machine.GiveUp():
                self._points.observe("round.aborted", {"reason": action.reason})
                self.pending.settle(Aborted(action.reason))
            case machine.Decide():
                await self._apply(action.commit)
            case _:
                assert_never(action)

    async def _apply(self, commit: Commit) -> None:
        """Get the decided bytes, take the outer step, tell everybody our state hash, begin the next round."""
        self._points.observe("round.committed", {"commit": commit})
        self._topology.decided(commit)
        if self._state is not None and (pace := machine.pace_of(self._state)) is not None:
            self._paces.append(pace)
        mean = None
        while mean is None:
            mean = await obtain(self._reduction, commit.record, self._resync, self._genesis.timing)
            if mean is None and (await self._replace_state() or await self._leaves_lineage()):
                return
            if mean is None:
                self._points.observe("results.unavailable", {})
        number = self.round
        state_hash = await apply_durably(self._replica, commit, mean, self._points.observe)
        self._reduction.decided(commit.record)
        self._votes.prune(number)
        await self._end_abstention(commit)
        contribution = self.pending.contribution
        outcome = await self._outcome(commit, state_hash)
        self._points.applied(number, {"outcome": outcome})
        if contribution is not None and contribution.round <= number:
            self.pending.settle(outcome)
        self.agreement.attest(commit, state_hash)
        await self.begin()
        self._contact.heartbeats.say_now()

    async def _leaves_lineage(self) -> bool:
        """Whether the run goes on elsewhere, now that decided bytes cannot be had: they may be lost with a quorum.

        Nothing but rules is looked at meanwhile; as a delegate, this node may have to sign a reset itself.
        """
        lineage = self._mail.lineage
        for event in self.queue.take_out(is_about_rules):
            await self._take(event, self._clock())
        if self._state is not None and self._mail.lineage == lineage:
            await self._adopt(await self._rule_changes.recover(self._state))
        return self._mail.lineage != lineage

    async def _end_abstention(self, commit: Commit) -> None:
        """A commit with work of this life shows that the rounds are over in which we may have voted in another one."""
        if self._votes.is_abstaining and is_alive_in(commit, self._mail.me, self._mail.life):
            await asyncio.to_thread(self._votes.end_abstention, commit.record.plan.round)

    async def close(self) -> None:
        """Stop what goes on beside the rounds, and withdraw the contribution."""
        await self._background.close()
        self.pending.settle(Aborted("the node is stopping"))
