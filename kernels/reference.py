"""The specification of the numeric kernels: one value at a time, one float32 operation per line.

Slow on purpose. Every other back end must give these bits. numpy's float32 scalars round to nearest even, keep
subnormals and never fuse a multiplication with an addition.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from .codec import Bytes, Float32Array, Float64Array

BLOCK = 256
"""Values that share a scale: 1/16 bit per value for scales, and 0.70 % error on normal data (performance.md)."""
MIN_SCALE_BITS = 0x0080
"""bfloat16 2⁻¹²⁶, the smallest normal number: a smaller scale has no finite reciprocal and too few digits."""
MAX_SCALE_BITS = 0x7C01
"""bfloat16 of the largest float32 over 127. Larger scales could decode to infinity and come from no encoder."""
F = np.float32
MASK64 = (1 << 64) - 1


def float_bits(value: np.float32) -> int:
    """The 32 bits of a float32 as an integer."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def bfloat16_bits(value: np.float32) -> int:
    """Upper 16 bits of a finite float32, rounded to nearest even."""
    bits = float_bits(value)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def from_bfloat16(bits: int) -> np.float32:
    """The float32 whose upper half is `bits`."""
    return F(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def block_scale(block: Float32Array) -> int:
    """bfloat16 bits of max|x| / 127, or 0 for a block too small to have a scale."""
    largest = max(abs(x) for x in block)
    bits = bfloat16_bits(F(largest) / F(127))
    return bits if bits >= MIN_SCALE_BITS else 0


def block_code(value: np.float32, scale: np.float32) -> int:
    """rint(value · (1 / scale)) clamped to ±127. Both operations round to float32."""
    inverse = F(1) / scale
    quotient = value * inverse
    return int(max(F(-127), min(F(127), np.rint(quotient))))


def normal_integer(key: int, counter: int) -> int:
    """Sum of the four 16-bit quarters of splitmix64's output number `counter` for `key`, less the mean 131,070.

    Irwin–Hall of order 4: bell-shaped, within ±3.46 standard deviations. splitmix64: Steele, Lea, Flood 2014.
    """
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    z ^= z >> 31
    return sum((z >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131_070


class Reference:
    """The back end made of the functions above."""

    name = "reference"

    def encode_int8(self, values: Float32Array, data: Bytes) -> int:
        finite = np.isfinite(values)
        if not finite.all():
            return int(np.argmin(finite))
        codes = data[2 * -(-values.size // BLOCK) :].view(np.int8)
        for index, start in enumerate(range(0, values.size, BLOCK)):
            block = values[start : start + BLOCK]
            bits = block_scale(block)
            data[2 * index], data[2 * index + 1] = bits & 0xFF, bits >> 8
            for i, value in enumerate(block, start):
                with np.errstate(all="ignore"):
                    codes[i] = block_code(value, from_bfloat16(bits)) if bits else 0
        return -1

    def decode_int8(self, data: Bytes, out: Float32Array) -> None:
        for i, (scale, code) in enumerate(self._scales_and_codes(data, out.size)):
            out[i] = scale * F(code)

    def accumulate_int8(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        if fresh:
            out[:] = 0
        with np.errstate(all="ignore"):
            for data, weight in zip(datas, weights, strict=True):
                for i, (scale, code) in enumerate(self._scales_and_codes(data, out.size)):
                    factor = scale * weight
                    product = factor * F(code)
                    out[i] = out[i] + product

    def check_int8(self, data: Bytes, num_elements: int) -> int:
        num_blocks = -(-num_elements // BLOCK)
        scales = [int(data[2 * i]) | int(data[2 * i + 1]) << 8 for i in range(num_blocks)]
        for i, bits in enumerate(scales):
            if bits != 0 and not MIN_SCALE_BITS <= bits <= MAX_SCALE_BITS:
                return 2 * i
        for i, code in enumerate(data[2 * num_blocks :].view(np.int8)):
            if code == -128 or (code != 0 and scales[i // BLOCK] == 0):
                return 2 * num_blocks + i
        return -1

    def dots_int8(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        terms = np.zeros(-(-num_elements // BLOCK), np.float64)
        mine, others = (self._scales_and_codes(each, num_elements) for each in (data, other))
        for i, ((scale, code), (other_scale, other_code)) in enumerate(zip(mine, others, strict=True)):
            terms[i // BLOCK] += float(scale) * float(other_scale) * (code * other_code)  # exact, as every sum of them
        return terms

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None:
        with np.errstate(all="ignore"):
            for i in range(anchor.size):
                momentum[i] = F(beta) * momentum[i] + mean[i]
                ahead = mean[i] + F(beta) * momentum[i]
                anchor[i] = anchor[i] - F(lr) * ahead

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        for i in range(out.size):
            out[i] = F(normal_integer(key, start + i)) * F(factor)

    def _scales_and_codes(self, data: Bytes, num_elements: int) -> list[tuple[np.float32, int]]:
        num_blocks = -(-num_elements // BLOCK)
        scales = [from_bfloat16(int(data[2 * i]) | int(data[2 * i + 1]) << 8) for i in range(num_blocks)]
        return [(scales[i // BLOCK], int(code)) for i, code in enumerate(data[2 * num_blocks :].view(np.int8))]
