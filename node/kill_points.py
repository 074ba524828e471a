"""Kills this process at a named journal point when the environment asks for it (tests of crashes).

``ATOLL_KILL_AT="round.voted:4"`` kills at that point of round 4; without a number, the first time it is reached. The
kill is SIGKILL to this very process, after the point's event has been committed to the journal, which proves that
the point was reached.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "ATOLL_KILL_AT"


@dataclass(frozen=True)
class KillPoint:
    """Where to die. ``round`` None means any round."""

    point: str
    round: int | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> KillPoint | None:
        """The kill asked for, or None. Raises ValueError on a round that is no number."""
        text = (os.environ if environ is None else environ).get(VARIABLE, "")
        if not text:
            return None
        point, _, number = text.partition(":")
        return cls(point, int(number) if number else None)

    def matches(self, point: str, round_number: int | None) -> bool:
        return point == self.point and (self.round is None or self.round == round_number)


def kill_here() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
