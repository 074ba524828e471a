"""How much each peer may ask of us: a bucket per peer that fills at a steady rate (token bucket)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .identity import PeerId

_MAX_PEERS = 4096


class Allowances:
    """One bucket per peer, full at first. Memory is bounded: the bucket longest unused is forgotten."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        """``per_s``: what flows into each bucket per second; ``burst``: what a bucket holds."""
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()
        """Peer → (level, time of that level)."""

    def take(self, peer: PeerId, amount: float = 1.0) -> bool:
        """Take ``amount`` out of the peer's bucket; False, and nothing taken, if it holds less."""
        now_s = self._clock()
        level, at_s = self._buckets.pop(peer, (self._burst, now_s))
        level = min(self._burst, level + max(0.0, now_s - at_s) * self._per_s)
        is_granted = amount <= level
        self._buckets[peer] = (level - amount if is_granted else level, now_s)
        if len(self._buckets) > _MAX_PEERS:
            self._buckets.popitem(last=False)
        return is_granted
