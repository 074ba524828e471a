"""int8, int4 and e3m0: scales, codes and levels; `reference/absmax.py` is the specification."""

# ruff: noqa: ANN001, ANN201, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def _scale(largest, top, MAX_SCALE_BITS: tl.constexpr):
    """bfloat16 bits of the scales, and what to multiply the values by."""
    raw = tl.div_rn(largest.to(tl.float32, bitcast=True), largest * 0.0 + top).to(tl.int32, bitcast=True)
    bits = tl.minimum((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16, MAX_SCALE_BITS)
    bits = tl.where(bits < 0x0080, 0, bits)
    scale = (tl.where(bits == 0, 0x3F80, bits) << 16).to(tl.float32, bitcast=True)
    return bits, tl.where(bits == 0, 0.0, tl.div_rn(scale * 0.0 + 1.0, scale))


@triton.jit
def _power_code(quotient):
    bits = quotient.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    code = tl.maximum(((magnitude + 0x400000) >> 23) - 126, (magnitude >= 0x3F000000).to(tl.int32))
    return tl.where(code > 0, code | ((bits >> 28) & 8), 0)


@triton.jit
def quantise_int8(x, magnitude, inside, num):
    bits, inverse = _scale(tl.max(tl.max(magnitude, axis=2), axis=1), 127.0, 0x7C01)
    return bits, bits, (x * inverse[:, None, None] + 12582912.0).to(tl.int32, bitcast=True)


@triton.jit
def quantise_int4(x, magnitude, inside, num):
    bits, inverse = _scale(tl.max(tl.max(magnitude, axis=2), axis=1), 7.0, 0x7E12)
    return bits, bits, (x * inverse[:, None, None] + 12582912.0).to(tl.int32, bitcast=True)


@triton.jit
def quantise_e3m0(x, magnitude, inside, num):
    bits, inverse = _scale(tl.max(tl.max(magnitude, axis=2), axis=1), 64.0, 0x7C7F)
    return bits, bits, _power_code(x * inverse[:, None, None])


@triton.jit
def level_int8(code):
    return tl.where(code >= 128, code - 256, code)


@triton.jit
def level_int4(code):
    return (code ^ 8) - 8


@triton.jit
def level_e3m0(code):
    level = (1 << (code & 7)) >> 1
    return tl.where(code >= 8, -level, level)


ABSMAX = {
    "int8": (quantise_int8, level_int8),
    "int4": (quantise_int4, level_int4),
    "e3m0": (quantise_e3m0, level_e3m0),
}
