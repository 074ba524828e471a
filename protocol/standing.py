"""What the last commit leaves in force for the round after it. Pure; the same on every member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from .identity import PeerId
from .messages import Commit
from .record import Newcomer
from .spec import Genesis
from .tickets import Guest


@dataclass(frozen=True)
class Standing:
    """Where a run stands after a commit; `of_genesis` is where every run begins."""

    round: int
    """Of the last commit; 0 is the genesis."""
    record_id: str
    """`content_id` of its record, the parent of the next round; the run id for the genesis."""
    roster: tuple[PeerId, ...]
    """Who votes on, and leases data for, the next round."""
    data_cursor: int = 0
    """First sample index of the next round's leases."""
    newcomers: tuple[Newcomer, ...] = ()
    """Members whose contributions weigh nothing yet."""
    ejected: tuple[PeerId, ...] = ()
    """Peers whose misconduct was proven: never in a roster again."""

    guests: tuple[Guest, ...] = ()
    """Peers that have entered by an invite, members or not."""

    @classmethod
    def of_genesis(cls, genesis: Genesis) -> Self:
        return cls(0, genesis.run_id, genesis.membership.roster)

    @classmethod
    def after(cls, commit: Commit) -> Self:
        plan = commit.record.plan
        return cls(
            plan.round,
            commit.record.content_id(),
            plan.next_roster,
            plan.data_cursor,
            plan.newcomers,
            plan.ejected,
            plan.guests,
        )

    def admits(self, genesis: Genesis, peer: PeerId) -> bool:
        """Whether ``peer`` may be a member: listed or let in before, and neither banned nor ejected."""
        if peer in genesis.control.banned or peer in self.ejected:
            return False
        return genesis.membership.admits(peer) or peer in self.guest_of

    @cached_property
    def guest_of(self) -> Mapping[PeerId, Guest]:
        """Those that entered by an invite, by peer."""
        return {guest.peer: guest for guest in self.guests}

    @cached_property
    def counts_from(self) -> Mapping[PeerId, int]:
        """Round from which each newcomer's contribution counts."""
        return {newcomer.peer: newcomer.counts_from for newcomer in self.newcomers}


def newcomers_after(standing: Standing, next_roster: tuple[PeerId, ...], num_rounds: int) -> tuple[Newcomer, ...]:
    """Who weighs nothing in the round after ``standing``, whose plan says so, or in a later one.

    New members of ``next_roster`` for ``num_rounds`` rounds each, and members that are still on probation: those that
    leave with this round, too, or leaving would end it. A peer that comes back is new again. Where nobody would count,
    everybody does from the next round on, or none could be held.
    """
    number = standing.round + 1
    counts_from = {peer: standing.counts_from.get(peer, 0) for peer in (*next_roster, *standing.roster)}
    counts_from |= {peer: number + 1 + num_rounds for peer in next_roster if peer not in standing.roster}
    if all(counts_from[peer] > number + 1 for peer in next_roster):
        counts_from = {peer: min(first, number + 1) for peer, first in counts_from.items()}
    members = set(standing.roster)
    barred = ((peer, n) for peer, n in counts_from.items() if n > (number if peer in members else number + 1))
    return tuple(Newcomer(peer=peer, counts_from=n) for peer, n in barred)
