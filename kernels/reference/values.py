"""The formats that write each value by itself, rounded to nearest even: float32, float16 and bfloat16.

A value that rounds to infinity cannot be written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ..codec import Bytes, Float32Array, Float64Array
from ..formats import ValueFormat
from .arithmetic import F, bfloat16_bits, from_bfloat16


def write_float32(value: np.float32) -> bytes | None:
    """The value's four bytes; None if it is not finite."""
    return struct.pack("<f", value) if np.isfinite(value) else None


def read_float32(data: bytes) -> np.float32:
    """The value of four bytes."""
    return F(struct.unpack("<f", data)[0])


def write_float16(value: np.float32) -> bytes | None:
    """The value's two bytes, subnormals kept; None if it is not finite, or rounds to infinity."""
    try:
        return struct.pack("<e", value) if np.isfinite(value) else None
    except OverflowError:
        return None


def read_float16(data: bytes) -> np.float32:
    """The value of two bytes, exactly."""
    return F(struct.unpack("<e", data)[0])


def write_bfloat16(value: np.float32) -> bytes | None:
    """The value's two bytes, subnormals kept; None if it is not finite, or rounds to infinity."""
    bits = bfloat16_bits(value)
    return struct.pack("<H", bits) if bits & 0x7F80 != 0x7F80 else None


def read_bfloat16(data: bytes) -> np.float32:
    """The value of two bytes, exactly."""
    return from_bfloat16(struct.unpack("<H", data)[0])


WRITERS = {"float32": write_float32, "float16": write_float16, "bfloat16": write_bfloat16}
READERS = {"float32": read_float32, "float16": read_float16, "bfloat16": read_bfloat16}


class ValueKernels:
    """See `Kernels`."""

    def __init__(self, layout: ValueFormat) -> None:
        self.layout = layout
        self._write, self._read = WRITERS[layout.name], READERS[layout.name]

    def encode(self, values: Float32Array, data: Bytes) -> int:
        size = self.layout.bytes_per_value
        for i, value in enumerate(values):
            written = self._write(value)
            if written is None:
                return i
            data[size * i : size * (i + 1)] = list(written)
        return -1

    def decode(self, data: Bytes, out: Float32Array) -> None:
        out[:] = self._values(data)

    def accumulate(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        if fresh:
            out[:] = 0
        with np.errstate(all="ignore"):
            for data, weight in zip(datas, weights, strict=True):
                for i, value in enumerate(self._values(data)):
                    product = weight * value
                    out[i] = out[i] + product

    def check(self, data: Bytes, num_elements: int) -> int:
        for i, value in enumerate(self._values(data)):
            if not np.isfinite(value):
                return self.layout.bytes_per_value * i
        return -1

    def dots(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        lanes = np.zeros(self.layout.num_terms(num_elements), np.float64)
        for i, (value, other_value) in enumerate(zip(self._values(data), self._values(other), strict=True)):
            lanes[i % lanes.size] += float(value) * float(other_value)  # exact, but for the sum
        return lanes

    def _values(self, data: Bytes) -> list[np.float32]:
        raw, size = data.tobytes(), self.layout.bytes_per_value
        return [self._read(raw[i : i + size]) for i in range(0, len(raw), size)]
