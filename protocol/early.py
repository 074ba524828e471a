"""Messages for the round after the present one, until it begins: of each peer the newest of a kind, and its share."""

from __future__ import annotations

from .event_queue import size_of
from .identity import PeerId
from .quotas import EARLY_BYTES, EARLY_BYTES_PER_PEER, Shares
from .round_machine import Received


class EarlyMessages:
    """What is too early. Beyond a peer's share it is lost, like anything that a network loses."""

    def __init__(self) -> None:
        self._kept: dict[tuple[PeerId, str], Received] = {}
        self._shares = Shares(EARLY_BYTES_PER_PEER, EARLY_BYTES)

    def keep(self, message: Received) -> None:
        """Keep ``message``, instead of an earlier one of its kind and sender."""
        key = (message.sender, message.body.kind)
        if (former := self._kept.pop(key, None)) is not None:
            self._shares.give_back(message.sender, size_of(former))
        if self._shares.take(message.sender, size_of(message)):
            self._kept[key] = message

    def take_all(self) -> tuple[Received, ...]:
        """The messages, in the order in which they came; none is kept any more."""
        messages = tuple(self._kept.values())
        self._kept.clear()
        self._shares = Shares(EARLY_BYTES_PER_PEER, EARLY_BYTES)
        return messages
