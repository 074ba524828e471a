"""stat2 on whole arrays; `reference/stat2.py` is the specification."""

from __future__ import annotations

from ..formats import MIN_SCALE_BITS, STAT2
from .absmax import ROUNDER
from .arrays import Array, Arrays
from .blocks import Blocks

ROUNDER_BITS = 0x4B400000
MIN_EXPONENT = -116
NUM_REFINEMENTS = 3


def quantise(arrays: Arrays, blocks: Blocks) -> tuple[Array, Array]:
    """Scales and codes of many blocks."""
    exponent = (blocks.largest >> 23) - 127
    is_zero = exponent < MIN_EXPONENT
    exponent = arrays.int32(arrays.where(is_zero, 0, exponent))
    factors = arrays.floats((137 - exponent) << 23) * arrays.float32(~is_zero)
    rounded = arrays.scaled(blocks.values, factors, blocks.work)
    rounded += ROUNDER
    quotients = arrays.bits(rounded) - ROUNDER_BITS
    quotients = arrays.where(quotients < 0, -quotients, quotients)
    limit = thresholds(arrays, quotients, blocks.num)
    outer = quotients > limit[:, None]
    codes = arrays.int32(outer) | (arrays.int32((blocks.values < 0) & ~is_zero[:, None]) << 1)
    return magnitudes(arrays, quotients, outer, arrays.floats((117 + exponent) << 23), blocks.num), codes


def thresholds(arrays: Arrays, quotients: Array, num: int) -> Array:
    """What the outer values of each block exceed (num_blocks,)."""
    total = arrays.sums(quotients)
    limit = 315 * total // (256 * num)
    for _ in range(NUM_REFINEMENTS):
        num_outer, sum_outer = outer_sums(arrays, quotients, quotients > limit[:, None])
        num_inner, sum_inner = num - num_outer, total - sum_outer
        middle = sum_inner * num_outer + sum_outer * num_inner
        divisor = 2 * num_inner * num_outer
        limit = arrays.where(num_outer > 0, middle // arrays.where(divisor > 0, divisor, 1), limit)
    return limit


def outer_sums(arrays: Arrays, quotients: Array, outer: Array) -> tuple[Array, Array]:
    """How many outer values each block has, and their sum."""
    mask = arrays.int32(outer)
    return arrays.sums(mask), arrays.sums(quotients * mask)


def magnitudes(arrays: Arrays, quotients: Array, outer: Array, unit: Array, num: int) -> Array:
    """bfloat16 bits of both magnitudes (num_blocks, 2)."""
    num_outer, sum_outer = outer_sums(arrays, quotients, outer)
    inner = mean_bits(arrays, arrays.sums(quotients) - sum_outer, num - num_outer, unit)
    outer_bits = mean_bits(arrays, sum_outer, arrays.where(num_outer > 0, num_outer, 1), unit)
    return arrays.stack([inner, arrays.where(num_outer > 0, outer_bits, inner)])


def mean_bits(arrays: Arrays, total: Array, num: Array, unit: Array) -> Array:
    """bfloat16 bits of unit · (total / num)."""
    raw = arrays.bits(arrays.divided(arrays.float32(total), arrays.float32(num)) * unit)
    bits = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    bits = arrays.where(bits > STAT2.max_scale_bits, STAT2.max_scale_bits, bits)
    return arrays.int32(arrays.where(bits < MIN_SCALE_BITS, 0, bits))
