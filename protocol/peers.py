"""The peers that a driver knows: last heartbeat, when and by which way it was heard, clock offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .identity import PeerId
from .messages import Heartbeat
from .round_machine import PeerView

MAX_PEERS = 1024


@dataclass(frozen=True)
class PeerInfo:
    """What is known of a peer, for the driver, the status page and the logs."""

    peer: PeerId
    known_since_s: float
    """Monotonic time at which it was first named."""
    heartbeat: Heartbeat | None = None
    heard_s: float | None = None
    """Monotonic time of its last direct message; None if only the directory names it."""
    clock_offset_s: float | None = None
    """Its clock minus ours, by its last heartbeat (the message's travel time included). Decides nothing."""
    unreachable: str | None = None
    """Why the last message could not be sent to it."""

    def is_alive(self, now_s: float, timeout_s: float) -> bool:
        """Whether it has spoken to us within ``timeout_s``; the directory's word is no sign of life."""
        return self.heard_s is not None and now_s - self.heard_s < timeout_s


class PeerTable:
    """Peers by id, at most `MAX_PEERS`: the roster always, others as they appear."""

    def __init__(self, me: PeerId, clock: Callable[[], float]) -> None:
        self._me, self._clock = me, clock
        self._peers: dict[PeerId, PeerInfo] = {}

    @property
    def all(self) -> dict[PeerId, PeerInfo]:
        return dict(self._peers)

    def others(self) -> tuple[PeerId, ...]:
        return tuple(self._peers)

    def add(self, peer: PeerId, heartbeat: Heartbeat | None = None) -> None:
        """Note a peer of which the roster or the directory tells."""
        if peer == self._me or (peer not in self._peers and len(self._peers) >= MAX_PEERS):
            return
        known = self._peers.get(peer, PeerInfo(peer, self._clock()))
        # A record's heartbeat is older than one that came directly.
        self._peers[peer] = known if known.heartbeat is not None else replace(known, heartbeat=heartbeat)

    def is_met(self, peer: PeerId) -> bool:
        """Whether the peer has ever sent us a direct message."""
        known = self._peers.get(peer)
        return known is not None and known.heard_s is not None

    def heard(self, peer: PeerId, heartbeat: Heartbeat | None, now_s: float, now_unix_s: float) -> None:
        """Note a direct message."""
        self.add(peer)
        if (known := self._peers.get(peer)) is None:
            return
        known = replace(known, heard_s=now_s, unreachable=None)
        if heartbeat is not None:
            known = replace(known, heartbeat=heartbeat, clock_offset_s=heartbeat.sent_unix_s - now_unix_s)
        self._peers[peer] = known

    def unreachable(self, peer: PeerId, why: str) -> bool:
        """Note a failed message; whether that is news."""
        known = self._peers.get(peer)
        if known is None or known.unreachable == why:
            return False
        self._peers[peer] = replace(known, unreachable=why)
        return True

    def forget_heartbeats(self) -> None:
        """What peers have said of themselves was of another lineage."""
        self._peers = {peer: replace(info, heartbeat=None) for peer, info in self._peers.items()}

    def rounds(self) -> list[int]:
        """What peers say that they have applied."""
        return [info.heartbeat.round for info in self._peers.values() if info.heartbeat is not None]

    def ahead(self, head_round: int) -> tuple[PeerId, ...]:
        """Peers that have applied more than ``head_round``, newest first."""
        rounds = {info.peer: info.heartbeat.round for info in self._peers.values() if info.heartbeat}
        ahead = [peer for peer, number in rounds.items() if number > head_round]
        return tuple(sorted(ahead, key=lambda peer: -rounds[peer]))

    def views(self) -> dict[PeerId, PeerView]:
        """For the round machine."""
        return {info.peer: _view(info) for info in self._peers.values()}


def _view(info: PeerInfo) -> PeerView:
    if info.heard_s is None:
        # The directory's word is no sign of life, and says nothing that a leader may rely on.
        return PeerView(info.known_since_s, is_met=False)
    return PeerView(info.heard_s, info.heartbeat)
