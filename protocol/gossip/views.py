"""What a peer's heartbeat means for a gossip round, and how far behind the others this node is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median_high, median_low

from ..grace import remaining_s
from ..identity import PeerId
from ..messages import Heartbeat
from ..peers import PeerInfo
from .search import Doing, Sight

_DOING: Mapping[str, Doing] = {"training": "training", "ready": "ready", "exchanging": "taken"}
"""Phases of those that take part; whoever starts, loads, rests or leaves does not."""


def sights(
    peers: Mapping[PeerId, PeerInfo], admits: Callable[[PeerId], bool], timeout_s: float, now_s: float
) -> dict[PeerId, Sight]:
    """Peers that may be partners: admitted, alive by their own signed heartbeats, and taking part."""
    seen: dict[PeerId, Sight] = {}
    for peer, info in peers.items():
        heartbeat = info.heartbeat
        if heartbeat is None or not info.is_alive(now_s, timeout_s) or not admits(peer):
            continue
        if (doing := _DOING.get(heartbeat.phase)) is not None:
            seen[peer] = Sight(heartbeat.round + 1, doing, heartbeat.reachable, _remaining_s(info, heartbeat, now_s))
    return seen


def _remaining_s(info: PeerInfo, heartbeat: Heartbeat, now_s: float) -> float | None:
    heard_s = now_s if info.heartbeat_s is None else info.heartbeat_s
    return remaining_s(heartbeat, heard_s, now_s, heartbeat.round + 1)


def is_behind(own_head: int, heads: Iterable[int], max_apart: int) -> bool:
    """Whether most of those that are heard from, ourselves among them, are too far ahead to pair with us.

    The high median: of two peers, the one that is behind must know it; of three or more, no single liar decides.
    """
    return median_high([own_head, *heads]) > own_head + max_apart


def next_round(own_round: int, partner_round: int, heads: Iterable[int], last_round: int) -> int:
    """Number of the round that a swap ends: the later one of the two, so that peers of unequal speed stay together.

    Never further than one after the low median of what is heard, so that one peer's word carries nobody away, and not
    beyond the run's ``last_round`` (0: none).
    """
    middle = median_low([own_round - 1, *heads])
    number = max(own_round, min(partner_round, middle + 1))
    return max(own_round, min(number, last_round)) if last_round else number
