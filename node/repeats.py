"""What is said again and again while a trouble lasts is said once, and then ever more rarely. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE_S = 60.0
_MAX_CAUSES = 256


@dataclass
class _Cause:
    next_s: float
    """When it may be said again."""
    pause_s: float
    num_unsaid: int = 0


@dataclass
class Repeats:
    """Counts by cause: any text that is the same whenever the same thing happens. `forget` once the trouble is over."""

    _causes: dict[str, _Cause] = field(default_factory=dict[str, _Cause])

    def note(self, cause: str, now_s: float) -> int | None:
        """It has happened. None: not worth a line now; else how often it has happened since it was said last.

        Said at once the first time (0), then at the first chance after 1, 2, 4, … `FIRST_PAUSE_S`, each from the last.
        """
        known = self._causes.get(cause)
        if known is None:
            if len(self._causes) >= _MAX_CAUSES:
                self._causes.clear()
            self._causes[cause] = _Cause(now_s + FIRST_PAUSE_S, FIRST_PAUSE_S)
            return 0
        known.num_unsaid += 1
        if now_s < known.next_s:
            return None
        num_unsaid, known.num_unsaid, known.pause_s = known.num_unsaid, 0, 2 * known.pause_s
        known.next_s = now_s + known.pause_s
        return num_unsaid

    def forget(self) -> None:
        """What happens next is news again."""
        self._causes.clear()
