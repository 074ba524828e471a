"""Who sits where in a delegate's group. Pure.

Within a round a seat never changes hands, whether its follower is still there or not: both would train on the same
samples. So `Seats` only grows while a round lasts, and is on disk before anybody is told (`seat_store`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ..identity import PeerId


@dataclass(frozen=True)
class Seated:
    """A follower with a seat."""

    peer: PeerId
    since: int
    """Round from which it has been in this group without a gap: its probation runs from there."""


@dataclass(frozen=True)
class Seats:
    """The seats of one round, numbered from 1; 0 is the delegate's own."""

    lineage: int
    round: int
    num_seats: int
    """The delegate's included."""
    taken: Mapping[int, Seated] = field(default_factory=dict[int, Seated])
    is_closed: bool = False
    """Whether none is given in this round, because an earlier life of this node may have given them already."""

    def seat_of(self, peer: PeerId) -> int | None:
        return next((seat for seat, seated in self.taken.items() if seated.peer == peer), None)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Everybody who has been given one, in the order of the seats."""
        return tuple(self.taken[seat].peer for seat in sorted(self.taken))

    def given_to(self, peer: PeerId) -> Seats | None:
        """With a seat for ``peer``, the one that it has if it has one; None if all are taken, or none is given."""
        if self.seat_of(peer) is not None:
            return self
        free = next((seat for seat in range(1, self.num_seats) if seat not in self.taken), None)
        if free is None or self.is_closed:
            return None
        return replace(self, taken={**self.taken, free: Seated(peer, self.round)})

    def next_round(self, number: int, staying: Collection[PeerId]) -> Seats:
        """The seats of a later round: those of ``staying`` stay theirs, all others are free."""
        kept = {seat: seated for seat, seated in self.taken.items() if seated.peer in staying}
        return Seats(self.lineage, number, self.num_seats, kept)
