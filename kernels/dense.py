"""Codecs that say something of every value, on the kernels of the active back end. `formats.py` has their layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arguments import flat_input, is_plain, require_bytes, require_output, require_weights, require_writable_bytes
from .back_ends import Kernels, active
from .codec import Bytes, Encoded, Float32Array, InvalidEncoding, NonFiniteError
from .formats import FORMATS, Format

if TYPE_CHECKING:
    from torch import Tensor


class DenseCodec:
    """See `Codec` for the contract."""

    def __init__(self, layout: Format) -> None:
        self.layout = layout

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def kernels(self) -> Kernels:
        """The raw kernels of the active back end."""
        return active().kernels(self.name)

    def nbytes(self, num_elements: int) -> int:
        return self.layout.nbytes(num_elements)

    @property
    def head_bytes(self) -> int:
        return 0

    def used_bytes(self, data: Encoded, num_elements: int) -> int:
        return self.nbytes(num_elements)

    def encode(self, values: Float32Array, out: Bytes) -> None:
        flat = flat_input(values)
        first_bad = self.kernels.encode(flat, require_writable_bytes(out, self.nbytes(flat.size)))
        if first_bad >= 0:
            raise refused(flat, first_bad)

    def encode_tensor(self, values: Tensor, out: Bytes) -> None:
        if values.device.type == "cpu":
            return self.encode(values.numpy(), out)
        from .device import encode_dense

        data, first_bad = encode_dense(self.layout, values)
        if first_bad >= 0:
            raise refused(values.reshape(-1).cpu().numpy(), first_bad)
        out[:] = data.cpu().numpy()
        return None

    def decode(self, data: Encoded, out: Float32Array) -> None:
        encoded = require_bytes(data, self.nbytes(require_output(out).size))
        if is_plain(out):
            return self.kernels.decode(encoded, out.reshape(-1))
        flat = np.empty(out.size, np.float32)
        self.kernels.decode(encoded, flat)
        out[...] = flat.reshape(out.shape)
        return None

    def accumulate(self, data: Encoded, weight: float, out: Float32Array) -> None:
        self._accumulate([data], [weight], out, fresh=False)

    def accumulate_many(self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> None:
        self._accumulate(datas, weights, out, fresh=True)

    def check(self, data: Encoded, num_elements: int) -> None:
        first_bad = self.kernels.check(require_bytes(data, self.nbytes(num_elements)), num_elements)
        if first_bad >= 0:
            raise InvalidEncoding(self.layout.complaint(first_bad, num_elements))

    def dot(self, data: Encoded, other: Encoded, num_elements: int) -> float:
        num_bytes = self.nbytes(num_elements)
        # A correctly rounded sum: no order to agree on.
        terms = self.kernels.dots(require_bytes(data, num_bytes), require_bytes(other, num_bytes), num_elements)
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
        self.kernels.accumulate(encoded, rounded, flat, fresh)
        if not is_plain(out):
            out[...] = flat.reshape(out.shape)


def create(name: str) -> DenseCodec:
    """The codec of the format called `name`."""
    return DenseCodec(FORMATS[name])


def refused(values: Float32Array, index: int) -> NonFiniteError:
    """What to raise about the value at `index`."""
    value = values[index]
    why = "only finite values are encoded" if not np.isfinite(value) else "it is beyond the format's largest value"
    return NonFiniteError(f"value {index} of {values.size} is {value}: {why}")
