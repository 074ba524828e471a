"""Codecs that name the values they speak of; the others are 0, and what is added to them is nothing.

An encoding is the *choice* of values, then what a dense codec makes of the chosen ones, one after another. A name has
up to three parts: ``topk64-stat2`` chooses the 64 largest of each 4,096 values, ``rows256-int8`` the rows of 256 values
that are not all 0, and the dense codec may be left out (stat2 for ``topk``, int8 for ``rows``).

    decoded  = the dense codec's, at the chosen places, and 0 elsewhere
    out      = the dense codec's accumulation onto the values of out at the chosen places

Inner products are float32's on the decoded values. `choices.py` has the choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arguments import flat_input, is_plain, require_bytes, require_output, require_weights, require_writable_bytes
from .back_ends import active
from .choices import Choice, Rows, TopK
from .codec import Bytes, Encoded, Float32Array, InvalidEncoding, split_name
from .dense import DenseCodec, refused
from .dense import create as dense_codec

if TYPE_CHECKING:
    from torch import Tensor


class SparseCodec:
    """See `Codec` for the contract and the module's docstring for the format."""

    def __init__(self, name: str, choice: Choice, values: DenseCodec) -> None:
        self._name, self.choice, self.values = name, choice, values

    @property
    def name(self) -> str:
        return self._name

    @property
    def head_bytes(self) -> int:
        return self.choice.head_bytes

    def nbytes(self, num_elements: int) -> int:
        most = self.choice.most_values(num_elements)
        return self.choice.most_bytes(num_elements) + self.values.nbytes(most)

    def used_bytes(self, data: Encoded, num_elements: int) -> int:
        if not num_elements:
            return 0
        num_bytes, num_values = self.choice.sizes(np.frombuffer(data, np.uint8), num_elements)
        return num_bytes + self.values.nbytes(num_values)

    def encode(self, values: Float32Array, out: Bytes) -> None:
        flat = flat_input(values)
        target = require_writable_bytes(out, self.nbytes(flat.size))
        chosen, first_bad = self.choice.choose(flat)
        if first_bad >= 0:
            raise refused(flat, first_bad)
        kept = self.choice.take(flat, chosen)
        encoded = self._write_choice(chosen, kept.size, flat.size, target)
        first_bad = self.values.kernels.encode(kept, encoded)
        if first_bad >= 0:
            raise refused(flat, self.choice.place(chosen, first_bad))

    def encode_tensor(self, values: Tensor, out: Bytes) -> None:
        if values.device.type == "cpu":
            return self.encode(values.numpy(), out)
        return self.encode_on_device(values, out)

    def encode_on_device(self, values: Tensor, out: Bytes) -> None:
        """As `encode_tensor`, wherever the values are: only what is chosen comes to the host."""
        from torch import int64

        from .device import encode_dense

        flat = values.contiguous().view(-1)
        chosen, first_bad = self.choice.choose_on_device(flat)
        if first_bad >= 0:
            raise refused(flat.cpu().numpy(), first_bad)
        kept = self.choice.take(flat, flat.new_tensor(chosen, dtype=int64))
        target = require_writable_bytes(out, self.nbytes(len(flat)))
        encoded = self._write_choice(chosen, len(kept), len(flat), target)
        data, first_bad = encode_dense(self.values.layout, kept)
        if first_bad >= 0:
            raise refused(flat.cpu().numpy(), self.choice.place(chosen, first_bad))
        encoded[:] = data.cpu().numpy()

    def decode(self, data: Encoded, out: Float32Array) -> None:
        chosen, encoded = self._read(data, require_output(out).size)
        kept = np.empty(self.choice.num_values(chosen, out.size), np.float32)
        self.values.kernels.decode(encoded, kept)
        flat = np.zeros(out.size, np.float32)
        self.choice.put(flat, chosen, kept)
        out[...] = flat.reshape(out.shape)

    def accumulate(self, data: Encoded, weight: float, out: Float32Array) -> None:
        self._accumulate([data], [weight], out, fresh=False)

    def accumulate_many(self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> None:
        self._accumulate(datas, weights, out, fresh=True)

    def check(self, data: Encoded, num_elements: int) -> None:
        chosen, encoded = self._read(data, num_elements)
        first_bad = self.values.kernels.check(encoded, self.choice.num_values(chosen, num_elements))
        if first_bad >= 0:
            complaint = self.values.layout.complaint(first_bad, self.choice.num_values(chosen, num_elements))
            raise InvalidEncoding(f"the chosen values: {complaint}")
        unused = require_bytes(data, self.nbytes(num_elements))[self.used_bytes(data, num_elements) :]
        if unused.any():
            raise InvalidEncoding(f"{int(np.count_nonzero(unused))} bytes after the end are not 0")

    def dot(self, data: Encoded, other: Encoded, num_elements: int) -> float:
        dense = [np.empty(num_elements, np.float32) for _ in range(2)]
        self.decode(data, dense[0])
        self.decode(other, dense[1])
        mine, others = (each.astype("<f4", copy=False).view(np.uint8) for each in dense)
        terms = active().kernels("float32").dots(mine, others, num_elements)
        return math.fsum(terms.tolist())

    def squared_norm(self, data: Encoded, num_elements: int) -> float:
        return self.dot(data, data, num_elements)

    def _accumulate(
        self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array, *, fresh: bool
    ) -> None:
        rounded = require_weights(weights, len(datas))
        flat = flat_input(require_output(out))
        if fresh:
            flat[:] = 0
        for data, weight in zip(datas, rounded, strict=True):
            chosen, encoded = self._read(data, flat.size)
            kept = np.ascontiguousarray(self.choice.take(flat, chosen))
            self.values.kernels.accumulate([encoded], np.array([weight]), kept, False)
            self.choice.put(flat, chosen, kept)
        if not is_plain(out):
            out[...] = flat.reshape(out.shape)

    def _write_choice(self, chosen: np.ndarray, num_values: int, num_elements: int, out: Bytes) -> Bytes:
        """Write the choice, and zeros at the end; returns the bytes between, for the values."""
        head = self.choice.write(chosen, num_elements)
        end = len(head) + self.values.nbytes(num_values)
        out[: len(head)] = head
        out[end:] = 0
        return out[len(head) : end]

    def _read(self, data: Encoded, num_elements: int) -> tuple[np.ndarray, Bytes]:
        """The choice, and the encoding of the chosen values. `InvalidEncoding` where no encoder chooses so."""
        encoded = require_bytes(data, self.nbytes(num_elements))
        if not num_elements:
            return np.empty(0, np.int64), encoded
        num_bytes, num_values = self.choice.sizes(encoded, num_elements)
        chosen = self.choice.read(encoded[:num_bytes], num_elements)
        return chosen, encoded[num_bytes : num_bytes + self.values.nbytes(num_values)]


CHOICES = {"topk": (TopK, "stat2"), "rows": (Rows, "int8")}
"""Kind of choice -> how it is made from its number, and the dense codec for the values unless another is named."""


def create(name: str) -> SparseCodec:
    """The codec called `name`. ValueError where the parts do not go together."""
    kind, number, values = split_name(name)
    make, usual = CHOICES[kind]
    return SparseCodec(name, make(number), dense_codec(values or usual))
