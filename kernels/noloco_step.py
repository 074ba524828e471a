"""NoLoCo's outer step on the flat vector: heavy-ball momentum with a pull towards one other replica (2506.10911, §3.2).

The paper's equations 2 and 3 for a group of two, with its Δ = θ − φ written as the pseudo-gradient d = φ − θ (uphill)::

    δ ← α·δ − β/2·(d + d') − γ·(φ − (φ + φ')/2)        φ, d, δ: ours; φ', d': the partner's
    φ ← φ + δ

and for a group of one, without a partner, δ ← α·δ − β·d.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arguments import fits_float32, is_plain, require_float32, require_output
from .codec import Float32Array

_BLOCK_ELEMENTS = 1 << 15
"""Values worked on at a time, so that the temporary stays in the second-level cache."""


class Partner(NamedTuple):
    """What the other side of a pair has sent, decoded: its pseudo-gradient and its weights, both (num_elements,)."""

    delta: Float32Array
    weights: Float32Array


class PairTerms(NamedTuple):
    """The step's factors, each rounded to float32 when it is used."""

    momentum: float
    """α."""
    own: float
    """Of our pseudo-gradient: β/2 in a pair, β alone."""
    other: float = 0.0
    """Of the partner's: β/2, or less where its norm is cut."""
    pull: float = 0.0
    """Of the difference to the partner's weights: γ/2, or less where the distance is cut."""


def noloco_step(
    weights: Float32Array, momentum: Float32Array, delta: Float32Array, partner: Partner | None, terms: PairTerms
) -> None:
    """Take one outer step in place::

        momentum ← ((terms.momentum·momentum − terms.own·delta) − terms.other·delta') − terms.pull·(weights − weights')
        weights  ← weights + momentum

    Every operation is a float32 one, rounded to nearest even, none fused, in the order written; without a partner the
    last two products are left out. The arrays are 1-D, equally long, contiguous (TypeError, ValueError) and do not
    overlap. The step cannot fail half-way: all checks come before the first write.
    """
    arrays = {"weights": weights, "momentum": momentum, "delta": delta}
    if partner is not None:
        arrays |= {"the partner's delta": partner.delta, "the partner's weights": partner.weights}
    for what, array in arrays.items():
        if not is_plain(require_float32(array, what)) or array.shape != (weights.size,):
            raise ValueError(f"{what} must be contiguous with shape ({weights.size},), not {array.shape}")
    require_output(weights, "weights")
    require_output(momentum, "momentum")
    if not all(map(fits_float32, terms)):
        raise ValueError(f"factors must be finite, not {terms}")
    scratch = np.empty(min(_BLOCK_ELEMENTS, weights.size), np.float32)
    for start in range(0, weights.size, _BLOCK_ELEMENTS):
        part = slice(start, min(start + _BLOCK_ELEMENTS, weights.size))
        block = None if partner is None else Partner(partner.delta[part], partner.weights[part])
        _step(weights[part], momentum[part], delta[part], block, terms, scratch[: part.stop - part.start])


def _step(
    weights: Float32Array,
    momentum: Float32Array,
    delta: Float32Array,
    partner: Partner | None,
    terms: PairTerms,
    scratch: Float32Array,
) -> None:
    alpha, own, other, pull = map(np.float32, terms)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        momentum *= alpha
        np.multiply(delta, own, out=scratch)
        momentum -= scratch
        if partner is not None:
            np.multiply(partner.delta, other, out=scratch)
            momentum -= scratch
            np.subtract(weights, partner.weights, out=scratch)
            scratch *= pull
            momentum -= scratch
        weights += momentum
