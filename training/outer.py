"""The outer optimizer: its settings round by round, and the step itself on plain float32 vectors.

Nesterov as in DiLoCo (2311.08105, algorithm 1; the semantics of torch's SGD with ``nesterov=True``)::

    m' = beta * m + d          d: mean pseudo-gradient (points uphill), m: momentum, a: anchor
    a' = a - lr * (d + beta * m')

Gossip runs use NoLoCo's variant instead (2506.10911, equations 2 and 3; `kernels.noloco_step`), in `training.pairs`.

The arithmetic lives in `atoll.kernels`, so that every machine gets the same bits. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.outer_step import nesterov_step

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OuterSettings(NamedTuple):
    """What one outer step uses."""

    lr: float
    beta: float
    consensus: float = 0.0
    """γ of ``noloco``; 0 for the others."""


class OuterConfig(BaseModel):
    """The outer method of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["nesterov", "sgd", "noloco"] = "nesterov"
    """``noloco`` for gossip runs, and for these only."""
    lr: float = Field(default=0.7, gt=0)
    """β of ``noloco``, whose authors use 0.7."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum after the warm-up; not used by ``sgd``. α of ``noloco``, whose authors use 0.5."""
    momentum_warmup_rounds: int = Field(default=0, ge=0)
    """The momentum rises linearly from 0 in round 1 to `momentum` in this round (Pier, 2511.17849). 0: no warm-up."""
    consensus: float | None = Field(default=None, gt=0)
    """γ of ``noloco``: how strongly two replicas that meet pull at each other. None: `lr`, as in its authors' code."""

    @model_validator(mode="after")
    def _replicas_contract(self) -> Self:
        if self.optimizer != "noloco":
            if self.consensus is not None:
                raise ValueError(f"consensus belongs to optimizer 'noloco', not to {self.optimizer!r}")
            return self
        consensus, limit = self.consensus or self.lr, largest_consensus(self.momentum)
        if consensus >= limit:
            raise ValueError(
                f"consensus {consensus:g} (lr, if it is not given) with momentum {self.momentum:g} drives replicas "
                f"apart; it must be below 2·(1 − momentum²) = {limit:g}"
            )
        return self

    def at(self, round: int) -> OuterSettings:  # noqa: A002 - the field's word
        """Settings of the outer step that ends ``round`` (the first round is 1). Pure; raises ValueError below 1."""
        if round < 1:
            raise ValueError(f"rounds are counted from 1, not {round}")
        if self.optimizer == "sgd":
            return OuterSettings(self.lr, 0.0)
        consensus = (self.consensus or self.lr) if self.optimizer == "noloco" else 0.0
        num_rises = self.momentum_warmup_rounds - 1
        if num_rises <= 0 or round > num_rises:
            return OuterSettings(self.lr, self.momentum, consensus)
        return OuterSettings(self.lr, self.momentum * (round - 1) / num_rises, consensus)


def largest_consensus(momentum: float) -> float:
    """γ below which replicas that meet in random pairs converge in mean square, whatever the size of the swarm.

    Of a replica's deviation u from the swarm's mean and its momentum v (v' = αv − γ/2·(u − u_partner), u' = u + v', the
    partner's deviation being independent), E[u²], E[uv] and E[v²] obey a linear recursion; its largest eigenvalue
    passes 1 at γ = 2·(1 − α²).
    """
    return 2 * (1 - momentum**2)


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
