"""Whether this machine's clock is away from the other peers' clocks, by their heartbeats: for a person, never a rule.

Rounds do not depend on it. Times that are shown do, and messages of a clock that is hours away are refused.
"""

from __future__ import annotations

from .figures import duration_text
from .reasons import Reason, State, explain
from .telemetry import Telemetry

SKEW_S = 10.0
"""More than a heartbeat takes on a crowded link, and less than what confuses whoever compares logs."""


class ClockWatch:
    """Says each offset once, after it has lasted ``patience_s``: heartbeats from before a sleep tell an old time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._said_s = self._pending_s = 0.0
        self._pending_since_s: float | None = None

    def note(self, offset_s: float | None, now_s: float) -> float | None:
        """Call it regularly with the peers' clocks minus ours (None: unknown) and the monotonic time.

        Returns the offset when there is something new to say about it: 0 when the clock is right again.
        """
        if offset_s is None or abs(self._claim(offset_s) - self._said_s) < SKEW_S:
            self._pending_since_s = None
            return None
        claim_s = self._claim(offset_s)
        if self._pending_since_s is None or abs(claim_s - self._pending_s) >= SKEW_S:
            self._pending_s, self._pending_since_s = claim_s, now_s
        if now_s - self._pending_since_s < self._patience_s:
            return None
        self._said_s, self._pending_since_s = claim_s, None
        return claim_s

    def _claim(self, offset_s: float) -> float:
        """An offset that is small enough is none; half of `SKEW_S` ends what has been said."""
        return 0.0 if abs(offset_s) < (SKEW_S / 2 if self._said_s else SKEW_S) else offset_s


def tell(telemetry: Telemetry, offset_s: float | None) -> None:
    """An alert that stays until the clock is right again; its text has the measured offset."""
    code = Reason.CLOCK_SKEW.value
    if offset_s:
        skew = f"{duration_text(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'}"
        said = explain(State.TRAINING, Reason.CLOCK_SKEW, {"skew": skew})
        telemetry.alert(code, said.sentence, fix=said.fix)
    elif offset_s is not None:
        telemetry.clear_alert(code)
        telemetry.say("this machine’s clock agrees with the other peers’ again")
