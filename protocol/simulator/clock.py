"""A virtual clock: a priority queue of everything that will happen, performed in the order of its time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

Work: TypeAlias = Callable[..., None]
Pending: TypeAlias = tuple[float, int, Work, tuple[Any, ...]]
"""Due time, a number that keeps the order of equal times, what to do, and its arguments."""


class Clock:
    """Time that passes only from one event to the next. Events of equal time happen in the order of their planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pending: list[Pending] = []
        self.num_events = 0
        """Events that have happened, for measuring."""
        self._numbers = itertools.count()
        self._is_stopped = False

    def at(self, due_s: float, work: Work, *arguments: Any) -> None:
        """Plan ``work(*arguments)`` at a time; one that is over means next."""
        heapq.heappush(self.pending, (due_s, next(self._numbers), work, arguments))

    def run(self, duration_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Follow the clock until `stop` or until ``until``, which is asked before every event; False: time was up."""
        end_s, pending, pop = self.now + duration_s, self.pending, heapq.heappop
        self._is_stopped = False
        while pending and pending[0][0] <= end_s:
            if self._is_stopped or (until is not None and until()):
                return True
            due_s, _, work, arguments = pop(pending)
            if due_s > self.now:
                self.now = due_s
            self.num_events += 1
            work(*arguments)
        self.now = max(self.now, end_s)
        return self._is_stopped or (until is not None and until())

    def stop(self) -> None:
        """End `run` after the present event; cheaper than to be asked before each."""
        self._is_stopped = True

    def pick(self, index: int) -> None:
        """Let any pending thing happen now, whatever its time: schedules that no network would make."""
        _, _, work, arguments = self.pending.pop(index % len(self.pending))
        heapq.heapify(self.pending)
        work(*arguments)
