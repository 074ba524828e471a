"""The few array operations that the formats are written in, on numpy's arrays and on torch's tensors.

Integers are int32 throughout: torch has little arithmetic on anything smaller or unsigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


class Arrays(Protocol):
    """Named operations where the libraries differ; indexing, arithmetic and `reshape` they share."""

    def bits(self, values: Array) -> Array:
        """float32 -> int32 of the same bits."""
        ...

    def floats(self, bits: Array) -> Array:
        """int32 -> float32 of the same bits."""
        ...

    def int32(self, values: Array) -> Array: ...

    def uint8(self, values: Array) -> Array:
        """The low byte of integers."""
        ...

    def float32(self, values: Array) -> Array: ...

    def float64(self, values: Array) -> Array: ...

    def signed(self, data: Array) -> Array:
        """Bytes -> the float32 values of the same bits as int8."""
        ...

    def divided(self, values: Array | float, divisors: Array | float) -> Array:
        """A float32 quotient, correctly rounded; one of the two is an array."""
        ...

    def largest(self, values: Array) -> Array:
        """Along the last axis."""
        ...

    def largest_magnitude(self, rows: Array, work: Array) -> Array:
        """Bits of each row's max|x|. They order like the floats do, NaN and infinity on top. Overwrites `work`."""
        ...

    def scaled(self, rows: Array, factors: Array, work: Array) -> Array:
        """Each row times a factor of its own, perhaps in `work`."""
        ...

    def sums(self, values: Array) -> Array:
        """Along the last axis, in the same dtype: for integers, and floats whose sums are exact."""
        ...

    def cumulated(self, values: Array) -> Array:
        """Running sums of integers along the last axis."""
        ...

    def kth_largest(self, rows: Array, k: int) -> Array:
        """Of each row of a matrix."""
        ...

    def columns(self, mask: Array) -> Array:
        """Of the True in a matrix, row by row, as int16."""
        ...

    def where(self, condition: Array, then: Array | float, otherwise: Array | float) -> Array: ...

    def stack(self, parts: Sequence[Array]) -> Array:
        """Along a new last axis."""
        ...

    def table(self, values: Sequence[float], indices: Array) -> Array:
        """float32 values at the given indices (integers below 256)."""
        ...

    def first(self, mask: Array) -> int:
        """Flat index of the first True, or −1."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        """On the same device as `like`."""
        ...

    def finite(self, values: Array) -> Array: ...

    def half_bits(self, values: Array) -> Array:
        """float32 -> bits of the nearest float16, as int32."""
        ...

    def halves(self, bits: Array) -> Array:
        """int32 -> the float32 of float16's bits."""
        ...

    def little_endian(self, numbers: Array, num_bytes: int) -> Array:
        """The low bytes (4 or 2) of each int32, flat."""
        ...

    def from_little_endian(self, data: Array, num_bytes: int) -> Array:
        """int32 of so many bytes (4, or 2 without a sign) each."""
        ...


class NumpyArrays:
    """See `Arrays`."""

    def bits(self, values: Array) -> Array:
        return values.view(np.int32)

    def floats(self, bits: Array) -> Array:
        return bits.view(np.float32)

    def int32(self, values: Array) -> Array:
        return values.astype(np.int32)

    def uint8(self, values: Array) -> Array:
        return values.astype(np.uint8)

    def float32(self, values: Array) -> Array:
        return values.astype(np.float32)

    def float64(self, values: Array) -> Array:
        return values.astype(np.float64)

    def signed(self, data: Array) -> Array:
        return data.view(np.int8).astype(np.float32)

    def divided(self, values: Array | float, divisors: Array | float) -> Array:
        return np.divide(values, divisors, dtype=np.float32)

    def largest(self, values: Array) -> Array:
        return values.max(-1)

    def largest_magnitude(self, rows: Array, work: Array) -> Array:
        return np.abs(rows, out=work).view(np.int32).max(-1)  # integers reduce faster

    def scaled(self, rows: Array, factors: Array, work: Array) -> Array:
        work[:] = factors[:, None]  # faster than to multiply by something so short
        work *= rows
        return work

    def sums(self, values: Array) -> Array:
        return values.sum(-1, dtype=values.dtype)

    def cumulated(self, values: Array) -> Array:
        return values.cumsum(-1, dtype=np.int32)

    def kth_largest(self, rows: Array, k: int) -> Array:
        place = rows.shape[1] - k
        return np.partition(rows, place, axis=1)[:, place]

    def columns(self, mask: Array) -> Array:
        return mask.nonzero()[1].astype(np.int16)

    def where(self, condition: Array, then: Array | float, otherwise: Array | float) -> Array:
        return np.where(condition, then, otherwise)

    def stack(self, parts: Sequence[Array]) -> Array:
        return np.stack(parts, -1)

    def table(self, values: Sequence[float], indices: Array) -> Array:
        return np.array(values, np.float32)[indices]

    def first(self, mask: Array) -> int:
        return int(np.argmax(mask)) if mask.any() else -1

    def zeros(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        return np.zeros(shape, dtype)

    def finite(self, values: Array) -> Array:
        return np.isfinite(values)

    def half_bits(self, values: Array) -> Array:
        return values.astype(np.float16).view(np.uint16).astype(np.int32)

    def halves(self, bits: Array) -> Array:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)

    def little_endian(self, numbers: Array, num_bytes: int) -> Array:
        return numbers.astype(f"<i{num_bytes}").view(np.uint8)

    def from_little_endian(self, data: Array, num_bytes: int) -> Array:
        return data.view("<i4" if num_bytes == 4 else "<u2").astype(np.int32)


