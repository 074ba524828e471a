"""What came of earlier attempts to reach each peer directly: whether, and which way round, to try again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from ...identity import PeerId

Way = Literal["out", "in"]
"""We dial; the peer dials us."""
FIRST_PAUSE_S, MAX_PAUSE_S = 30.0, 1800.0
MAX_PEERS = 4096


@dataclass
class _Record:
    way: Way = "out"
    """The one to try next."""
    num_failed: int = 0
    """In a row."""
    retry_at_s: float = float("-inf")
    pause_s: float = 0.0
    reason: str = ""


class Outcomes:
    """``can_be_dialled``: whether the other way round is worth a try here."""

    def __init__(self) -> None:
        self._of: OrderedDict[PeerId, _Record] = OrderedDict()

    def way(self, peer: PeerId, now_s: float, *, can_be_dialled: bool) -> Way | None:
        """How to try now; None while the pause after a failure lasts."""
        record = self._of.get(peer, _Record())
        if now_s < record.retry_at_s:
            return None
        return record.way if can_be_dialled else "out"

    def succeed(self, peer: PeerId, way: Way) -> None:
        self._of[peer] = _Record(way)
        self._bound(peer)

    def fail(self, peer: PeerId, way: Way, reason: str, now_s: float, *, can_be_dialled: bool) -> None:
        """After one way comes the other, at the next stream; after both comes a pause, each twice the one before."""
        record = self._of.setdefault(peer, _Record())
        record.reason, record.num_failed = reason, record.num_failed + 1
        record.way = "in" if way == "out" else "out"
        if record.num_failed % 2 == 0 or not can_be_dialled:
            record.pause_s = min(max(2 * record.pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
            record.retry_at_s = now_s + record.pause_s
        self._bound(peer)

    def reason(self, peer: PeerId) -> str:
        """Why the last attempt failed; empty if it did not."""
        record = self._of.get(peer)
        return record.reason if record is not None else ""

    def is_proven(self, peer: PeerId) -> bool:
        """Whether the last attempt succeeded."""
        record = self._of.get(peer)
        return record is not None and not record.num_failed

    def retry_in_s(self, peer: PeerId, now_s: float) -> float:
        record = self._of.get(peer)
        return max(0.0, record.retry_at_s - now_s) if record is not None else 0.0

    def _bound(self, peer: PeerId) -> None:
        self._of.move_to_end(peer)
        while len(self._of) > MAX_PEERS:
            self._of.popitem(last=False)
