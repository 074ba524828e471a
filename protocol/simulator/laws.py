"""What the rules demand of plans, votes and commits, judged by hand: a part of S1, S2 and S7 (`properties`).

The rules of a round are made here from the signed changes alone, not by the functions of `amendments`; invites and
seats are counted by what the schedule says of its joiners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..amendments import Amendment
from ..changes import Allow, Ban, Keys, LearningRate, Limits, Pause, Resume, Rollback, Timing
from ..identity import PeerId
from ..invites import digest
from ..messages import Commit, Vote
from ..parsing import canonical_json
from ..record import Plan
from ..spec import Genesis
from .faulty import FaultySwarm
from .nodes import Node

Require = Callable[[bool, str, str], None]
"""Raises if the condition does not hold, with the property's name and what was seen."""


def changed(genesis: Genesis, amendments: Sequence[Amendment]) -> Genesis:
    """The rules with these amendments, in their order."""
    tables: dict[str, Any] = genesis.model_dump(mode="json")
    for amendment in amendments:
        control, change = tables["control"], amendment.change
        match change:
            case LearningRate():
                tables["outer"]["lr"] = change.outer
            case Timing() | Limits():
                tables[change.kind].update(change.values)
            case Pause() | Resume():
                control["paused"] = isinstance(change, Pause)
            case Ban():
                control["banned"] = sorted({*control["banned"], *change.peers})
            case Allow():
                control["banned"] = sorted({*control["banned"]} - {*change.peers})
                allowed = tables["membership"]["allowed"]
                allowed += [peer for peer in change.peers if peer not in allowed]
            case Keys():
                tables["operators"], tables["operator_threshold"] = list(change.operators), change.threshold
            case Rollback():
                tables["lineage"] = max(tables["lineage"], change.lineage)
            case _:
                raise NotImplementedError(change.kind)
    return Genesis.model_validate_json(canonical_json(tables))


@dataclass(frozen=True)
class Law:
    """Rules that a round can have been held under."""

    genesis: Genesis
    num_known: int
    """The fewest amendments that whoever knows them knows."""


