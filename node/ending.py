"""Whether a node that has applied the run's last round may leave: who may still come for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..protocol.identity import PeerId
from ..protocol.peers import PeerInfo


def others_are_done(
    roster: Collection[PeerId], peers: Mapping[PeerId, PeerInfo], last_round: int, patience_s: float, now_s: float
) -> bool:
    """Whether every member has applied the last round, has left, or has been silent for so long that it is lost.

    One that only stalls (a suspended machine, a break of the network) finds nobody any more once we have ended.
    """
    members = (info for peer, info in peers.items() if peer in roster)
    recent = (info.heartbeat for info in members if info.is_alive(now_s, patience_s))
    return all(heartbeat is not None and heartbeat.round >= last_round for heartbeat in recent)
