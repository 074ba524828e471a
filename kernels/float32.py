"""The float32 codec: four little-endian bytes per value, exact bits. The yardstick for every lossy codec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .codec import (
    Bytes,
    Encoded,
    Float32Array,
    InvalidEncoding,
    NonFiniteError,
    require_bytes,
    require_float32,
    require_output,
    require_weights,
    require_writable_bytes,
)

if TYPE_CHECKING:
    from torch import Tensor

CACHE_ELEMENTS = 1 << 15
"""Values worked on at a time, so that temporaries stay in the second-level cache."""
LANES = 4096
"""Running sums of `dot`; part of the protocol, since it decides how they round."""


def first_non_finite(values: Float32Array) -> int:
    """Flat index of the first NaN or infinity, or −1."""
    for start in range(0, values.size, CACHE_ELEMENTS):
        finite = np.isfinite(values[start : start + CACHE_ELEMENTS])
        if not finite.all():
            return start + int(np.argmin(finite))
    return -1


class Float32Codec:
    """See `Codec` for the contract."""

    name = "float32"

    def nbytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Float32Array, out: Bytes) -> None:
        array = require_float32(values, "values")
        target = require_writable_bytes(out, self.nbytes(array.size)).view("<f4")
        target.reshape(array.shape)[...] = array
        first_bad = first_non_finite(target)
        if first_bad >= 0:
            raise NonFiniteError(
                f"value {first_bad} of {array.size} is {target[first_bad]}: only finite values are encoded"
            )

    def encode_tensor(self, values: Tensor, out: Bytes) -> None:
        self.encode(values.cpu().numpy(), out)

    def decode(self, data: Encoded, out: Float32Array) -> None:
        encoded = require_bytes(data, self.nbytes(require_output(out).size))
        out[...] = encoded.view("<f4").reshape(out.shape)

    def accumulate(self, data: Encoded, weight: float, out: Float32Array) -> None:
        encoded = require_bytes(data, self.nbytes(require_output(out).size))
        (rounded,) = require_weights([weight], 1)
        with np.errstate(all="ignore"):
            out += rounded * encoded.view("<f4").reshape(out.shape)

    def accumulate_many(self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> None:
        num_bytes = self.nbytes(require_output(out).size)
        encoded = [require_bytes(data, num_bytes).view("<f4") for data in datas]
        rounded = require_weights(weights, len(encoded))
        flat = np.zeros(out.size, np.float32)
        for start in range(0, flat.size, CACHE_ELEMENTS):
            part = slice(start, start + CACHE_ELEMENTS)
            with np.errstate(all="ignore"):
                for values, weight in zip(encoded, rounded, strict=True):
                    flat[part] += weight * values[part]
        out[...] = flat.reshape(out.shape)

    def check(self, data: Encoded, num_elements: int) -> None:
        values = require_bytes(data, self.nbytes(num_elements)).view("<f4")
        first_bad = first_non_finite(values)
        if first_bad >= 0:
            raise InvalidEncoding(f"value {first_bad} is {values[first_bad]}: contributions are finite")

    def dot(self, data: Encoded, other: Encoded, num_elements: int) -> float:
        """Lane i sums the products of values i, i + `LANES`, … in that order; `math.fsum` of the lanes rounds once."""
        values, others = (require_bytes(each, self.nbytes(num_elements)).view("<f4") for each in (data, other))
        lanes = np.zeros(min(LANES, values.size), np.float64)
        for start in range(0, values.size, LANES):
            part = values[start : start + LANES].astype(np.float64)
            lanes[: part.size] += part * others[start : start + LANES]  # a product of float32 is exact in float64
        return math.fsum(lanes.tolist())

    def squared_norm(self, data: Encoded, num_elements: int) -> float:
        return self.dot(data, data, num_elements)
