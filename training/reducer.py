"""What training says and hears: the events of a round, the reports of a trainer, and the `Reducer` between them.

Training knows nothing of peers. It hands a pseudo-gradient to a `Reducer` and gets the round's outcome. Events and
reports are values that also travel over the trainer's control channel (`training.channel`).

Rounds are counted from 1: round r is trained from the anchor of round r − 1 (0: the initial state) and its commit makes
the anchor of round r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from .data import Lease

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..kernels.chunk_grid import FlatValues


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


# Events: what a trainer hears.


class Start(_Message):
    """Train ``round`` from the sealed anchor of the round before: after a start, or after a state sync."""

    kind: Literal["start"] = "start"
    round: int
    generation: int
    """Seals the next contribution with this number."""
    lease: Lease
    previous_counted: bool = True
    """False only if the round before committed without this node: its unsent work then becomes a carry."""
    reset_optimizer: bool = False
    """After a state sync: forget the inner optimizer's state and warm up."""
    inner_lr: float | None = None
    """Learning rate of this round's inner steps, before warm-up and schedule. None: the run spec's."""
    num_steps: int | None = None
    """Inner steps until the contribution; None: the run's `InnerConfig.num_steps`."""


class Committed(_Message):
    """``round`` is committed and applied; its anchor is sealed. Train the next round."""

    kind: Literal["committed"] = "committed"
    round: int
    counted: bool
    """Whether this node's contribution was part of it."""
    generation: int
    lease: Lease
    """Of the next round."""
    inner_lr: float | None = None
    """Of the next round; see `Start`."""
    num_steps: int | None = None
    """Of the next round, as in `Start`."""


class Aborted(_Message):
    """The round's exchange failed and changed nothing; go on from where you are (property S3)."""

    kind: Literal["aborted"] = "aborted"
    reason: str
    generation: int


class Stop(_Message):
    """End; ``save`` says whether to write a checkpoint first."""

    kind: Literal["stop"] = "stop"
    save: bool = True


class Evaluate(_Message):
    """Report the validation loss of the sealed anchor, whatever is being trained."""

    kind: Literal["evaluate"] = "evaluate"


class Save(_Message):
    """Write an inner checkpoint now."""

    kind: Literal["save"] = "save"


Outcome = Start | Committed | Aborted | Stop
Event = Outcome | Evaluate | Save


# Reports: what a trainer says.


class Hello(_Message):
    """The trainer is up and waits for `Start`."""

    kind: Literal["hello"] = "hello"
    pid: int
    device: str
    num_parameters: int
    resumed_round: int | None
    """Round that its inner checkpoint belongs to, if there is one."""


class Progress(_Message):
    """One inner step is done."""

    kind: Literal["progress"] = "progress"
    round: int
    step: int
    """Steps in the pseudo-gradient so far."""
    num_steps: int
    """Steps after which it is contributed."""
    num_tokens: int
    """Tokens in the pseudo-gradient so far."""
    loss: float
    gradient_norm: float
    lr: float
    tokens_per_s: float


class Ready(_Message):
    """The contribution is sealed in the shared buffer."""

    kind: Literal["ready"] = "ready"
    round: int
    generation: int
    num_tokens: int
    num_steps: int
    loss: float
    """Mean training loss over the contribution's steps, nats per token."""
    tokens_per_s: float = 0.0
    """Measured over this round's steps; 0: not measured."""
    inner_state: str = ""
    """Digest of the inner optimizer's state that the steps began with (`inner_state`); "": none is shown."""


class Evaluation(_Message):
    """Validation loss of an anchor."""

    kind: Literal["evaluation"] = "evaluation"
    round: int
    validation_loss: float
    """Nats per byte."""
    bits_per_byte: float
    num_tokens: int


class Withheld(_Message):
    """The pseudo-gradient was not handed over, and training goes on from the anchor."""

    kind: Literal["withheld"] = "withheld"
    round: int
    reason: str


class Saved(_Message):
    """An inner checkpoint is durable."""

    kind: Literal["saved"] = "saved"
    round: int
    num_bytes: int


class Warned(_Message):
    """Something the owner should know; work goes on."""

    kind: Literal["warned"] = "warned"
    text: str


class Failed(_Message):
    """The trainer gives up; it ends after this."""

    kind: Literal["failed"] = "failed"
    reason: str


Report = Hello | Progress | Ready | Evaluation | Withheld | Saved | Warned | Failed


@dataclass(frozen=True)
class PseudoGradient:
    """anchor − parameters after some inner steps, a carry merged in. Owned by the reducer until the outcome."""

    round: int
    delta: FlatValues  # (num_elements,)
    num_tokens: int
    num_steps: int
    loss: float
    tokens_per_s: float = 0.0
    """Of this round's own steps, waiting left out."""
    inner_state: str = ""
    """As in `Ready`."""


class Reducer(Protocol):
    """The other side of a round: a swarm behind a daemon, or this machine alone."""

    def load_anchor(self, round: int, out: NDArray[np.float32]) -> None:  # noqa: A002
        """Copy the anchor of ``round`` into ``out`` (num_elements,).

        Raises `NotSealed` if it has been replaced meanwhile: an event that says by what is then on its way. ``out`` is
        not to be used then.
        """
        ...

    def reduce(self, contribution: PseudoGradient) -> Event:
        """Hand over a contribution and wait for the next event, as `wait`.

        Raises the codec's NonFiniteError if it has a NaN or infinity; nothing was handed over then.
        """
        ...

    def poll(self) -> Event | None:
        """The next event if one is there. Called between inner steps."""
        ...

    def wait(self) -> Event:
        """The next event."""
        ...

    def report(self, report: Report, /) -> None:
        """Say something. Must not raise."""
        ...

    def checkpoint_tensors(self) -> dict[str, NDArray[np.float32]]:
        """What this reducer needs in the inner checkpoint; usually nothing."""
        ...
