"""Which delegate a follower goes to: groups form by measured bandwidth, and of about the same size. Pure.

A group shares its delegate's line, so what counts is the rate that is left per peer: the measured rate over the peers
that the group then has. That prefers near delegates, and fills none up while an equal one has nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ..identity import PeerId

NUM_PROBED = 4
"""Delegates that a follower measures before it chooses; each costs a short transfer."""


@dataclass(frozen=True)
class Candidate:
    """A delegate that a follower may go to."""

    peer: PeerId
    num_peers: int
    """In its group at present, itself included."""
    round_trip_s: float | None = None
    """None: not known."""

    def has_room(self, group_size: int) -> bool:
        return self.num_peers < group_size


@dataclass(frozen=True)
class Probe:
    """A short transfer from a delegate, as the follower has measured it."""

    round_trip_s: float
    bytes_per_s: float


def worth_probing(candidates: Sequence[Candidate], group_size: int, random: Random) -> list[Candidate]:
    """At most `NUM_PROBED` with free seats: the nearer half of twice as many drawn at random.

    At random, because if everybody measured the same few these would be full, and slow, when the measuring is done.
    """
    free = [candidate for candidate in candidates if candidate.has_room(group_size)]
    drawn = random.sample(free, min(len(free), 2 * NUM_PROBED))
    drawn.sort(key=lambda one: float("inf") if one.round_trip_s is None else one.round_trip_s)
    return drawn[:NUM_PROBED]


def best(candidates: Sequence[Candidate], probes: Mapping[PeerId, Probe]) -> PeerId | None:
    """The candidate with the highest measured rate per peer of its group; None if none has been measured."""
    measured = [one for one in candidates if one.peer in probes]
    if not measured:
        return None
    return max(measured, key=lambda one: (_rate_per_peer(one, probes[one.peer]), -probes[one.peer].round_trip_s)).peer


def _rate_per_peer(candidate: Candidate, probe: Probe) -> float:
    return probe.bytes_per_s / (candidate.num_peers + 1)


def without(candidates: Sequence[Candidate], refused: Collection[PeerId]) -> list[Candidate]:
    """Those that have not just refused; all of them if that leaves none: a seat may be free again."""
    return [one for one in candidates if one.peer not in refused] or list(candidates)
