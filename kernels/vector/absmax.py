"""int8, int4 and e3m0 on whole arrays; `reference/absmax.py` is the specification."""

from __future__ import annotations

from collections.abc import Callable

from ..formats import E3M0, INT4, INT8, MIN_SCALE_BITS, BlockFormat
from .arrays import Array, Arrays
from .blocks import Blocks, Quantise

ROUNDER = 12582912.0
"""1.5 · 2²³: v + ROUNDER rounds |v| < 2²² to the nearest even integer, which is then in the low bits."""


def scale_bits(arrays: Arrays, largest: Array, layout: BlockFormat) -> Array:
    """bfloat16 bits of the blocks' scales, from the bits of their largest magnitudes (num_blocks,)."""
    raw = arrays.bits(arrays.divided(arrays.floats(largest), float(max(layout.levels))))
    bits = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    bits = arrays.where(bits > layout.max_scale_bits, layout.max_scale_bits, bits)
    return arrays.int32(arrays.where(bits < MIN_SCALE_BITS, 0, bits))


def inverses(arrays: Arrays, bits: Array) -> Array:
    """1 / scale, and 0 where there is none: x · 0 is a zero, and its code 0."""
    scale = arrays.floats(arrays.int32(arrays.where(bits == 0, 0x3F80, bits)) << 16)
    return arrays.divided(1.0, scale) * arrays.float32(bits != 0)


def uniform(arrays: Arrays, quotients: Array) -> Array:
    """Codes of the uniform formats; only the low bits count."""
    quotients += ROUNDER
    return arrays.bits(quotients)


def power(arrays: Arrays, quotients: Array) -> Array:
    """Codes of e3m0. Adding half a unit of the exponent to the bits takes a value to the nearest power of two."""
    bits = arrays.bits(quotients)
    magnitude = bits & 0x7FFFFFFF
    code = ((magnitude + 0x400000) >> 23) - 126
    code = arrays.where(code < 0, 0, code)
    code = arrays.where((code == 0) & (magnitude >= 0x3F000000), 1, code)
    return arrays.int32(arrays.where((bits < 0) & (code > 0), code + 8, code))


def quantiser(layout: BlockFormat, codes_of: Callable[[Arrays, Array], Array]) -> Quantise:
    """The format's rule as a function of many blocks."""

    def quantise(arrays: Arrays, blocks: Blocks) -> tuple[Array, Array]:
        bits = scale_bits(arrays, blocks.largest, layout)
        return bits[:, None], codes_of(arrays, arrays.scaled(blocks.values, inverses(arrays, bits), blocks.work))

    return quantise


ABSMAX = {
    "int8": quantiser(INT8, uniform),
    "int4": quantiser(INT4, uniform),
    "e3m0": quantiser(E3M0, power),
}
