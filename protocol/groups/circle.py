"""Who talks to whom in two-tier rounds, so that nobody talks to everybody. Pure.

Heartbeats, attests and commits go to a node's circle: of a delegate, the roster and whoever speaks to it (its
followers, and peers that look for a group); of a follower, its delegate and its group; of a peer without a group, a few
delegates at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..identity import PeerId
from ..peers import PeerInfo

NUM_ASKED = 8
"""Delegates that a peer without a group speaks to at once. They change, so that dead ones do not keep it alone."""


def of_delegate(
    roster: Sequence[PeerId], peers: Mapping[PeerId, PeerInfo], now: float, timeout_s: float
) -> tuple[PeerId, ...]:
    """The roster, and whoever has spoken to us lately."""
    speakers = (peer for peer, info in peers.items() if info.is_alive(now, timeout_s))
    return tuple(dict.fromkeys((*roster, *speakers)))


def of_follower(delegate: PeerId, group: Collection[PeerId]) -> tuple[PeerId, ...]:
    return tuple(dict.fromkeys((delegate, *group)))


def of_seeker(roster: Sequence[PeerId], peers: Mapping[PeerId, PeerInfo], turn: int) -> tuple[PeerId, ...]:
    """Of the roster as we know it, and of those who say that they are delegates, `NUM_ASKED`; others at every turn."""
    stated = (peer for peer, info in peers.items() if _is_delegate(info))
    known = tuple(dict.fromkeys((*roster, *stated)))
    if len(known) <= NUM_ASKED:
        return known
    first = turn * NUM_ASKED % len(known)
    return (known + known)[first : first + NUM_ASKED]


def _is_delegate(info: PeerInfo) -> bool:
    group = None if info.heartbeat is None else info.heartbeat.group
    return group is not None and group.delegate == info.peer
