"""stat2: scales, codes and levels; `reference/stat2.py` is the specification."""

# ruff: noqa: ANN001, ANN201, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def _sum(x):
    return tl.sum(tl.sum(x, axis=2), axis=1)


@triton.jit
def _mean_bits(total, num, unit):
    raw = (tl.div_rn(total.to(tl.float32), num.to(tl.float32)) * unit).to(tl.int32, bitcast=True)
    bits = tl.minimum((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16, 0x7F7F)
    return tl.where(bits < 0x0080, 0, bits)


@triton.jit
def quantise_stat2(x, magnitude, inside, num):
    num = tl.maximum(num, 1).to(tl.int32)  # there are programs with blocks beyond the last
    exponent = (tl.max(tl.max(magnitude, axis=2), axis=1) >> 23) - 127
    is_zero = exponent < -116
    exponent = tl.where(is_zero, 0, exponent)
    factor = tl.where(is_zero, 0.0, ((137 - exponent) << 23).to(tl.float32, bitcast=True))
    scaled = magnitude.to(tl.float32, bitcast=True) * factor[:, None, None]
    quotient = (scaled + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    total = _sum(quotient)
    limit = (315 * total) // (256 * num)
    for _ in tl.static_range(3):
        outer = (quotient > limit[:, None, None]).to(tl.int32)
        num_outer, sum_outer = _sum(outer), _sum(quotient * outer)
        num_inner, sum_inner = num - num_outer, total - sum_outer
        middle = (sum_inner * num_outer + sum_outer * num_inner) // tl.maximum(2 * num_inner * num_outer, 1)
        limit = tl.where(num_outer > 0, middle, limit)
    outer = (quotient > limit[:, None, None]).to(tl.int32)
    num_outer, sum_outer = _sum(outer), _sum(quotient * outer)
    unit = ((117 + exponent) << 23).to(tl.float32, bitcast=True)
    inner_bits = _mean_bits(total - sum_outer, num - num_outer, unit)
    outer_bits = tl.where(num_outer > 0, _mean_bits(sum_outer, tl.maximum(num_outer, 1), unit), inner_bits)
    negative = ((x < 0.0) & (is_zero == 0)[:, None, None]).to(tl.int32)
    return inner_bits, outer_bits, outer | (negative << 1)


@triton.jit
def level_stat2(code):
    return 1 - (code & 2)
