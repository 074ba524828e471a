"""When each phase of a round began and how long it took, as the round bar shows it. Pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from .snapshot import Phase, PhaseName
from .status import utc

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
_DECAY = 0.7
"""Weight of the past in the expected duration of a phase."""
_TELLING_PROGRESS = 0.1
"""From this share on, the pace of a first round tells when it ends."""


@dataclass
class RoundClock:
    """Durations of the present round's phases, and what earlier rounds let expect."""

    started_s: dict[PhaseName, float] = field(default_factory=dict[PhaseName, float])
    expected_s: dict[PhaseName, float] = field(default_factory=dict[PhaseName, float])

    @property
    def phase(self) -> PhaseName | None:
        """The phase that is going on."""
        return next((name for name in reversed(PHASES) if name in self.started_s), None)

    def is_before(self, phase: PhaseName) -> bool:
        """Whether the round has not come as far as ``phase``."""
        now = self.phase
        return now is None or PHASES.index(now) < PHASES.index(phase)

    def enter(self, phase: PhaseName, now_s: float) -> None:
        """A phase begins. Re-entering an earlier one (an attempt that failed) forgets what came after it."""
        for name in PHASES[PHASES.index(phase) :]:
            self.started_s.pop(name, None)
        self.started_s[phase] = now_s

    def seconds(self, phase: PhaseName, end_s: float) -> float | None:
        """Duration of a phase that has begun; one that still runs ends at ``end_s``."""
        start_s = self.started_s.get(phase)
        if start_s is None:
            return None
        later = [self.started_s[name] for name in PHASES[PHASES.index(phase) + 1 :] if name in self.started_s]
        return max(0.0, min([*later, end_s]) - start_s)

    def finish(self, now_s: float) -> dict[PhaseName, float]:
        """The round is over: learn from it, begin anew, and return the durations."""
        durations: dict[PhaseName, float] = {}
        for name in self.started_s:
            durations[name] = self.seconds(name, now_s) or 0.0
        for name, seconds in durations.items():
            before = self.expected_s.get(name, seconds)
            self.expected_s[name] = _DECAY * before + (1 - _DECAY) * seconds
        self.started_s.clear()
        return durations

    def remaining_s(self, now_s: float, until: PhaseName, progress: float | None = None) -> float | None:
        """Time until ``until`` begins (``apply``: until new weights), if earlier rounds or progress let expect it.

        ``progress`` is the measured share of the present phase's work, if that can be measured.
        """
        total = 0.0
        for name in PHASES[: PHASES.index(until)]:
            left_s = self._left_s(name, now_s, progress)
            if left_s is None:
                return None
            total += left_s
        return total

    def _left_s(self, name: PhaseName, now_s: float, progress: float | None) -> float | None:
        if name != self.phase:
            return 0.0 if name in self.started_s else self.expected_s.get(name)
        spent_s, expected_s = self.seconds(name, now_s) or 0.0, self.expected_s.get(name)
        if progress is None or progress <= 0:
            return None if expected_s is None else max(0.0, expected_s - spent_s)
        measured_s = spent_s * (1 - progress) / progress
        if expected_s is None:
            return measured_s if progress >= _TELLING_PROGRESS else None
        # the further it is, the more its own pace counts
        return progress * measured_s + (1 - progress) * max(0.0, expected_s - spent_s)

    def view(self, now_s: float, wall_minus_clock_s: float, progress: float | None) -> tuple[Phase, ...]:
        """For the snapshot. ``progress`` is the measured share of the present phase's work."""
        return tuple(self._phase(name, now_s, wall_minus_clock_s, progress) for name in PHASES)

    def _phase(self, name: PhaseName, now_s: float, offset_s: float, progress: float | None) -> Phase:
        start_s = self.started_s.get(name)
        is_now = name == self.phase
        return Phase(
            name=name,
            started_at=None if start_s is None else utc(start_s + offset_s),
            seconds=None if is_now else self.seconds(name, now_s),
            expected_s=self.expected_s.get(name),
            progress=progress if is_now else None,
        )
