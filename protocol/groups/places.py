"""Which samples a peer trains on in a round: a seat's part of a roster member's lease. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import PeerId
from ..standing import Standing


@dataclass(frozen=True)
class Place:
    """A lease's address. In a round no two peers have the same one, so no sample enters it twice."""

    round: int
    member: PeerId
    """Of the round's roster: whose lease it is a part of."""
    seat: int = 0
    """0 is the member's own."""

    def first_sample(self, standing: Standing, lease_samples: int, num_seats: int) -> int | None:
        """Index of the first of its ``lease_samples`` samples in the round after ``standing``.

        None if it is of another round, or not in that round's roster, or beyond ``num_seats``.
        """
        if self.round != standing.round + 1 or self.member not in standing.roster or self.seat >= num_seats:
            return None
        block = standing.roster.index(self.member) * num_seats + self.seat
        return standing.data_cursor + block * lease_samples
