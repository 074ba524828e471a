"""Faults that tests ask for through the environment of a node: all of them are here, and nowhere else is it read.

``ATOLL_KILL_AT="round.voted:4"`` kills the daemon at that journal point of round 4, ``"round.voted:+4"`` the fourth
time that this process reaches it, ``"round.voted"`` the first time. The kill is SIGKILL to this very process, after the
point's event has been committed to the journal, which proves that the point was reached.

``ATOLL_NAN_AT="3"`` puts a NaN into the trainer's first contribution to round 3, ``"-1"`` into all of them
(`TrainerSpec.nan_round`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

KILL_VARIABLE = "ATOLL_KILL_AT"
NAN_VARIABLE = "ATOLL_NAN_AT"


@dataclass
class KillPoint:
    """Where to die: at ``point`` of ``round`` (None: of any), the ``occurrence``-th time that this is reached."""

    point: str
    round: int | None = None
    occurrence: int = 1
    _num_reached: int = field(default=0, compare=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> KillPoint | None:
        """The kill asked for, or None. Raises ValueError on a round or occurrence that is no number."""
        text = (os.environ if environ is None else environ).get(KILL_VARIABLE, "")
        if not text:
            return None
        point, _, number = text.partition(":")
        if number.startswith("+"):
            return cls(point, None, int(number))
        return cls(point, int(number) if number else None)

    def is_due(self, point: str, round_number: int | None) -> bool:
        """Note that a point is reached; whether it is the one to die at."""
        if point != self.point or self.round not in (None, round_number):
            return False
        self._num_reached += 1
        return self._num_reached == self.occurrence


def kill_here() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def nan_round(environ: Mapping[str, str] | None = None) -> int:
    """Round whose first contribution gets a NaN; 0: none; -1: all of them. Raises ValueError for what is no number."""
    return int((os.environ if environ is None else environ).get(NAN_VARIABLE, "") or 0)
