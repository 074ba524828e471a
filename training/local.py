"""A swarm of one on this machine: plain DiLoCo through the same kernels as a real swarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.chunk_grid import ChunkGrid, mean_of
from .data import Lease
from .outer import apply_mean
from .pairs import apply_pair
from .reducer import Committed, Event, PseudoGradient, Report, Start, Stop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .config import TrainingConfig


def _ignore(_: Report) -> None:
    pass


class LocalReducer:
    """Reduces one peer's contribution alone, bit for bit as a swarm with a roster of one would.

    Encode, mean over one, encode, decode, outer step: the two roundings of a swarm, so that a lone run shows what the
    codec costs. Of a gossip run it takes the steps of a peer that finds no partner. Every round commits. It ends after
    ``num_rounds``.
    """

    def __init__(
        self,
        config: TrainingConfig,
        grid: ChunkGrid,
        num_rounds: int,
        anchor: NDArray[np.float32],  # (num_elements,), changed in place from now on
        momentum: NDArray[np.float32] | None = None,  # (num_elements,), zeros before round 1
        round: int = 0,  # noqa: A002
        on_report: Callable[[Report], None] = _ignore,
    ) -> None:
        self.config, self.grid, self.num_rounds, self.report = config, grid, num_rounds, on_report
        self.anchor = anchor
        self.momentum = np.zeros_like(anchor) if momentum is None else momentum
        self.round = round
        """Last committed round."""
        self._contribution = np.empty(grid.total_encoded, np.uint8)
        self._mean = np.empty(grid.total_encoded, np.uint8)
        self._is_started = False

    def load_anchor(self, round: int, out: NDArray[np.float32]) -> None:  # noqa: A002
        """Copy the anchor of ``round``, which must be the last committed one (ValueError)."""
        if round != self.round:
            raise ValueError(f"the anchor is of round {self.round}, not {round}")
        out[:] = self.anchor

    def reduce(self, contribution: PseudoGradient) -> Event:
        """Commit the round. Raises the codec's NonFiniteError and changes nothing if a value is not finite."""
        self.grid.encode(contribution.delta, self._contribution)
        round_ = self.round + 1
        settings = self.config.outer.at(round_)
        if self.config.outer.optimizer == "noloco":
            apply_pair(self.anchor, self.momentum, self._contribution, None, (self.grid, self.grid), settings)
        else:
            mean_of([self._contribution], [contribution.num_tokens], self.grid, self._mean)
            apply_mean(self.anchor, self.momentum, self._mean, self.grid, settings)
        self.round = round_
        return Committed(round=round_, counted=True, generation=0, lease=self._lease(round_ + 1))

    def poll(self) -> Event | None:
        """`Start` once, and `Stop` when the last round is done."""
        if not self._is_started:
            self._is_started = True
            return Start(round=self.round + 1, generation=0, lease=self._lease(self.round + 1))
        return Stop() if self.round >= self.num_rounds else None

    def wait(self) -> Event:
        """As `poll`; a lone run never has to wait, so with nothing to hear it stops."""
        return self.poll() or Stop()

    def checkpoint_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The outer momentum; the anchor is in the inner checkpoint anyway."""
        return {"momentum": self.momentum}

    def _lease(self, round_: int) -> Lease:
        """A roster of one: each round's lease follows the one before, used up or not."""
        count = self.config.inner.lease_samples
        return Lease((round_ - 1) * count, count)