class Laws:
    """Checks plans and votes against what operators and delegates have signed."""

    def __init__(self, swarm: FaultySwarm, require: Require) -> None:
        self._swarm, self._require = swarm, require
        self._made: dict[tuple[int, ...], Genesis] = {}

    def of(self, num_known: int, round_number: int) -> Genesis:
        """The rules of a round for whoever knows so many amendments."""
        amendments = self._swarm.charter.rules.amendments
        known = [a for a in amendments[:num_known] if a.from_round <= round_number]
        known.sort(key=lambda amendment: (amendment.from_round, amendment.number))
        numbers = tuple(amendment.number for amendment in known)
        if numbers not in self._made:
            genesis = self._swarm.charter.genesis
            self._made[numbers] = changed(genesis, known) if known else genesis
        return self._made[numbers]

    def under(self, plan: Plan, at_least: int = 0) -> Law | None:
        """What a plan was made under, by whoever knew so many amendments at least; None: nothing that was signed."""
        num_signed = len(self._swarm.charter.rules.amendments)
        for num_known in range(at_least, num_signed + 1):
            genesis = self.of(num_known, plan.round)
            if genesis.rules_id == plan.rules:
                return Law(genesis, num_known)
        return None

    # --- rules in force -----------------------------------------------------------------------------------------------

    def check_vote(self, node: Node, vote: Vote, plan: Plan) -> None:
        """Nobody votes for a new plan under other rules than it knows to be in force."""
        num_known = len(self._swarm.statutes.rules_of(node).amendments)
        if plan.ballot == vote.ballot:
            is_in_force = self.of(num_known, plan.round).rules_id == plan.rules
            self._require(is_in_force, "S2", f"…{node.peer[-5:]} votes for a plan under rules not in force")

    def check_commit(self, node: Node, commit: Commit, at_least: int) -> int:
        """A round is decided under rules that its voters knew; returns how many amendments they knew at least."""
        plan = commit.record.plan
        law = self.under(plan, at_least)
        self._require(law is not None, "S2", f"round {plan.round} is decided under rules that were not in force")
        assert law is not None
        num_known = len(self._swarm.statutes.rules_of(node).amendments)
        self._require(law.num_known <= num_known, "S2", f"…{node.peer[-5:]} applies a commit under rules it has not")
        self._require(not law.genesis.control.paused, "S2", f"round {plan.round} is decided while the run is paused")
        self._require(plan.lineage == law.genesis.lineage, "S7", f"round {plan.round} is decided in another lineage")
        timeout_s = law.genesis.timing.attempt_timeout_s
        self._require(plan.attempt_timeout_s == timeout_s, "S2", "a plan's time limit is not the rules'")
        self._check_banned(plan, law.genesis)
        return law.num_known

    def _check_banned(self, plan: Plan, genesis: Genesis) -> None:
        present = {*plan.next_roster, *(member.peer for member in plan.members)}
        banned = present & {*genesis.control.banned}
        self._require(not banned, "S1", f"round {plan.round} is decided with, or keeps, a banned peer")
        size = max(genesis.limits.max_peers, len(plan.roster))
        self._require(len(plan.next_roster) <= size, "S1", f"round {plan.round} makes the roster too large")

    # --- ejections ----------------------------------------------------------------------------------------------------

    def check_ejected(self, plan: Plan, before: tuple[str, ...]) -> None:
        """Who is ejected is guilty, stays out, and is in no plan any more."""
        self._require(plan.ejected[: len(before)] == before, "S1", "an ejection is forgotten")
        innocent = {*plan.ejected} - self._swarm.courts.guilty
        self._require(not innocent, "S1", f"round {plan.round} ejects somebody without evidence")
        present = {*plan.next_roster, *(member.peer for member in plan.members)}
        self._require(not present & {*plan.ejected}, "S1", f"round {plan.round} keeps an ejected peer")

    def check_justified(self, node: Node, plan: Plan, before: tuple[str, ...]) -> None:
        """Nobody votes for an ejection without holding the evidence."""
        missing = {*plan.ejected} - {*before} - node.disk.proofs.keys()
        self._require(not missing, "S1", f"…{node.peer[-5:]} votes for an ejection without evidence")

    # --- invites ------------------------------------------------------------------------------------------------------

    def check_entries(self, plan: Plan, earlier: Sequence[Commit]) -> None:
        """Who enters is listed, or holds an invite that is good, unused, and for an owner with a free seat."""
        swarm = self._swarm
        for peer in {*plan.next_roster} - {*plan.roster}:
            place = swarm.people.index(peer) - swarm.schedule.num_peers
            if place < 0 or not swarm.schedule.invites or self._was_member(peer, earlier):
                continue
            invited = swarm.schedule.invites[place]
            self._require(plan.round <= invited.until_round, "S1", "a peer enters by an invite that has run out")
        self._check_seats(plan, earlier)

    def _was_member(self, peer: PeerId, earlier: Sequence[Commit]) -> bool:
        return any(peer in commit.record.plan.next_roster for commit in earlier)

    def _check_seats(self, plan: Plan, earlier: Sequence[Commit]) -> None:
        swarm = self._swarm
        guests = swarm.people[swarm.schedule.num_peers :]
        invites = dict(zip(guests, swarm.schedule.invites, strict=False))
        owners = Counter(invites[peer].owner for peer in plan.next_roster if peer in invites)
        most = max(owners.values(), default=0)
        self._require(most <= swarm.schedule.max_per_owner, "S1", f"{most} members of one owner after {plan.round}")
        rosters = [plan.next_roster, *(commit.record.plan.next_roster for commit in earlier)]
        entered = {peer for roster in rosters for peer in roster if peer in invites}
        uses = Counter(digest(swarm.doors.invitations[peer].invite) for peer in entered)
        self._require(max(uses.values(), default=0) <= 1, "S1", "one invite has let in two peers")
