"""A trainer's life between events: inner steps, contribution, carry, checkpoint. Knows no peers, only a `Reducer`.

A round is trained from a private copy of its anchor, so that a round which commits without us (the shared anchor is
then already the next one) still leaves our pseudo-gradient whole: it becomes the *carry*, merged by tokens into the
next contribution and dropped if that one misses too (property S6).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.carry import carry_after
from ..kernels.codec import NonFiniteError
from .checkpoint import CheckpointStore, SaveFailed
from .data import Lease
from .inner_state import InnerState
from .reducer import (
    Aborted,
    Committed,
    Evaluate,
    Evaluation,
    Event,
    Progress,
    PseudoGradient,
    Reducer,
    Save,
    Saved,
    Start,
    Stop,
    Warned,
    Withheld,
)
from .shared_buffers import NotSealed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..kernels.chunk_grid import FlatValues
    from .checkpoint import Checkpoint
    from .inner_loop import InnerLoop, StepResult
    from .inner_state import InnerStates

_SPEED_DECAY = 0.9  # tokens/s are averaged over about the last ten steps


@dataclass(frozen=True)
class Carry:
    """A pseudo-gradient that missed its round."""

    delta: NDArray[np.float32]  # (num_elements,)
    num_tokens: int


@dataclass(frozen=True)
class Work:
    """Position in a round: which lease, how much of it is used, and what the pseudo-gradient holds so far."""

    round: int
    generation: int
    lease: Lease
    lease_step: int = 0
    """Batches of the lease that are used."""
    num_steps: int = 0
    num_tokens: int = 0
    loss_sum: float = 0.0
    spent_s: float = 0.0
    """Time of the steps that the pseudo-gradient holds; waiting for others is not in it."""

    @property
    def tokens_per_s(self) -> float:
        """Speed over this round; 0 before the first step."""
        return self.num_tokens / self.spent_s if self.spent_s > 0 else 0.0

    @property
    def loss(self) -> float:
        """Mean training loss so far, nats per token; 0 before the first step."""
        return self.loss_sum / self.num_steps if self.num_steps else 0.0

    def after(self, step: StepResult, elapsed_s: float) -> Work:
        """With one more batch used; it counts only if the step was taken."""
        taken = 1 if step.num_tokens else 0
        return replace(
            self,
            lease_step=self.lease_step + 1,
            num_steps=self.num_steps + taken,
            num_tokens=self.num_tokens + step.num_tokens,
            loss_sum=self.loss_sum + (step.loss if taken else 0.0),
            spent_s=self.spent_s + elapsed_s,
        )

    def from_anchor(self) -> Work:
        """Back at the anchor; the lease stays as used as it is, so no sample counts twice."""
        return Work(self.round, self.generation, self.lease, self.lease_step)


def merge(
    delta: FlatValues,  # (num_elements,), changed in place
    num_tokens: int,
    carry: Carry | None,
) -> int:
    """delta ← (w₁·delta + w₂·carry) / (w₁ + w₂), weights being tokens; returns w₁ + w₂."""
    if carry is None:
        return num_tokens
    total = num_tokens + carry.num_tokens
    carried = carry.delta if isinstance(delta, np.ndarray) else delta.new_tensor(carry.delta)
    delta *= num_tokens / total
    delta += carry.num_tokens / total * carried
    return total


def on_host(delta: FlatValues) -> NDArray[np.float32]:
    """``delta`` as an array."""
    return delta if isinstance(delta, np.ndarray) else delta.cpu().numpy()


class Session:
    """Runs an `InnerLoop` against a `Reducer` until `Stop`."""

    def __init__(
        self,
        loop: InnerLoop,
        reducer: Reducer,
        store: CheckpointStore | None = None,
        save_interval_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        note: Mapping[str, Any] | None = None,
        inner_states: InnerStates | None = None,
    ) -> None:
        """``note`` is put into every checkpoint's state, for whoever loads it. ``inner_states`` keeps what the steps of
        a round begin with; None: nobody asks for it."""
        self.loop, self.reducer, self.store = loop, reducer, store
        self._inner = loop.config.inner
        self._note = dict(note or {})
        self._inner_states, self._opening = inner_states, ""
        self._save_interval_s, self._clock, self._saved_at = save_interval_s, clock, clock()
        self._work: Work | None = None
        self._anchor = np.zeros(loop.layout.num_elements, np.float32)
        self._carry: Carry | None = None
        self._round_steps = self._inner.num_steps
        """Steps between two contributions in this round."""
        self._target_step = 0
        self._is_handed_over = False
        """Whether the reducer has our contribution and its outcome is awaited; the buffer must not change then."""
        self._tokens_per_s = 0.0
        self._restored: Checkpoint | None = None

    @property
    def work(self) -> Work | None:
        """Where training stands, None before the first `Start`."""
        return self._work

    def restore(self, checkpoint: Checkpoint) -> None:
        """Use a checkpoint of `snapshot` when `Start` names its round or the next one."""
        self._restored = checkpoint

    def run(self) -> None:
        """Train until `Stop`."""
        event: Event | None = None
        while not isinstance(event, Stop):
            event = self.reducer.poll() or self._go_on()
            if event is not None:
                self._handle(event)

    def _go_on(self) -> Event | None:
        """One inner step, or the contribution, or waiting: whatever is next."""
        work = self._work
        if work is None or self._is_handed_over:
            return self.reducer.wait()
        indices = work.lease.batch(work.lease_step, self._inner.batch_size)
        if work.lease_step < self._target_step and indices is not None:
            return self._step(work, indices)
        if work.num_steps > 0:
            return self._contribute(work)
        if indices is None:
            return self.reducer.wait()  # nothing to contribute, and no data left to train on
        self._aim(work)  # every step was left out
        return None

    def _handle(self, event: Event) -> None:
        match event:
            case Start():
                self.loop.use_lr(event.inner_lr)
                self._start(event)
            case Committed():
                self.loop.use_lr(event.inner_lr)
                self._committed(event)
            case Aborted():
                self._aborted(event)
            case Evaluate():
                self._evaluate()
            case Save():
                self._save()
            case Stop(save=True):
                self._save()
            case Stop():
                pass

    def _step(self, work: Work, indices: range) -> None:
        started_at = self._clock()
        step = self.loop.step(self.loop.data.batch(indices))
        elapsed_s = self._clock() - started_at
        self._work = work.after(step, elapsed_s)
        self._measure_speed(step.num_tokens, elapsed_s)
        self._report_progress(self._work, step)
        if self._clock() - self._saved_at >= self._save_interval_s:
            self._save()

    def _contribute(self, work: Work) -> Event | None:
        delta = self.loop.pseudo_gradient(self._anchor)
        num_tokens = merge(delta, work.num_tokens, self._carry)
        opening = "" if self._carry else self._opening  # a merged one is not what the steps alone give
        figures = (num_tokens, work.num_steps, work.loss, work.tokens_per_s, opening)
        try:
            event = self.reducer.reduce(PseudoGradient(work.round, delta, *figures))
        except NonFiniteError as error:
            self._withhold(work, error)
            return None
        self._is_handed_over = True
        return event

    def _withhold(self, work: Work, error: NonFiniteError) -> None:
        """Start again from the anchor on the rest of the lease. The optimizer and the carry may be poisoned too."""
        self.reducer.report(Withheld(round=work.round, reason=f"pseudo-gradient of round {work.round}: {error}"))
        self.loop.load(self._anchor)
        self.loop.reset_optimizer()
        self._carry = None
        self._work = work.from_anchor()
        self._note_opening(self._work)
        self._aim(self._work)

    def _note_opening(self, work: Work) -> None:
        """The steps of ``work`` begin with the optimizer as it is now."""
        if self._inner_states is not None:
            state = InnerState(self.loop.num_steps_done, work.lease_step, self.loop.optimizer_tensors())
            self._opening = self._inner_states.keep(work.round, state)

    def _start(self, event: Start) -> None:
        restored, self._restored = self._restored, None
        if not self._waits_for_lease_of(event):
            self._carry = None
        if event.reset_optimizer:
            self.loop.reset_optimizer()
        if not self._begin(event.round, event.generation, event.lease, event.num_steps) or self._work is None:
            return
        if restored is None or not self._resume(restored, event):
            self._note_opening(self._work)

    def _waits_for_lease_of(self, event: Start) -> bool:
        """Whether it stands where ``event`` begins, with what the round before has left, and lacks only the samples."""
        work = self._work
        is_there = work is not None and work.round == event.round and work.lease.count == 0
        return is_there and not event.reset_optimizer

    def _resume(self, checkpoint: Checkpoint, event: Start) -> bool:
        """Go on exactly where the checkpoint stood, or one round later with its work as carry or spent.

        Returns whether it is in the middle of the round's steps.
        """
        state, tensors = checkpoint.state, checkpoint.tensors
        age = event.round - state["round"]
        if age not in (0, 1) or event.reset_optimizer:
            return False  # too old: as after a state sync, a fresh optimizer warms up
        self.loop.restore_optimizer(tensors, state["num_steps_done"])
        is_same_anchor = np.array_equal(tensors["anchor"], self._anchor)
        if age == 0 and is_same_anchor and state["lease"] == [event.lease.first, event.lease.count]:
            self._resume_work(checkpoint, event)
            return True
        if age == 1 and not event.previous_counted and state["num_tokens"]:
            self._keep(tensors["anchor"] - tensors["parameters"], state["num_tokens"])
        return False

    def _resume_work(self, checkpoint: Checkpoint, event: Start) -> None:
        state, tensors = checkpoint.state, checkpoint.tensors
        self.loop.load(tensors["parameters"])
        position = (state["lease_step"], state["num_steps"], state["num_tokens"], state["loss_sum"])
        self._work = Work(event.round, event.generation, event.lease, *position, state.get("spent_s", 0.0))
        self._target_step = state["target_step"]
        if state["carry_tokens"]:
            self._carry = Carry(tensors["carry"], state["carry_tokens"])
        kept = "" if self._inner_states is None else self._inner_states.digest(event.round)
        self._opening = kept if kept == state.get("opening") else ""

    def _committed(self, event: Committed) -> None:
        work = self._work
        self._carry = None
        is_of_round = work is not None and event.round == work.round and work.num_tokens > 0
        missed = carry_after(work if is_of_round else None, counted=event.counted)
        if missed is not None:
            self._keep(on_host(self.loop.pseudo_gradient(self._anchor)), missed.num_tokens)
        if self._begin(event.round + 1, event.generation, event.lease, event.num_steps) and self._work is not None:
            self._note_opening(self._work)

    def _keep(self, delta: NDArray[np.float32], num_tokens: int) -> None:
        """Make the carry, unless it has a NaN, which is then said and lost."""
        if np.isfinite(delta).all():
            self._carry = Carry(delta, num_tokens)

    def _aborted(self, event: Aborted) -> None:
        if self._work is None:
            return
        self._work = replace(self._work, generation=event.generation)
        if self._is_handed_over or self._work.lease_step >= self._target_step:
            self._aim(self._work)

    def _begin(self, round_: int, generation: int, lease: Lease, num_steps: int | None) -> bool:
        """Stand at the anchor before ``round_``. False, and idle until the next event, if it is already replaced."""
        try:
            self.reducer.load_anchor(round_ - 1, self._anchor)
        except NotSealed:
            self._work = None
            return False
        self.loop.load(self._anchor)
        self._work = Work(round_, generation, lease)
        self._round_steps = num_steps or self._inner.num_steps
        self._aim(self._work)
        return True

    def _aim(self, work: Work) -> None:
        """Contribute after the round's number of further batches, or where the lease ends."""
        self._target_step = min(work.lease_step + self._round_steps, work.lease.num_batches(self._inner.batch_size))
        self._is_handed_over = False

    def _evaluate(self) -> None:
        """Of the private anchor, so that it never races with the next commit."""
        if self._work is None:
            return
        validation = self.loop.evaluate(self._anchor)
        self.reducer.report(
            Evaluation(
                round=self._work.round - 1,
                validation_loss=validation.loss,
                bits_per_byte=validation.bits_per_byte,
                num_tokens=validation.num_tokens,
            )
        )

    def snapshot(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Everything an exact resume needs: (tensors, JSON state). Call it after the first `Start`."""
        work = self._work
        if work is None:
            raise RuntimeError("nothing to save before the first round starts")
        tensors = {"anchor": self._anchor, "parameters": self.loop.parameters()}
        tensors |= self.loop.optimizer_tensors() | self.reducer.checkpoint_tensors()
        if self._carry:
            tensors["carry"] = self._carry.delta
        return tensors, self._note | {
            "round": work.round,
            "lease": [work.lease.first, work.lease.count],
            "lease_step": work.lease_step,
            "target_step": self._target_step,
            "num_steps": work.num_steps,
            "num_tokens": work.num_tokens,
            "loss_sum": work.loss_sum,
            "spent_s": work.spent_s,
            "num_steps_done": self.loop.num_steps_done,
            "carry_tokens": self._carry.num_tokens if self._carry else 0,
            "opening": self._opening,
        }

    def _save(self) -> None:
        self._saved_at = self._clock()
        if self.store is None or self._work is None:
            return
        result = self.store.save(*self.snapshot())
        if not isinstance(result, SaveFailed):  # a failure was said by the store
            self.reducer.report(Saved(round=self._work.round, num_bytes=result.num_bytes))

    def _measure_speed(self, num_tokens: int, elapsed_s: float) -> None:
        speed = num_tokens / max(elapsed_s, 1e-9)
        decay = _SPEED_DECAY if self._tokens_per_s else 0.0
        self._tokens_per_s = decay * self._tokens_per_s + (1 - decay) * speed

    def _report_progress(self, work: Work, step: StepResult) -> None:
        if not math.isfinite(step.gradient_norm):
            text = f"round {work.round}: a step was left out because its gradient norm is {step.gradient_norm}"
            self.reducer.report(Warned(text=text))
        self.reducer.report(
            Progress(
                round=work.round,
                step=work.num_steps,
                num_steps=self._target_step,
                num_tokens=work.num_tokens,
                loss=step.loss,
                gradient_norm=step.gradient_norm,
                lr=step.lr,
                tokens_per_s=self._tokens_per_s,
            )
        )
