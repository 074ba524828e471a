"""Peers that have sent what must not be sent: each time, they are no partner for twice as many rounds as before."""

from __future__ import annotations

from collections import OrderedDict

from ..identity import PeerId
from ..peers import MAX_PEERS

MAX_ROUNDS = 64


class Distrust:
    """This node's own; it convinces nobody else, so a peer is shunned by those that it has lied to."""

    def __init__(self) -> None:
        self._until: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        """Peer → (strikes, first round in which it may be a partner again)."""

    def note(self, peer: PeerId, round_number: int) -> int:
        """It has broken a rule in a round; returns for how many rounds it is left out."""
        strikes, _ = self._until.pop(peer, (0, 0))
        num_rounds = min(2**strikes, MAX_ROUNDS)
        self._until[peer] = (min(strikes + 1, 16), round_number + 1 + num_rounds)
        if len(self._until) > MAX_PEERS:
            self._until.popitem(last=False)
        return num_rounds

    def shuns(self, peer: PeerId, round_number: int) -> bool:
        """Whether it is no partner in a round."""
        return round_number < self._until.get(peer, (0, 0))[1]
