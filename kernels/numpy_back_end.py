"""The kernels in numpy, for machines without the compiled library: many values at a time, temporaries kept in cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .back_ends import Kernels
from .codec import Bytes, Float32Array, Float64Array
from .formats import FORMATS
from .vector import kernels_of, selection
from .vector.arrays import NUMPY

CACHE_ELEMENTS = 1 << 17
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Quiet:
    """Kernels without numpy's warnings about overflow: infinities are results like any other."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def encode(self, values: Float32Array, data: Bytes) -> int:
        with np.errstate(all="ignore"):
            return self._kernels.encode(values, data)

    def decode(self, data: Bytes, out: Float32Array) -> None:
        self._kernels.decode(data, out)

    def accumulate(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        with np.errstate(all="ignore"):
            self._kernels.accumulate(datas, weights, out, fresh)

    def check(self, data: Bytes, num_elements: int) -> int:
        return self._kernels.check(data, num_elements)

    def dots(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        return self._kernels.dots(data, other, num_elements)


class Numpy:
    """The numpy back end. Needs the usual floating-point mode: a thread that flushes subnormals gets other bits."""

    name = "numpy"

    def __init__(self) -> None:
        self._kernels = {name: Quiet(kernels_of(NUMPY, layout)) for name, layout in FORMATS.items()}

    def kernels(self, name: str) -> Kernels:
        return self._kernels[name]

    def largest(self, values: Float32Array, kept: int, indices: NDArray[np.uint16]) -> int:
        return selection.largest(NUMPY, values, kept, indices)

    def nonzero_rows(self, values: Float32Array, width: int, present: Bytes) -> None:
        num_whole = values.size // width
        np.any(values[: num_whole * width].reshape(-1, width) != 0, axis=1, out=present[:num_whole].view(np.bool_))
        present[num_whole:] = np.any(values[num_whole * width :] != 0)

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None:
        with np.errstate(all="ignore"):
            for start in range(0, anchor.size, CACHE_ELEMENTS):
                part = slice(start, start + CACHE_ELEMENTS)
                momentum[part] *= np.float32(beta)
                momentum[part] += mean[part]
                ahead = momentum[part] * np.float32(beta)
                ahead += mean[part]
                ahead *= np.float32(lr)
                anchor[part] -= ahead

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        with np.errstate(over="ignore"):
            for first in range(0, out.size, CACHE_ELEMENTS):
                part = out[first : first + CACHE_ELEMENTS]
                base = np.uint64((start + first) % 2**64)
                self._fill_part(part, np.uint64(key), base + np.arange(1, part.size + 1, dtype=np.uint64))
                part *= np.float32(factor)

    def _fill_part(self, out: Float32Array, key: np.uint64, counters: NDArray[np.uint64]) -> None:
        z = counters * GOLDEN + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        quarters = z.view(np.uint16).reshape(-1, 4)
        out[:] = quarters.sum(axis=1, dtype=np.int32) - 131_070
