"""The float32 arithmetic of the formats, one value and one operation at a time.

numpy's float32 scalars round to nearest even, keep subnormals and never fuse a multiplication with an addition.
"""

from __future__ import annotations

import struct

import numpy as np

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


def normal_integer(key: int, counter: int) -> int:
    """Sum of the four 16-bit quarters of splitmix64's output number `counter` for `key`, less the mean 131,070.

    Irwin–Hall of order 4: bell-shaped, within ±3.46 standard deviations. splitmix64: Steele, Lea, Flood 2014.
    """
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    z ^= z >> 31
    return sum((z >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131_070
