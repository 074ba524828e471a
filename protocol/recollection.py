"""Whether a founder with an empty disk has spoken before: the others are asked (S1).

A lost disk leaves no trace on the node itself, and in round 1 an empty folder is what every founder begins with. So a
founder that begins with one neither promises nor votes until the others have answered what they have heard of it. They
answer with the first heartbeat that they have from it, which it has signed: a peer cannot make it abstain by a lie.
Rounds that it learns of meanwhile answer nothing: it may have voted in later ones, and lost them with its disk.

What nobody remembers, because all others that answer have lost their disks too, is not found out. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from .envelope import Envelope, InvalidMessage
from .identity import PeerId
from .quorum import Quorum


class Verdict(Enum):
    """What is known of an earlier life."""

    UNSURE = "unsure"
    NEW = "new"
    FORGOT = "forgot"


def is_of_earlier_life(raw: bytes, me: PeerId, run_id: str, own: range) -> bool:
    """Whether ``raw`` is an envelope of ours, and its sequence number none of our ``own`` since the disk was empty."""
    try:
        header = Envelope.open(raw, run_id=run_id).header
    except InvalidMessage:
        return False
    return header.sender == me and header.sequence not in own


@dataclass(frozen=True)
class Recollected:
    """For the round loop: it is known now."""

    has_forgotten: bool


class Recollection:
    """Collects answers. ``is_earlier`` says whether signed words are ours and of an earlier life."""

    def __init__(
        self,
        me: PeerId,
        quorum: Quorum,
        is_earlier: Callable[[bytes], bool],
        *,
        began_s: float,
        patience_s: float,
    ) -> None:
        self._me, self._quorum, self._is_earlier = me, quorum, is_earlier
        self._silent_until_s = began_s + patience_s
        """Until then a member that is not heard from may still be about to speak."""
        self._answered: set[PeerId] = set()
        self._has_evidence = False

    def unasked(self, alive: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Living members whose answer is missing."""
        return tuple(peer for peer in self._others() if peer in alive and peer not in self._answered)

    def note(self, sender: PeerId, envelope: bytes | None) -> None:
        """An answer: the first words of ours that ``sender`` has heard, None if it has heard none."""
        self._answered.add(sender)
        if envelope is not None and self._is_earlier(envelope):
            self._has_evidence = True

    def verdict(self, alive: Collection[PeerId], now: float) -> Verdict:
        """Sure once all have answered, or, after a while, all that live, if with us they are a quorum."""
        if self._has_evidence:
            return Verdict.FORGOT
        is_waiting = now < self._silent_until_s and len(self._answered) < len(self._others())
        if is_waiting or self.unasked(alive) or not self._quorum.reached({self._me, *self._answered}):
            return Verdict.UNSURE
        return Verdict.NEW

    def _others(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._quorum.roster if peer != self._me)
