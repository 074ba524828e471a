"""What has been said and decided in a simulated run, by lineage, as the checks of `properties` keep it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..identity import PeerId
from ..messages import Commit
from .samples import NOTHING, Offer, Samples


@dataclass
class RoundLedger:
    """What was said and done in one round, by everybody, over all restarts."""

    plans: dict[int, str] = field(default_factory=dict[int, str])
    records: dict[int, str] = field(default_factory=dict[int, str])
    promised: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    votes: dict[tuple[int, str], set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    voted: dict[tuple[PeerId, int], str] = field(default_factory=dict[tuple[PeerId, int], str])
    chosen: tuple[int, str] | None = None
    """Lowest ballot at which a quorum has voted for one record, and that record."""
    leases: dict[int, PeerId] = field(default_factory=dict[int, PeerId])


class History:
    """One lineage: its decided rounds, those before it began included, and what its means contain."""

    def __init__(self, lineage: int, first_roster: tuple[PeerId, ...], earlier: Sequence[Commit] = ()) -> None:
        self.lineage = lineage
        self.rounds: dict[int, RoundLedger] = defaultdict(RoundLedger)
        self.commits = list(earlier)
        """By round."""
        self.num_earlier, self._first_roster = len(self.commits), first_roster
        self.num_amendments = 0
        """As many as whoever works on it knows at least."""
        self.averaged: dict[int, set[int]] = defaultdict(set)
        """Chunk → samples that its means contain."""
        self.counted: dict[tuple[PeerId, int], Samples] = {}

    def roster(self, round_number: int) -> tuple[PeerId, ...]:
        """Who votes on a round whose parent is decided."""
        if round_number == self.num_earlier + 1:
            return self._first_roster
        return self.commits[round_number - 2].record.plan.next_roster if round_number > 1 else ()

    def ejected(self, round_number: int) -> tuple[str, ...]:
        """Who was ejected before a round."""
        return self.commits[round_number - 2].record.plan.ejected if round_number > 1 else ()

    def count(self, offer: Offer, chunks: Iterable[int]) -> Samples:
        """Chunks' means contain an offer; returns samples that one of them contained already."""
        twice = NOTHING
        for chunk in chunks:
            twice |= self.averaged[chunk] & offer.samples
            self.averaged[chunk] |= offer.samples
        key = (PeerId(offer.peer), offer.round)
        self.counted[key] = self.counted.get(key, NOTHING) | offer.samples
        return twice
