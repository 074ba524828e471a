"""How each peer is reached: directly, or through a relay only. Pure.

A relayed connection is the first step of a hole punch, so a pair is given a while before it counts as relay-only; from
then on bulk streams to the peer fail at once, until a direct connection is seen. A direct path of another kind (an
encrypted TCP stream beside libp2p) would be one more source of `see` and one more answer of `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..identity import PeerId
from . import addresses

PathKind = Literal["direct", "relayed"]
MAX_PEERS = 4096


class Paths:
    """``settle_s``: how long a direct connection may take to come about."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._kinds: dict[PeerId, PathKind] = {}
        self._relayed_since_s: dict[PeerId, float] = {}

    def see(self, connected: Mapping[PeerId, Sequence[str]], now_s: float) -> None:
        """The remote addresses of all present connections."""
        self._kinds = {peer: "relayed" if is_relayed_only(texts) else "direct" for peer, texts in connected.items()}
        for peer, kind in self._kinds.items():
            self.note(peer, kind, now_s)

    def note(self, peer: PeerId, kind: PathKind, now_s: float) -> None:
        """A stream to ``peer`` took this path."""
        self._kinds[peer] = kind
        if kind == "direct":
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
        """Peers with at least one direct connection."""
        return tuple(peer for peer, kind in self._kinds.items() if kind == "direct")

    def is_relay_only(self, peer: PeerId, now_s: float) -> bool:
        since_s = self._relayed_since_s.get(peer)
        return since_s is not None and now_s - since_s >= self._settle_s

    def relay_only(self, now_s: float) -> tuple[PeerId, ...]:
        """Connected peers for which no direct connection came about in time."""
        return tuple(peer for peer in self._kinds if self.is_relay_only(peer, now_s))


def is_relayed_only(texts: Sequence[str]) -> bool:
    """Whether every connection to a peer, by its remote addresses, leads through a relay."""
    return bool(texts) and all(map(addresses.is_relayed, texts))
