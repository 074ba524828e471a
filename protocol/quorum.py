"""How many members must agree (S1): two quorums of a roster always share a member, and more than ``f`` if ``f`` > 0.

A quorum is more than (n + f) / 2 of the n members. With f = 0 and an even roster one member, the *tie-breaker*, has an
extra half vote, so that of two halves exactly one can go on: in a pair, the tie-breaker alone. Weights are counted in
half votes: the roster then weighs 2n + 1, a quorum at least n + 1, so two disjoint quorums do not fit.

Where strangers may fill the roster, the run names *witnesses*: more than half of them must be among the voters, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from .identity import PeerId
from .leader import permutation
from .spec import Genesis


def tolerated_faults(roster_size: int, configured: int | None) -> int:
    """Misbehaving members that a certificate survives: the spec's number, by default a fifth of the roster.

    Never more than (n - 1) // 3: beyond that the n - f honest members would not be a quorum themselves.
    """
    wanted = roster_size // 5 if configured is None else configured
    return min(wanted, (roster_size - 1) // 3)


def has_witnesses(witnesses: Collection[PeerId], peers: Collection[PeerId]) -> bool:
    """Whether more than half of the run's witnesses are among ``peers``; true of any if there are none."""
    return not witnesses or 2 * len(set(witnesses).intersection(peers)) > len(witnesses)


@dataclass(frozen=True)
class Quorum:
    """The voting rule of one round."""

    roster: tuple[PeerId, ...]
    num_faults: int
    tie_breaker: PeerId
    """First of the round's permutation: the same for every attempt of a round, or quorums might not intersect."""
    witnesses: tuple[PeerId, ...] = ()
    """More than half of these must vote, wherever they are listed."""

    @cached_property
    def _members(self) -> frozenset[PeerId]:
        return frozenset(self.roster)

    def reached(self, voters: Collection[PeerId]) -> bool:
        """Whether ``voters`` (others than the roster's members do not count) are a quorum."""
        members = self._members.intersection(voters)
        half_votes = 2 * len(members)
        if self.num_faults == 0 and len(self.roster) % 2 == 0 and self.tie_breaker in members:
            half_votes += 1
        return half_votes > len(self.roster) + self.num_faults and has_witnesses(self.witnesses, members)

    def fewest_with(self, me: PeerId) -> int:
        """Fewest members, ``me`` among them, that are a quorum."""
        witnesses = [peer for peer in self.witnesses if peer in self.roster]
        voters = list(dict.fromkeys((me, self.tie_breaker, *witnesses, *self.roster)))
        return next((size for size in range(1, len(voters)) if self.reached(voters[:size])), len(voters))


def quorum_of(genesis: Genesis, roster: tuple[PeerId, ...], round_number: int, fragment: int = 0) -> Quorum:
    """The voting rule of a round that ``roster`` votes on."""
    order = permutation(genesis.run_id, genesis.lineage, fragment, round_number, roster)
    membership = genesis.membership
    num_faults = tolerated_faults(len(roster), membership.fault_tolerance)
    return Quorum(roster, num_faults, order[0], membership.witnesses)
