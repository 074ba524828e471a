"""How each peer is reached: beside libp2p, over libp2p, or through a relay only. Pure.

A relayed connection is the first step of a hole punch, so a pair is given a while before it counts as relay-only; from
then on bulk streams to the peer fail at once, until another connection is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..identity import PeerId
from . import addresses

PathKind = Literal["direct", "libp2p", "relayed"]
"""TLS beside libp2p (`direct`); a libp2p connection without a relay; only with one."""
MAX_PEERS = 4096


class Paths:
    """``settle_s``: how long a connection without a relay may take to come about."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._kinds: dict[PeerId, PathKind] = {}
        self._relayed_since_s: dict[PeerId, float] = {}

    def see(self, connected: Mapping[PeerId, Sequence[str]], now_s: float) -> None:
        """The remote addresses of all present libp2p connections."""
        before, self._kinds = self._kinds, {}
        for peer, texts in connected.items():
            kind: PathKind = "relayed" if is_relayed_only(texts) else "libp2p"
            # What libp2p has says nothing of the way beside it: the next stream does.
            self.note(peer, "direct" if before.get(peer) == "direct" else kind, now_s)

    def note(self, peer: PeerId, kind: PathKind, now_s: float) -> None:
        """A stream to ``peer`` took this path."""
        self._kinds[peer] = kind
        if kind != "relayed":
            self._relayed_since_s.pop(peer, None)
            return
        # Kept when the connection ends: a new one over a relay is no reason to wait again.
        self._relayed_since_s.setdefault(peer, now_s)
        while len(self._relayed_since_s) > MAX_PEERS:
            self._relayed_since_s.pop(next(iter(self._relayed_since_s)))

    def kind(self, peer: PeerId) -> PathKind | None:
        """None: not connected."""
        return self._kinds.get(peer)

    def direct(self) -> tuple[PeerId, ...]:
        """Peers to which the last stream went beside libp2p."""
        return tuple(peer for peer, kind in self._kinds.items() if kind == "direct")

    def unrelayed(self) -> tuple[PeerId, ...]:
        """Peers with at least one connection that is not relayed."""
        return tuple(peer for peer, kind in self._kinds.items() if kind != "relayed")

    def is_unrelayed(self, peer: PeerId) -> bool:
        return self._kinds.get(peer, "relayed") != "relayed"

    def is_relay_only(self, peer: PeerId, now_s: float) -> bool:
        since_s = self._relayed_since_s.get(peer)
        return since_s is not None and now_s - since_s >= self._settle_s

    def relay_only(self, now_s: float) -> tuple[PeerId, ...]:
        """Connected peers for which no connection without a relay came about in time."""
        return tuple(peer for peer in self._kinds if self.is_relay_only(peer, now_s))


def is_relayed_only(texts: Sequence[str]) -> bool:
    """Whether every connection to a peer, by its remote addresses, leads through a relay."""
    return bool(texts) and all(map(addresses.is_relayed, texts))
