"""The outer step of a gossip round on encoded vectors: a peer alone, or a pair (NoLoCo, 2506.10911). No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.noloco_step import PairTerms, Partner, noloco_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..kernels.chunk_grid import ChunkGrid
    from .outer import OuterSettings


@dataclass(frozen=True)
class PairParts:
    """What came from the partner, encoded, and how much of it is used: 1 is all, 0 nothing."""

    delta: NDArray[np.uint8]  # encoded on the grid of the run's codec
    weights: NDArray[np.uint8]  # encoded on the grid of the weights' codec
    delta_factor: float = 1.0
    """Cuts the norm of its pseudo-gradient."""
    pull_factor: float = 1.0
    """Cuts the distance to its weights."""


def terms_of(settings: OuterSettings, partner: PairParts | None) -> PairTerms:
    """Factors of the step. Our own part stays β/2 in a pair, also where the partner's is cut: what is cut is lost.

    A partner that counts for nothing leaves us a step alone.
    """
    if partner is None or (partner.delta_factor == 0 and partner.pull_factor == 0):
        return PairTerms(settings.beta, settings.lr)
    half, pull = settings.lr / 2, settings.consensus / 2
    return PairTerms(settings.beta, half, half * partner.delta_factor, pull * partner.pull_factor)


def apply_pair(
    weights: NDArray[np.float32],  # (num_elements,), changed in place
    momentum: NDArray[np.float32],  # (num_elements,), changed in place
    delta: NDArray[np.uint8],  # our contribution, encoded: both sides use what the codec makes of it
    partner: PairParts | None,
    grids: tuple[ChunkGrid, ChunkGrid],  # of pseudo-gradients, of weights
    settings: OuterSettings,
) -> None:
    """One outer step, chunk by chunk, with three chunks of scratch memory.

    An interruption leaves a mixture: callers work on a copy, or redo it from their last state.
    """
    delta_grid, weights_grid = grids
    terms = terms_of(settings, partner)
    longest = min(delta_grid.chunk_elements, delta_grid.num_elements)
    own, other, far = (np.empty(longest, np.float32) for _ in range(3))
    for chunk in range(delta_grid.num_chunks):
        part, length = delta_grid.elements(chunk), delta_grid.chunk_length(chunk)
        encoded = delta_grid.encoded_range(chunk)
        delta_grid.codec.decode(delta[encoded], own[:length])
        theirs = None
        if partner is not None and (terms.other or terms.pull):
            delta_grid.codec.decode(partner.delta[encoded], other[:length])
            weights_grid.codec.decode(partner.weights[weights_grid.encoded_range(chunk)], far[:length])
            theirs = Partner(other[:length], far[:length])
        noloco_step(weights[part], momentum[part], own[:length], theirs, terms)
