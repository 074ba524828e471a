"""Gives commits to those who missed them: a large answer to a small question, so not too often."""

from __future__ import annotations

from collections.abc import Callable

from .allowance import Allowances
from .identity import PeerId
from .mail import Mail
from .replica import Replica

_COMMITS_AT_ONCE = 16
"""Commits that one peer gets without delay; then one per heartbeat. Whoever missed more rounds asks for the state."""


class CommitServer:
    """Sends what the replica's chain has."""

    def __init__(self, replica: Replica, mail: Mail, interval_s: float, clock: Callable[[], float]) -> None:
        self._replica, self._mail = replica, mail
        self._allowances = Allowances(1 / interval_s, _COMMITS_AT_ONCE, clock)

    def send(self, peer: PeerId, round_number: int) -> None:
        """Send a commit with its certificate, if it is here."""
        if round_number <= self._replica.head_round and self._allowances.take(peer):
            for commit in self._replica.commits(round_number, 1):
                self._mail.post((peer,), commit)