class TorchArrays:
    """See `Arrays`. Tensors stay on their device."""

    def bits(self, values: Array) -> Array:
        return values.view(_torch().int32)

    def floats(self, bits: Array) -> Array:
        return bits.view(_torch().float32)

    def int32(self, values: Array) -> Array:
        return values.to(_torch().int32)

    def uint8(self, values: Array) -> Array:
        return values.to(_torch().uint8)

    def float32(self, values: Array) -> Array:
        return values.to(_torch().float32)

    def float64(self, values: Array) -> Array:
        return values.to(_torch().float64)

    def signed(self, data: Array) -> Array:
        return data.view(_torch().int8).to(_torch().float32)

    def divided(self, values: Array | float, divisors: Array | float) -> Array:
        # Never by a number: CUDA multiplies by its reciprocal instead, which rounds differently.
        if isinstance(values, float):
            return _torch().full_like(divisors, values) / divisors
        return values / _torch().full_like(values, divisors) if isinstance(divisors, float) else values / divisors

    def largest(self, values: Array) -> Array:
        return values.amax(-1)

    def largest_magnitude(self, rows: Array, work: Array) -> Array:
        return (self.bits(rows) & 0x7FFFFFFF).amax(-1)

    def scaled(self, rows: Array, factors: Array, work: Array) -> Array:
        return rows * factors[:, None]

    def sums(self, values: Array) -> Array:
        return values.sum(-1, dtype=values.dtype)

    def cumulated(self, values: Array) -> Array:
        return values.cumsum(-1, dtype=_torch().int32)

    def kth_largest(self, rows: Array, k: int) -> Array:
        return rows.topk(k, dim=1).values[:, -1]

    def columns(self, mask: Array) -> Array:
        return mask.nonzero()[:, 1].to(_torch().int16)

    def where(self, condition: Array, then: Array | float, otherwise: Array | float) -> Array:
        return _torch().where(condition, then, otherwise)

    def stack(self, parts: Sequence[Array]) -> Array:
        return _torch().stack(list(parts), -1)

    def table(self, values: Sequence[float], indices: Array) -> Array:
        return _torch().tensor(list(values), dtype=_torch().float32, device=indices.device)[indices.long()]

    def first(self, mask: Array) -> int:
        flat = mask.reshape(-1)
        return int(flat.int().argmax()) if flat.numel() and bool(flat.any()) else -1

    def zeros(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        return _torch().zeros(shape, dtype=getattr(_torch(), dtype), device=like.device)

    def finite(self, values: Array) -> Array:
        return _torch().isfinite(values)

    def half_bits(self, values: Array) -> Array:
        return self.int32(values.to(_torch().float16).view(_torch().int16)) & 0xFFFF

    def halves(self, bits: Array) -> Array:
        return bits.to(_torch().int16).view(_torch().float16).to(_torch().float32)

    def little_endian(self, numbers: Array, num_bytes: int) -> Array:
        return self.stack([self.uint8(numbers >> (8 * i)) for i in range(num_bytes)]).reshape(-1)

    def from_little_endian(self, data: Array, num_bytes: int) -> Array:
        parts = self.int32(data.reshape(-1, num_bytes))
        return sum(parts[:, i] << (8 * i) for i in range(num_bytes))


@lru_cache(1)
def _torch() -> Any:
    """Imported when a tensor is at hand: a daemon never needs it."""
    import torch

    return torch


NUMPY, TORCH = NumpyArrays(), TorchArrays()
