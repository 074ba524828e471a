"""The outer optimizer: its settings round by round, and the step itself on plain float32 vectors.

Nesterov as in DiLoCo (2311.08105, algorithm 1; the semantics of torch's SGD with ``nesterov=True``)::

    m' = beta * m + d          d: mean pseudo-gradient (points uphill), m: momentum, a: anchor
    a' = a - lr * (d + beta * m')

The arithmetic lives in `atoll.kernels`, so that every machine gets the same bits. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.outer_step import nesterov_step

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OuterSettings(NamedTuple):
    """What one outer step uses."""

    lr: float
    beta: float


class OuterConfig(BaseModel):
    """The outer method of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["nesterov", "sgd"] = "nesterov"
    lr: float = Field(default=0.7, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum after the warm-up; not used by ``sgd``."""
    momentum_warmup_rounds: int = Field(default=0, ge=0)
    """The momentum rises linearly from 0 in round 1 to `momentum` in this round (Pier, 2511.17849). 0: no warm-up."""

    def at(self, round: int) -> OuterSettings:  # noqa: A002 - the field's word
        """Settings of the outer step that ends ``round`` (the first round is 1). Pure; raises ValueError below 1."""
        if round < 1:
            raise ValueError(f"rounds are counted from 1, not {round}")
        if self.optimizer == "sgd":
            return OuterSettings(self.lr, 0.0)
        num_rises = self.momentum_warmup_rounds - 1
        if num_rises <= 0 or round > num_rises:
            return OuterSettings(self.lr, self.momentum)
        return OuterSettings(self.lr, self.momentum * (round - 1) / num_rises)


def apply_mean(
    anchor: NDArray[np.float32],  # (num_elements,), changed in place
    momentum: NDArray[np.float32],  # (num_elements,), changed in place
    mean: NDArray[np.uint8],  # (total_encoded,): the encoded mean that everybody holds
    grid: ChunkGrid,
    settings: OuterSettings,
) -> None:
    """One outer step, chunk by chunk, from the encoded mean. Needs one chunk of scratch memory.

    Chunks are independent, so an interruption leaves a mixture: callers work on a copy or redo it from their last
    state.
    """
    scratch = np.empty(min(grid.chunk_elements, grid.num_elements), np.float32)
    for chunk in range(grid.num_chunks):
        part = grid.elements(chunk)
        values = scratch[: part.stop - part.start]
        grid.codec.decode(mean[grid.encoded_range(chunk)], values)
        nesterov_step(anchor[part], momentum[part], values, settings.lr, settings.beta)
