"""Initial weights from integers: the same bits on every machine, and any shard alone.

Element i of a parameter depends on (seed, parameter name, i) only. A counter-based generator (splitmix64) gives 64
bits, whose four quarters are summed (Irwin–Hall of order 4, a bell curve within ±3.46 standard deviations), centred and
multiplied once in float32. No libm, no order, no state.
"""

from __future__ import annotations

import hashlib
import math

from .arguments import fits_float32, is_plain, require_output
from .back_ends import active
from .codec import Float32Array

INTEGER_STD = math.sqrt((2**32 - 1) / 3)
"""Standard deviation of the sum of four uniform 16-bit integers: 4 · (2³² − 1) / 12, the root of it."""


def parameter_key(seed: int, name: str) -> int:
    """64-bit key of a parameter: the first 8 bytes, little endian, of SHA-256 over domain, seed and name."""
    text = f"atoll/initial/1\0{seed}\0{name}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def fill_normal(out: Float32Array, key: int, start: int, std: float) -> None:
    """Fill `out` (1-D, contiguous) with elements start … start + size − 1 of the parameter with `key`.

    The values have mean 0 and standard deviation `std` (finite, ≥ 0). The factor std / INTEGER_STD is computed in
    float64 and rounded to float32; the product with the centred integer is rounded once.
    """
    if not is_plain(require_output(out)) or out.ndim != 1:
        raise ValueError("out must be contiguous and one-dimensional")
    if not (fits_float32(std) and std >= 0 and start >= 0 and 0 <= key < 2**64):
        raise ValueError(f"need a finite std ≥ 0, start ≥ 0 and a 64-bit key, not {std}, {start}, {key}")
    active().fill_normal(out, key, start, std / INTEGER_STD)
