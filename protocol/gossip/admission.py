"""How far a partner is believed: a pure function of its norms and of the distance of its weights, in our own measure.

The measure is the low median of the norms of our own recent pseudo-gradients. Whatever a partner sends moves us in a
round by at most

    β/2 · clip_factor · measure  +  γ/2 · max_distance · measure

and what is beyond `ABSURD_FACTOR` times a limit is refused as a whole, with rule, value and limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from ..admission import ABSURD_FACTOR, Refusal

NUM_NORMS = 16
"""Of our own contributions that are remembered."""


@dataclass(frozen=True)
class Bounds:
    """Of what one partner may do, in absolute numbers."""

    delta_norm: float
    """To which its pseudo-gradient is cut; infinity: not cut."""
    distance: float
    """To which the pull of its weights is cut."""
    measure: float

    @classmethod
    def of(cls, own_norms: Sequence[float], clip_factor: float, max_distance: float) -> Bounds:
        """``own_norms``: of our last pseudo-gradients, the present one included; at least one."""
        measure = median_low(own_norms)
        limit = clip_factor * measure if clip_factor > 0 else math.inf
        return cls(limit, max_distance * measure, measure)


def refusal_of_norms(bounds: Bounds, delta_norm: float, own_weights_norm: float, weights_norm: float) -> Refusal | None:
    """What the commitments show before a byte of the vectors is sent.

    Two vectors are at least as far apart as their norms differ.
    """
    if delta_norm == 0:
        return Refusal("empty contribution", 0.0, math.ulp(0.0))
    if delta_norm > ABSURD_FACTOR * bounds.measure:
        return Refusal("absurd norm", delta_norm, ABSURD_FACTOR * bounds.measure)
    return refusal_of_distance(bounds, abs(weights_norm - own_weights_norm))


def refusal_of_distance(bounds: Bounds, distance: float) -> Refusal | None:
    """Weights that no honest history leads to from where ours are."""
    limit = ABSURD_FACTOR * bounds.distance
    return None if distance <= limit else Refusal("absurd distance", distance, limit)


@dataclass(frozen=True)
class Factors:
    """How much of a partner's vectors is used, 0 … 1."""

    delta: float
    pull: float


def factors(bounds: Bounds, delta_norm: float, distance: float) -> Factors:
    """Cuts the norm of its pseudo-gradient and the reach of its pull to the bounds."""
    return Factors(_cut(delta_norm, bounds.delta_norm), _cut(distance, bounds.distance))


def _cut(value: float, limit: float) -> float:
    return 1.0 if value <= limit else limit / value
