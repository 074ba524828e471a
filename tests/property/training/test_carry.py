"""S3 and S6 over random histories: no step counts twice, and none is kept longer than one missed commit.

The model is replaced by a ledger: step k moves parameter k alone, so a pseudo-gradient shows which steps it holds.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.training.config import InnerConfig
from atoll.training.data import Lease
from atoll.training.inner_loop import StepResult
from atoll.training.reducer import Aborted, Committed, Event, Progress, PseudoGradient, Start, Stop
from atoll.training.session import Session

MAX_STEPS = 400
TOKENS = 10
LEASE = Lease(0, 12)  # three times what a round takes


class Ledger:
    """Stands for an `InnerLoop`: the number of a step is the parameter that it moves."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(inner=InnerConfig(num_steps=4, batch_size=1))
        self.layout = SimpleNamespace(num_elements=MAX_STEPS)
        self.data = SimpleNamespace(batch=lambda indices: indices)
        self.flat = np.zeros(MAX_STEPS, np.float32)
        self.num_steps_done = 0

    def use_lr(self, lr: float | None) -> None:
        """Every step moves its parameter by one, whatever the rules say."""

    def step(self, _batch: object) -> StepResult:
        self.flat[self.num_steps_done] -= 1
        self.num_steps_done += 1
        return StepResult(loss=1.0, gradient_norm=1.0, lr=1.0, num_tokens=TOKENS)

    def load(self, parameters: np.ndarray) -> None:
        self.flat = parameters.copy()

    def pseudo_gradient(self, anchor: np.ndarray) -> np.ndarray:
        return anchor - self.flat


class History:
    """A reducer that plays a list of outcomes: of a contribution, or while the steps before it still go on."""

    def __init__(self, outcomes: list[tuple[str, int]]) -> None:
        self.outcomes = deque(outcomes)
        self.round, self.generation = 1, 0
        self.counted: list[tuple[int, PseudoGradient]] = []
        self.round_of_step: list[int] = []
        self.contributions: list[PseudoGradient] = []
        self._due: deque[Event] = deque([Start(round=1, generation=0, lease=LEASE)])
        self._steps_left: int | None = None
        self._plan()

    def _plan(self) -> None:
        """A straggler hears of a commit in the middle of its steps."""
        self._steps_left = self.outcomes[0][1] if self.outcomes and self.outcomes[0][0] == "overtaken" else None

    def load_anchor(self, _round: int, out: np.ndarray) -> None:
        out[:] = 0

    def reduce(self, contribution: PseudoGradient) -> Event:
        copy = PseudoGradient(contribution.round, contribution.delta.copy(), contribution.num_tokens, 0, 0.0)
        self.contributions.append(copy)
        if not self.outcomes or self.outcomes[0][0] == "overtaken":
            return self._overtake() if self.outcomes else Stop(save=False)
        kind, _ = self.outcomes.popleft()
        if kind == "aborted":
            self._plan()
            self.generation += 1
            return Aborted(reason="no quorum", generation=self.generation)
        if kind == "counted":
            self.counted.append((self.round, copy))
        return self._commit(counted=kind == "counted")

    def _overtake(self) -> Event:
        self.outcomes.popleft()
        return self._commit(counted=False)

    def _commit(self, *, counted: bool) -> Event:
        self.round, self.generation = self.round + 1, self.generation + 1
        self._plan()
        return Committed(round=self.round - 1, counted=counted, generation=self.generation, lease=LEASE)

    def poll(self) -> Event | None:
        return self._due.popleft() if self._due else None

    def wait(self) -> Event:
        return self.poll() or Stop(save=False)

    def report(self, report: object) -> None:
        if not isinstance(report, Progress):
            return
        self.round_of_step.append(report.round)
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._due.append(self._overtake())


OUTCOMES = st.tuples(st.sampled_from(["counted", "missed", "aborted", "overtaken"]), st.integers(1, 3))


def steps_in(contribution: PseudoGradient) -> set[int]:
    return set(np.flatnonzero(contribution.delta).tolist())


def played(outcomes: list[tuple[str, int]]) -> History:
    history = History(outcomes)
    Session(Ledger(), history).run()  # type: ignore[arg-type]
    return history


@settings(max_examples=80, deadline=None)
@given(st.lists(OUTCOMES, max_size=25))
def test_no_step_counts_twice_and_none_is_older_than_one_missed_commit(outcomes):
    history = played(outcomes)
    seen: set[int] = set()
    for number, contribution in history.counted:
        steps = steps_in(contribution)
        assert not steps & seen
        seen |= steps
        assert {history.round_of_step[step] for step in steps} <= {number, number - 1}


@settings(max_examples=80, deadline=None)
@given(st.lists(OUTCOMES, max_size=25))
def test_a_contribution_weighs_own_and_carried_work_by_their_tokens(outcomes):
    """(w₁Δ₁ + w₂Δ₂) / (w₁ + w₂) with weight w₁ + w₂: a step's part is its round's tokens, carried or not."""
    for contribution in played(outcomes).contributions:
        tokens_of_steps = contribution.delta[contribution.delta != 0] * contribution.num_tokens
        assert contribution.num_tokens == TOKENS * len(tokens_of_steps)
        parts = {round(float(tokens), 2) for tokens in tokens_of_steps}
        assert len(parts) <= 2  # of this round, and of the carry


def test_provisional_work_is_bounded_by_the_lease_and_becomes_one_carry():
    """Cut off for longer than a lease lasts: its work is kept, once, whatever the others have committed meanwhile."""
    history = played([("aborted", 0)] * 6 + [("missed", 0), ("counted", 0), ("counted", 0)])
    assert [len(steps_in(c)) for c in history.contributions] == [4, 8, 12, 12, 12, 12, 12, 16, 4, 4]


def test_after_two_missed_commits_only_the_younger_work_is_left():
    history = played([("missed", 0), ("missed", 0), ("counted", 0)])
    assert [len(steps_in(c)) for c in history.contributions] == [4, 8, 8, 4]
