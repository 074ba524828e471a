"""Who swaps with whom in a gossip round: a matching that everybody computes for itself from what it has heard. Pure.

Every pair of peers has a weight in a round, a hash that both compute alike and nobody chooses. The matching takes the
lightest pair first, then the lightest of what is left, and so on. With equal views all compute the same matching; where
views differ in one peer, only the pairs near it in that order change. A peer that is not free is left out, and the
matching is taken again over the others, so that preferences are the same symmetric order throughout: they have no
cycles, and two free peers that prefer each other to all other free ones always exist (the lightest free pair).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from ..identity import PeerId

_DOMAIN = b"atoll/gossip/pair/1\0"
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Draw:
    """What the weights of a run's pairs are drawn from."""

    run_id: str
    lineage: int

    def keys(self, peers: Collection[PeerId], round_number: int) -> NDArray[np.uint64]:
        """One key per peer for a round, (len(peers),). A peer cannot choose an identity that suits it in all rounds."""
        seed = _DOMAIN + f"{self.run_id} {self.lineage} {round_number} ".encode()
        keys = [int.from_bytes(blake3(seed + peer.encode()).digest(8), "little") for peer in peers]
        return np.array(keys, np.uint64)


def _weights(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Weight of each pair of keys; symmetric (splitmix64's output function of their sum)."""
    with np.errstate(over="ignore"):
        mixed = first + second + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


class Spot(NamedTuple):
    """Where a free peer stands."""

    round: int
    """That it works on."""
    is_reachable: bool = True
    """Whether it can be dialled."""


def matching(draw: Draw, spots: Mapping[PeerId, Spot], max_apart: int) -> dict[PeerId, PeerId]:
    """Partner by peer, of the free ones; who is left over is not in it.

    A pair's weight is of the later one's round, which both know of. Two peers are no pair if they are more than
    ``max_apart`` rounds apart, or if neither can be dialled.
    """
    peers = tuple(sorted(spots))
    return dict(_matched(draw, peers, tuple(spots[peer] for peer in peers), max_apart))


@lru_cache(maxsize=64)  # asked again at every heartbeat, for the same view
def _matched(draw: Draw, peers: tuple[PeerId, ...], spots: tuple[Spot, ...], max_apart: int) -> dict[PeerId, PeerId]:
    first, second = np.triu_indices(len(peers), 1)
    at, reachable = np.array([s.round for s in spots], np.int64), np.array([s.is_reachable for s in spots], bool)
    fits = (np.abs(at[first] - at[second]) <= max_apart) & (reachable[first] | reachable[second])
    first, second = first[fits], second[fits]
    later = np.maximum(at[first], at[second])
    weights = np.zeros(len(first), np.uint64)
    for number in np.unique(later):
        keys, of_round = draw.keys(peers, int(number)), later == number
        weights[of_round] = _weights(keys[first[of_round]], keys[second[of_round]])
    return _greedy(peers, first, second, np.lexsort((second, first, weights)))


def _greedy(
    peers: tuple[PeerId, ...], first: NDArray[np.intp], second: NDArray[np.intp], order: NDArray[np.intp]
) -> dict[PeerId, PeerId]:
    partner_of: dict[PeerId, PeerId] = {}
    for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if peers[i] not in partner_of and peers[j] not in partner_of:
            partner_of[peers[i]], partner_of[peers[j]] = peers[j], peers[i]
    return partner_of


def stands(mine: PeerId, theirs: PeerId) -> bool:
    """Of two offers that cross each other: whether ours stands. Exactly one of the two does."""
    return mine < theirs
