"""Block formats whose scale makes the largest magnitude the highest level: int8, int4 and e3m0.

    scale = bfloat16(max|x| / top), at most `max_scale_bits`;  below 2⁻¹²⁶ a block of zeros
    code  = that of the level nearest to x · (1 / scale)

`top` is the highest level. The uniform formats' ties go to the even level, e3m0's away from zero. Since bfloat16 rounds
by at most 2⁻⁸, |x · (1 / scale)| stays below `top` + ½, so that only levels within ±`top` occur.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..codec import Float32Array
from ..formats import E3M0, INT4, INT8, MIN_SCALE_BITS, BlockFormat
from .arithmetic import F, bfloat16_bits, from_bfloat16
from .blocks import Quantise


def block_scale(block: Float32Array, layout: BlockFormat) -> int:
    """bfloat16 bits of max|x| / top, or 0 for a block too small to have a scale."""
    largest = max(abs(x) for x in block)
    bits = min(bfloat16_bits(F(largest) / F(max(layout.levels))), layout.max_scale_bits)
    return bits if bits >= MIN_SCALE_BITS else 0


def uniform_level(quotient: np.float32) -> int:
    """The nearest integer, the even one of two."""
    return int(np.rint(quotient))


def power_level(quotient: np.float32) -> int:
    """The nearest of 0, ±1, ±2, ±4, …, ±64, the greater magnitude of two."""
    magnitude = abs(quotient)
    level = sum(step for threshold, step in POWER_STEPS if threshold <= magnitude)
    return level if quotient > 0 else -level


POWER_STEPS = ((0.5, 1), (1.5, 1), (3, 2), (6, 4), (12, 8), (24, 16), (48, 32))
"""From which magnitude on a level is the next one, and by how much that is more."""


def quantiser(layout: BlockFormat, level_of: Callable[[np.float32], int]) -> Quantise:
    """The format's rule as a function of a block."""

    def quantise(block: Float32Array) -> tuple[list[int], list[int]]:
        bits = block_scale(block, layout)
        if bits == 0:
            return [0], [0] * len(block)
        inverse = F(1) / from_bfloat16(bits)
        return [bits], [layout.levels.index(level_of(value * inverse)) for value in block]

    return quantise


ABSMAX = {
    "int8": quantiser(INT8, uniform_level),
    "int4": quantiser(INT4, uniform_level),
    "e3m0": quantiser(E3M0, power_level),
}
