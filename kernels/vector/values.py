"""The formats that write each value by itself, on whole arrays; `reference/values.py` is the specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ..formats import LANES, ValueFormat
from .arrays import Array, Arrays

Convert: TypeAlias = "Callable[[Arrays, Array], Array]"
CACHE_ELEMENTS = 1 << 15
"""Values worked on at a time, so that temporaries stay in the second-level cache."""


def write_float32(arrays: Arrays, values: Array) -> Array:
    """Bits (int32) of the values as they are written."""
    return arrays.bits(values)


def read_float32(arrays: Arrays, bits: Array) -> Array:
    """The values of what was written; not finite for what no encoder writes."""
    return arrays.floats(bits)


def write_float16(arrays: Arrays, values: Array) -> Array:
    """Bits of float16, an infinity where there is no such number."""
    return arrays.half_bits(values)


def read_float16(arrays: Arrays, bits: Array) -> Array:
    """The values of float16's bits."""
    return arrays.halves(bits)


def write_bfloat16(arrays: Arrays, values: Array) -> Array:
    """Bits of bfloat16, an infinity where there is no such number."""
    bits = arrays.bits(values)
    magnitude = bits & 0x7FFFFFFF
    # What is not finite already is left alone, lest the addition run over.
    rounded = arrays.where(magnitude < 0x7F800000, magnitude + 0x7FFF + ((magnitude >> 16) & 1), 0x7F800000)
    return arrays.int32(rounded >> 16) | ((bits >> 16) & 0x8000)


def read_bfloat16(arrays: Arrays, bits: Array) -> Array:
    """The values of bfloat16's bits."""
    return arrays.floats(bits << 16)


WRITERS: dict[str, Convert] = {"float32": write_float32, "float16": write_float16, "bfloat16": write_bfloat16}
READERS: dict[str, Convert] = {"float32": read_float32, "float16": read_float16, "bfloat16": read_bfloat16}


class ValueKernels:
    """See `Kernels`; arrays are numpy's or torch's."""

    def __init__(self, arrays: Arrays, layout: ValueFormat) -> None:
        self._arrays, self.layout = arrays, layout
        self._write, self._read = WRITERS[layout.name], READERS[layout.name]

    def parts(self, num_elements: int) -> Iterator[slice]:
        """Elements that fit the cache."""
        for start in range(0, num_elements, CACHE_ELEMENTS):
            yield slice(start, min(start + CACHE_ELEMENTS, num_elements))

    def encode(self, values: Array, data: Array) -> int:
        for part in self.parts(len(values)):
            bits = self._write(self._arrays, values[part])
            first_bad = self._arrays.first(~self._arrays.finite(self._read(self._arrays, bits)))
            if first_bad >= 0:
                return part.start + first_bad
            self._store(bits, data, part)
        return -1

    def decode(self, data: Array, out: Array) -> None:
        for part in self.parts(len(out)):
            out[part] = self._load(data, part)

    def accumulate(self, datas: Sequence[Array], weights: Array, out: Array, fresh: bool) -> None:
        for part in self.parts(len(out)):
            total = out[part]
            if fresh:
                total[:] = 0
            for data, weight in zip(datas, weights, strict=True):
                total += self._load(data, part) * weight

    def check(self, data: Array, num_elements: int) -> int:
        for part in self.parts(num_elements):
            first_bad = self._arrays.first(~self._arrays.finite(self._load(data, part)))
            if first_bad >= 0:
                return self.layout.bytes_per_value * (part.start + first_bad)
        return -1

    def dots(self, data: Array, other: Array, num_elements: int) -> Array:
        lanes = self._arrays.zeros((self.layout.num_terms(num_elements),), "float64", data)
        for start in range(0, num_elements, LANES):
            part = slice(start, min(start + LANES, num_elements))
            values, others = (self._arrays.float64(self._load(each, part)) for each in (data, other))
            lanes[: len(values)] += values * others  # a product of float32 is exact in float64
        return lanes

    def _bytes(self, data: Array, part: slice) -> Array:
        size = self.layout.bytes_per_value
        return data[size * part.start : size * part.stop]

    def _store(self, bits: Array, data: Array, part: slice) -> None:
        self._bytes(data, part)[:] = self._arrays.little_endian(bits, self.layout.bytes_per_value)

    def _load(self, data: Array, part: slice) -> Array:
        bits = self._arrays.from_little_endian(self._bytes(data, part), self.layout.bytes_per_value)
        return self._read(self._arrays, bits)
