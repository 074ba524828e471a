"""The properties of the protocol (S1 to S7) as checks over a simulated run, each by its name, at every step.

They are written without the functions that they judge: a quorum is counted here by hand, and the ledgers are the
simulation's own. Liveness (L1 to L6) is in `liveness`. The checks see every action before
it is performed. A property is violated when

S1  a round has two records; votes are no quorum of the roster that the last commit names, or break a promise; one
    ballot carries two plans or records; a chosen record is not proposed again; a member heard of lately is dropped;
    a roster has somebody who is banned, ejected, or not invited (`laws`)
S2  a vote is not on disk, or for results that are not; a commit is applied without votes that were really given; a
    voter in doubt gives up; a vote is given, or a round decided, under rules that are not in force (`laws`)
S3  after an abort the next contribution of the round lacks work of the one that was withdrawn
S4  a plan starts from another state than its parent's commit left
S5  a span's mean is not over the contributions that its flags name
S6  a sample counts twice, or is in two leases; missed work is not in the next contribution, or older than one round
S7  a commit does not follow the last one, or is of another lineage; a message of another lineage is acted on; a lineage
    begins twice, or with what was never decided
"""

from __future__ import annotations

from collections.abc import Iterator

from ..amendments import RunRules
from ..changes import Rollback
from ..identity import PeerId
from ..leader import permutation
from ..messages import Commit, PlanMessage, Promise, Proposal, Vote
from ..record import Plan
from ..round_machine import Action, Decide, Event, GiveUp, Received, Send, StartExchange
from .faulty import FaultySwarm
from .guarded import Stamp
from .histories import History, RoundLedger
from .laws import Laws
from .nodes import Node, Violation, digest, state_hash
from .samples import NOTHING, Offer, Samples


class PropertyViolated(Violation):
    """A property does not hold. ``name`` is the one of `protocol.md`'s list."""

    def __init__(self, name: str, now: float, detail: str) -> None:
        super().__init__(f"{name} at {now:.2f} s: {detail}")
        self.name, self.detail = name, detail


