"""stat2: a sign and one of two magnitudes per value, found by Lloyd's method on whole numbers.

    unit      = 2^(e − 10), e being the exponent of max|x|;  e < −116: a block of zeros
    q         = rint(|x| / unit), 0 … 2048
    outer     = those with q > t, where t is first ⌊315 · Σq / (256 · m)⌋ for m values (1.23 times the mean: the best
                for normal data, Max 1960), and then, three times, ⌊the middle between the means of inner and outer q⌋
    magnitude = bfloat16(unit · (Σq / number)) of the inner and of the outer values; without any outer, both the same
    code      = 1 if outer, + 2 if x < 0

All sums are of integers, so that their order does not matter. That the magnitudes are means makes ‖x − decoded‖² equal
‖x‖² − ‖decoded‖² (but for roundings): the encoder never makes a block longer, which error feedback relies on.
"""

from __future__ import annotations

import numpy as np

from ..codec import Float32Array
from ..formats import MIN_SCALE_BITS, STAT2
from .arithmetic import F, bfloat16_bits, float_bits

DIGITS = 10
"""The largest magnitude has so many binary digits after the first."""
MIN_EXPONENT = -116
"""Of the largest magnitude: 2^(10 − e) must be a float32."""
NUM_REFINEMENTS = 3


def threshold(quotients: list[int]) -> int:
    """What the outer values exceed."""
    total, num = sum(quotients), len(quotients)
    limit = 315 * total // (256 * num)
    for _ in range(NUM_REFINEMENTS):
        outer = [q for q in quotients if q > limit]
        num_outer, sum_outer = len(outer), sum(outer)
        num_inner, sum_inner = num - num_outer, total - sum_outer  # never without inner ones: the limit is ≥ the least
        if num_outer:
            limit = (sum_inner * num_outer + sum_outer * num_inner) // (2 * num_inner * num_outer)
    return limit


def magnitude(quotients: list[int], unit: np.float32) -> int:
    """bfloat16 bits of the mean."""
    mean = F(sum(quotients)) / F(len(quotients))
    bits = min(bfloat16_bits(mean * unit), STAT2.max_scale_bits)
    return bits if bits >= MIN_SCALE_BITS else 0


def quantise(block: Float32Array) -> tuple[list[int], list[int]]:
    """See the module's docstring."""
    exponent = (float_bits(max(abs(x) for x in block)) >> 23) - 127
    if exponent < MIN_EXPONENT:
        return [0, 0], [0] * len(block)
    quotients = [int(np.rint(abs(x) * F(2.0 ** (DIGITS - exponent)))) for x in block]
    limit, unit = threshold(quotients), F(2.0 ** (exponent - DIGITS))
    outer = [q for q in quotients if q > limit]
    inner_bits = magnitude([q for q in quotients if q <= limit], unit)
    outer_bits = magnitude(outer, unit) if outer else inner_bits
    return [inner_bits, outer_bits], [(q > limit) | (x < 0) << 1 for q, x in zip(quotients, block, strict=True)]
