"""The peers that a driver knows: last heartbeat, when and by which way it was heard, round-trip time, clock offset.

Who is *alive* is one question everywhere, here and in `round_machine.views`: whoever has spoken to us directly within
the heartbeat's time limit and has not said that it leaves. Two askers give the benefit of the doubt to peers that we
have not heard yet: an owner that waits for contributions (`PeerTable.may_live`), and the round machine, for one time
limit from when a peer was first named. The machine leaves out those who are banned or proven guilty, alive or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .identity import PeerId
from .messages import Echo, Heartbeat
from .round_machine import PeerView

MAX_PEERS = 1024
ECHOES_PER_HEARTBEAT = 4
_LONGEST_ROUND_TRIP_S = 60.0
"""More is a clock that was set meanwhile."""


@dataclass(frozen=True)
class PeerInfo:
    """What is known of a peer, for the driver, the status page and the logs."""

    peer: PeerId
    known_since_s: float
    """Monotonic time at which it was first named."""
    heartbeat: Heartbeat | None = None
    heard_s: float | None = None
    """Monotonic time of its last direct message; None if only the directory names it."""
    heartbeat_s: float | None = None
    """Monotonic time of its last direct heartbeat."""
    round_trip_s: float | None = None
    """By the last of our heartbeats that it has echoed."""
    clock_offset_s: float | None = None
    """Its clock minus ours, by its last heartbeat; half a round trip is taken off once that is known. Decides nothing.
    """
    clock_measured_s: float | None = None
    """Monotonic time of that measurement."""
    unreachable: str | None = None
    """Why the last message could not be sent to it."""

    def is_alive(self, now_s: float, timeout_s: float) -> bool:
        """Whether it has spoken to us within ``timeout_s`` and not left; the directory's word is no sign of life."""
        has_left = self.heartbeat is not None and self.heartbeat.phase == "leaving"
        return self.heard_s is not None and now_s - self.heard_s <= timeout_s and not has_left


class PeerTable:
    """Peers by id, at most `MAX_PEERS`: the roster always, others as they appear."""

    def __init__(self, me: PeerId, clock: Callable[[], float]) -> None:
        self._me, self._clock = me, clock
        self._peers: dict[PeerId, PeerInfo] = {}
        self.circle: Callable[[], tuple[PeerId, ...]] = self.others
        """Whom this node speaks to unasked: everybody else, unless the run's topology says otherwise."""
        self._echoed_s: dict[PeerId, float] = {}
        """When the heartbeat was heard that a peer's last echo was of."""

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

    def may_live(self, peer: PeerId, timeout_s: float) -> bool:
        """Whether it is alive, or has never been heard: then it may have started a moment ago."""
        info = self._peers.get(peer)
        return info is None or info.heard_s is None or info.is_alive(self._clock(), timeout_s)

    def heard(self, peer: PeerId, heartbeat: Heartbeat | None, now_s: float, now_unix_s: float) -> None:
        """Note a direct message."""
        self.add(peer)
        if (known := self._peers.get(peer)) is None:
            return
        known = replace(known, heard_s=now_s, unreachable=None)
        if heartbeat is not None:
            round_trip_s = _round_trip_s(heartbeat, self._me, now_unix_s)
            round_trip_s = known.round_trip_s if round_trip_s is None else round_trip_s
            known = replace(
                known,
                heartbeat=heartbeat,
                heartbeat_s=now_s,
                round_trip_s=round_trip_s,
                clock_offset_s=heartbeat.sent_unix_s - now_unix_s + (round_trip_s or 0.0) / 2,
                clock_measured_s=now_s,
            )
        self._peers[peer] = known

    def clock_apart(self, peer: PeerId, offset_s: float, now_s: float) -> None:
        """Note the clock of a peer whose messages cannot be accepted because of it."""
        self.add(peer)
        if (known := self._peers.get(peer)) is not None:
            self._peers[peer] = replace(known, clock_offset_s=offset_s, clock_measured_s=now_s)

    def echoes(self, now_s: float) -> tuple[Echo, ...]:
        """Echoes for the next heartbeat: those peers come first that have not had one for the longest time."""
        heard = [info for info in self._peers.values() if info.heartbeat is not None and info.heartbeat_s is not None]
        due = [info for info in heard if info.heartbeat_s != self._echoed_s.get(info.peer)]
        due.sort(key=lambda info: self._echoed_s.get(info.peer, 0.0))
        return tuple(self._echo(info, now_s) for info in due[:ECHOES_PER_HEARTBEAT])

    def _echo(self, info: PeerInfo, now_s: float) -> Echo:
        assert info.heartbeat is not None
        assert info.heartbeat_s is not None
        self._echoed_s[info.peer] = info.heartbeat_s
        return Echo(peer=info.peer, sent_unix_s=info.heartbeat.sent_unix_s, held_s=max(0.0, now_s - info.heartbeat_s))

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


def _round_trip_s(heartbeat: Heartbeat, me: PeerId, now_unix_s: float) -> float | None:
    """By our own clock at both ends, less the time that the peer held our heartbeat."""
    for echo in heartbeat.echoes:
        round_trip_s = now_unix_s - echo.sent_unix_s - echo.held_s
        if echo.peer == me and 0 <= round_trip_s <= _LONGEST_ROUND_TRIP_S:
            return round_trip_s
    return None


def _view(info: PeerInfo) -> PeerView:
    if info.heard_s is None:
        # The directory's word is no sign of life, and says nothing that a leader may rely on.
        return PeerView(info.known_since_s, is_met=False)
    return PeerView(info.heard_s, info.heartbeat)