def is_quorum(
    swarm: FaultySwarm, lineage: int, round_number: int, roster: tuple[PeerId, ...], voters: set[PeerId]
) -> bool:
    """More than (n + f) / 2, with half a vote more for the tie-breaker of an even roster without faults.

    And more than half of the run's witnesses, if it names some.
    """
    genesis, size = swarm.genesis, len(roster)
    wanted = genesis.membership.fault_tolerance
    faults = min(size // 5 if wanted is None else wanted, (size - 1) // 3)
    weight = float(len(voters & set(roster)))
    first = permutation(genesis.run_id, lineage, 0, round_number, roster)[0]
    if faults == 0 and size % 2 == 0 and first in voters:
        weight += 0.5
    witnesses = set(genesis.membership.witnesses)
    return weight > (size + faults) / 2 and (
        not witnesses or 2 * len(witnesses & voters & set(roster)) > len(witnesses)
    )


class SafetyChecks:
    """Attach to a swarm before it runs; raises `PropertyViolated` from inside the run."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        first = History(0, swarm.genesis.membership.roster)
        self.histories = {0: first}
        """By lineage."""
        self._laws = Laws(swarm, self._require)
        self._owed: dict[PeerId, tuple[int, Samples, Samples]] = {}
        """Peer → round, work that its next contribution in that round must hold, and where it stems from."""
        swarm.ears.action.append(self.on_action)
        swarm.ears.offer.append(self.on_offer)
        swarm.ears.decision.append(self.on_decision)
        swarm.ears.start.append(self.on_start)
        swarm.ears.event.append(self.on_event)
        swarm.ears.lineage.append(self.on_lineage)

    @property
    def num_rounds(self) -> int:
        """Decided ones, those included that a new lineage has left behind."""
        return sum(len(history.commits) - history.num_earlier for history in self.histories.values())

    def _require(self, condition: bool, name: str, detail: str) -> None:
        if not condition:
            raise PropertyViolated(name, self._swarm.now, detail)

    def _history(self, node: Node) -> History:
        """Of the lineage that the node's round is in: where it catches up, that of the commits it lacks."""
        return self.histories[self._swarm.statutes.genesis_of(node).lineage]

    def _ledger(self, node: Node) -> RoundLedger:
        return self._history(node).rounds[node.round]

    # --- lineages -----------------------------------------------------------------------------------------------------

    def on_event(self, node: Node, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.raw, Stamp):
            is_ours = event.raw.lineage == node.disk.lineage
            self._require(is_ours, "S7", f"{_name(node)} acts on a {event.body.kind} of another lineage")

    def on_lineage(self, node: Node) -> None:
        self._owed.pop(node.peer, None)
        for fork in _forks(self._swarm.statutes.rules_of(node)):
            if fork.lineage not in self.histories:
                self._fork(fork)

    def _fork(self, fork: Rollback) -> None:
        """A lineage goes on from what was decided in the one before, and nothing else."""
        before = self.histories[max(self.histories)]
        earlier = before.commits[: fork.round]
        record = earlier[-1].record.content_id() if earlier else self._swarm.genesis.run_id
        is_decided = len(earlier) == fork.round and record == fork.record and state_hash(earlier) == fork.state_hash
        self._require(is_decided, "S7", f"lineage {fork.lineage} begins with what was never decided")
        self._require(fork.lineage == before.lineage + 1, "S7", f"lineage {fork.lineage} follows {before.lineage}")
        history = self.histories[fork.lineage] = History(fork.lineage, fork.roster, earlier)
        for commit in earlier:
            for offer, chunks in self._included(commit):
                history.count(offer, chunks)

    # --- what nodes do ------------------------------------------------------------------------------------------------

    def on_action(self, node: Node, action: Action) -> None:
        match action:
            case Send(message=PlanMessage() as message):
                self._on_plan(node, message.plan)
            case Send(message=Proposal() as message):
                self._on_proposal(node, message)
            case Send(message=Promise() as message):
                self._on_promise(node, message)
            case Send(message=Vote() as message):
                self._on_vote(node, message)
            case StartExchange(plan):
                promised = self._ledger(node).promised.get(node.peer, 0)
                has_forgotten = node.state is not None and node.state.rules.abstain  # and so does not vote either
                self._require(
                    has_forgotten or plan.ballot >= promised, "S1", f"{_name(node)} follows a plan below its promise"
                )
            case GiveUp():
                self._on_give_up(node)
            case Decide(commit):
                self._on_decide(node, commit)
            case _:
                pass

    def on_start(self, node: Node) -> None:
        self._owed.pop(node.peer, None)

    def _on_plan(self, node: Node, plan: Plan) -> None:
        known = self.histories[plan.lineage].rounds[plan.round].plans.setdefault(plan.ballot, plan.content_id())
        self._require(known == plan.content_id(), "S1", f"{_name(node)} makes a second plan at ballot {plan.ballot}")
        self._check_place(plan)

    def _check_place(self, plan: Plan) -> None:
        """S4, S7: it follows the one commit before it, from the state that this left, with the roster it names."""
        history = self.histories.get(plan.lineage)
        self._require(history is not None, "S7", f"a plan of lineage {plan.lineage}, which nobody has begun")
        assert history is not None
        parents = history.commits[: plan.round - 1]
        self._require(
            len(parents) == plan.round - 1, "S7", f"round {plan.round} is planned before its parent is decided"
        )
        expected = parents[-1].record.content_id() if parents else self._swarm.genesis.run_id
        self._require(plan.parent == expected, "S7", "another parent")
        self._require(plan.parent_state == state_hash(parents), "S4", "another state than the parent's")
        self._require(plan.roster == history.roster(plan.round), "S1", "a roster that the parent does not name")

    def _on_proposal(self, node: Node, message: Proposal) -> None:
        ledger, record_id = self._ledger(node), message.record.content_id()
        known = ledger.records.setdefault(message.ballot, record_id)
        self._require(known == record_id, "S1", f"{_name(node)} proposes a second record at ballot {message.ballot}")
        chosen = ledger.chosen
        if chosen is not None and message.ballot > chosen[0]:
            self._require(record_id == chosen[1], "S1", f"ballot {message.ballot} does not propose what was chosen")

    def _on_promise(self, node: Node, message: Promise) -> None:
        """A promise tells the last vote below it, whatever has become of the process and the disk since."""
        ledger, peer = self._ledger(node), node.peer
        ledger.promised[peer] = max(ledger.promised.get(peer, 0), message.ballot)
        last = max((ballot for voter, ballot in ledger.voted if voter == peer and ballot < message.ballot), default=-1)
        told = -1 if message.accepted is None else message.accepted.ballot
        self._require(told >= last, "S1", f"{_name(node)} promises and forgets its vote at {last}")

    def _on_vote(self, node: Node, vote: Vote) -> None:
        history, peer = self._history(node), node.peer
        ledger = history.rounds[vote.round]
        promised = ledger.promised.get(peer, 0)
        self._require(vote.ballot >= promised, "S1", f"{_name(node)} votes at {vote.ballot}, has promised {promised}")
        known = ledger.voted.setdefault((peer, vote.ballot), vote.record)
        self._require(known == vote.record, "S1", f"{_name(node)} votes twice at ballot {vote.ballot}")
        self._check_disk(node, vote)
        self._check_dropped(node, vote)
        self._check_lawful(node, vote)
        voters = ledger.votes[vote.ballot, vote.record]
        voters.add(peer)
        roster = history.roster(vote.round)
        if ledger.chosen is None and is_quorum(self._swarm, history.lineage, vote.round, roster, voters):
            ledger.chosen = (vote.ballot, vote.record)
        ledger.promised[peer] = max(promised, vote.ballot)

    def _check_disk(self, node: Node, vote: Vote) -> None:
        acceptor = node.disk.acceptors.get(vote.round)
        accepted = None if acceptor is None else acceptor.accepted
        said = None if accepted is None else (accepted.ballot, accepted.record.content_id())
        self._require(said == (vote.ballot, vote.record), "S2", f"{_name(node)} votes before its vote is on disk")
        if accepted is not None:
            digests = tuple(result.digest for result in accepted.record.results)
            held = node.disk.held.get(accepted.record.plan.content_id())
            self._require(held == digests, "S2", f"{_name(node)} votes without holding the results")

    def _check_lawful(self, node: Node, vote: Vote) -> None:
        accepted = node.disk.acceptors[vote.round].accepted
        if accepted is not None:
            plan = accepted.record.plan
            self._laws.check_vote(node, vote, plan)
            self._laws.check_justified(node, plan, self._history(node).ejected(plan.round))

    def _check_dropped(self, node: Node, vote: Vote) -> None:
        """Nobody votes for a new plan that drops a member which it has heard of lately and which does not leave.

        Judged when the proposal comes: a vote that had to wait for results is given whoever is back by then.
        """
        accepted, event = node.disk.acceptors[vote.round].accepted, self._swarm.handled
        if not isinstance(event, Received) or not isinstance(event.body, Proposal):
            return
        if accepted is None or node.state is None or accepted.record.plan.ballot != vote.ballot:
            return
        plan, limit_s = accepted.record.plan, self._swarm.genesis.timing.drop_after_s / 2
        removed = {*self._swarm.statutes.genesis_of(node).control.banned, *node.disk.proofs}
        for peer in set(plan.roster) - set(plan.next_roster) - removed:
            view = node.state.peers.get(peer)
            has_left = self._swarm.now - self._swarm.left_s.get(peer, -limit_s) < limit_s
            if view is not None and view.is_met and not has_left:
                silent_s = self._swarm.now - view.heard_s
                self._require(silent_s > limit_s, "S1", f"drops …{peer[-5:]}, silent for {silent_s:.1f} s")

    def _on_give_up(self, node: Node) -> None:
        acceptor = node.disk.acceptors.get(node.round)
        self._require(acceptor is None or acceptor.accepted is None, "S2", f"{_name(node)} gives up in doubt")
        pending = self._swarm.trainers[node.peer].pending
        if pending is not None:
            self._owed[node.peer] = (pending.round, pending.samples, pending.samples)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _on_decide(self, node: Node, commit: Commit) -> None:
        plan, record_id = commit.record.plan, commit.record.content_id()
        self._check_place(plan)
        number, history = plan.round, self.histories[plan.lineage]
        ledger = history.rounds[number]
        voters = {self._swarm.checks.open_vote(raw, plan.lineage)[0] for raw in commit.votes}
        given = ledger.votes.get((commit.ballot, record_id), set())
        self._require(voters <= given, "S2", f"{_name(node)} applies votes that nobody gave")
        is_enough = is_quorum(self._swarm, plan.lineage, number, history.roster(number), voters)
        self._require(is_enough, "S2", f"{_name(node)} applies round {number} with {len(voters)} votes, no quorum")
        if len(history.commits) >= number:
            known = history.commits[number - 1].record.content_id()
            self._require(known == record_id, "S1", f"round {number} has decided two records")
            return
        history.num_amendments = self._laws.check_commit(node, commit, history.num_amendments)
        self._laws.check_ejected(plan, history.ejected(number))
        self._laws.check_entries(plan, history.commits)
        history.commits.append(commit)
        self._check_means(history, commit)

    def _check_means(self, history: History, commit: Commit) -> None:
        """S5, S6: a span's bytes are the mean of the flagged contributions, and no chunk averages a sample twice."""
        plan = commit.record.plan
        plan_id = plan.content_id()
        for result in commit.record.results:
            is_true = result.digest == digest(plan_id, result.span, result.included)
            self._require(is_true, "S5", f"the mean of span {result.span} is not over its flags")
        for member in plan.members:
            offer = self._swarm.offers.get(member.commitment)
            is_own = offer is not None and (offer.peer, offer.round) == (member.peer, plan.round)
            self._require(is_own, "S5", f"…{member.peer[-5:]} is averaged with what it did not offer")
        for offer, chunks in self._included(commit):
            twice = history.count(offer, chunks)
            self._require(not twice, "S6", f"samples {sorted(twice)} of …{offer.peer[-5:]} count twice")

    def _included(self, commit: Commit) -> Iterator[tuple[Offer, range]]:
        """Contributions with the chunks whose means contain them."""
        plan = commit.record.plan
        for result in commit.record.results:
            span = plan.spans[result.span]
            chunks = range(span.first_chunk, span.first_chunk + span.num_chunks)
            for member, flag in zip(plan.members, result.included, strict=True):
                if flag:
                    yield self._swarm.offers[member.commitment], chunks

    # --- contributions ------------------------------------------------------------------------------------------------

    def on_decision(self, node: Node, commit: Commit, _counted: bool) -> None:
        """S6: what a commit has missed is owed by the next contribution of the same process, alone."""
        number, position = commit.record.plan.round, self._swarm.trainers[node.peer].position
        own = position.own if position is not None and position.round == number else NOTHING
        is_spent = (node.peer, number) in self.histories[commit.record.plan.lineage].counted
        missed = NOTHING if is_spent else own
        self._owed[node.peer] = (number + 1, missed, missed)

    def on_offer(self, node: Node, offer: Offer) -> None:
        peer, ledger = node.peer, self._ledger(node)
        number, owed, _ = self._owed.get(peer, (offer.round, NOTHING, NOTHING))
        if number == offer.round:
            name = "S6" if offer.carried >= owed or not owed & offer.carried else "S3"
            self._require(owed <= offer.samples, name, f"{_name(node)} has lost samples {sorted(owed - offer.samples)}")
        for sample in offer.own:
            holder = ledger.leases.setdefault(sample, peer)
            self._require(holder == peer, "S6", f"sample {sample} is leased to two members")
        self._check_age(node, offer)

    def _check_age(self, node: Node, offer: Offer) -> None:
        history = self._history(node)
        spent = history.counted.get((node.peer, offer.round - 1), NOTHING) & offer.samples
        self._require(not spent, "S6", f"{_name(node)} contributes samples {sorted(spent)}, which have counted")
        cursor = history.commits[offer.round - 3].record.plan.data_cursor if offer.round > 2 else 0
        old = {sample for sample in offer.carried if sample < cursor}
        self._require(not old, "S6", f"{_name(node)} carries samples {sorted(old)} over more than one round")


def _forks(rules: RunRules) -> Iterator[Rollback]:
    changes = (amendment.change for amendment in rules.amendments)
    return (change for change in changes if isinstance(change, Rollback))


def _name(node: Node) -> str:
    return f"…{node.peer[-5:]}"
