"""Says when a member loses sight of a quorum, when that has lasted too long, and when it is over (L5)."""

from __future__ import annotations

from .messages import Provisional
from .outcomes import Observe


class Seclusion:
    """Each thing is said once. ``observe`` (point, fields) gets ``quorum.missing``, ``quorum.lost``, ``quorum.found``.

    ``quorum.lost``, after ``limit_s``, is for the operator: members may be gone for good.
    """

    def __init__(self, limit_s: float, observe: Observe) -> None:
        self._limit_s, self._observe = limit_s, observe
        self._said: str | None = None

    def note(self, provisional: Provisional | None) -> None:
        """Call it regularly with what is the case now."""
        if provisional is None:
            if self._said is not None:
                self._observe("quorum.found", {})
            self._said = None
            return
        if self._said is None:
            self._say("quorum.missing", provisional)
        if self._said != "quorum.lost" and provisional.lasted_s >= self._limit_s:
            self._say("quorum.lost", provisional)

    def _say(self, point: str, provisional: Provisional) -> None:
        self._said = point
        self._observe(point, provisional.model_dump())
