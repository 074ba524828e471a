"""Block int8: 256 values share one bfloat16 scale, 8.0625 bits per value.

Layout of n encoded values: ceil(n/256) scales (bfloat16, little endian), then n codes (int8). `reference.py` writes the
arithmetic out; in short, with every operation a float32 one rounded to nearest even:

    scale   = bfloat16(max|x| / 127)            a scale below 2⁻¹²⁶ makes a zero block: scale 0, codes 0
    code    = rint(x · (1 / scale)), clamped to ±127
    decoded = scale · code                       always exact
    out     = out + (scale · weight) · code      three roundings, none fused

Since bfloat16 rounds by at most 2⁻⁸, |x · (1/scale)| stays below 127.5: −128 never appears, and `check` refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .back_ends import active
from .codec import (
    Bytes,
    Encoded,
    Float32Array,
    InvalidEncoding,
    NonFiniteError,
    flat_input,
    is_plain,
    require_bytes,
    require_output,
    require_weights,
    require_writable_bytes,
)
from .reference import BLOCK

if TYPE_CHECKING:
    from torch import Tensor


def num_blocks(num_elements: int) -> int:
    """Blocks, hence scales, of `num_elements` values; the last block may be partial."""
    return -(-num_elements // BLOCK)


class Int8Codec:
    """See `Codec` for the contract and the module's docstring for the format."""

    name = "int8"

    def nbytes(self, num_elements: int) -> int:
        return 2 * num_blocks(num_elements) + num_elements

    def encode(self, values: Float32Array, out: Bytes) -> None:
        flat = flat_input(values)
        first_bad = active().encode_int8(flat, require_writable_bytes(out, self.nbytes(flat.size)))
        if first_bad >= 0:
            raise NonFiniteError(
                f"value {first_bad} of {flat.size} is {flat[first_bad]}: only finite values are encoded"
            )

    def encode_tensor(self, values: Tensor, out: Bytes) -> None:
        from . import triton_int8

        out[:] = triton_int8.encode(values).cpu().numpy()

    def decode(self, data: Encoded, out: Float32Array) -> None:
        encoded = require_bytes(data, self.nbytes(require_output(out).size))
        if is_plain(out):
            return active().decode_int8(encoded, out.reshape(-1))
        flat = np.empty(out.size, np.float32)
        active().decode_int8(encoded, flat)
        out[...] = flat.reshape(out.shape)
        return None

    def accumulate(self, data: Encoded, weight: float, out: Float32Array) -> None:
        self._accumulate([data], [weight], out, fresh=False)

    def accumulate_many(self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> None:
        self._accumulate(datas, weights, out, fresh=True)

    def check(self, data: Encoded, num_elements: int) -> None:
        first_bad = active().check_int8(require_bytes(data, self.nbytes(num_elements)), num_elements)
        if first_bad >= 0:
            what = "scale" if first_bad < 2 * num_blocks(num_elements) else "code"
            raise InvalidEncoding(f"byte {first_bad}: a {what} that no int8 encoder writes")

    def dot(self, data: Encoded, other: Encoded, num_elements: int) -> float:
        num_bytes = self.nbytes(num_elements)
        # Exact terms and a correctly rounded sum: no order to agree on.
        terms = active().dots_int8(require_bytes(data, num_bytes), require_bytes(other, num_bytes), num_elements)
        return math.fsum(terms.tolist())

    def squared_norm(self, data: Encoded, num_elements: int) -> float:
        return self.dot(data, data, num_elements)

    def _accumulate(
        self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array, *, fresh: bool
    ) -> None:
        num_bytes = self.nbytes(require_output(out).size)
        encoded = [require_bytes(data, num_bytes) for data in datas]
        rounded = require_weights(weights, len(encoded))
        flat = flat_input(out)
        active().accumulate_int8(encoded, rounded, flat, fresh)
        if not is_plain(out):
            out[...] = flat.reshape(out.shape)
