"""The largest magnitudes of each group of 4,096 values; `reference/selection.py` is the specification."""

# ruff: noqa: ANN001, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..formats import GROUP


@triton.jit
def _largest(values, indices, first_bad, num_elements, kept, GROUP: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, GROUP)
    offsets = group * GROUP + column
    inside = offsets < num_elements
    magnitude = tl.load(values + offsets, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    magnitude = tl.where(inside, magnitude, -1)
    tl.atomic_min(first_bad, tl.min(tl.where(magnitude >= 0x7F800000, offsets, num_elements), axis=0))
    num = tl.minimum(num_elements - group * GROUP, kept)
    limit = 0  # bit by bit, the largest number that so many magnitudes reach
    for i in range(31):
        candidate = limit | (1 << (30 - i))
        reached = tl.sum((magnitude >= candidate).to(tl.int32), axis=0)
        limit = tl.where(reached >= num, candidate, limit)
    larger = (magnitude > limit).to(tl.int32)
    equal = (magnitude == limit).to(tl.int32)
    room = num - tl.sum(larger, axis=0)
    chosen = larger | (equal & (tl.cumsum(equal, axis=0) <= room).to(tl.int32))
    tl.store(indices + group * kept + tl.cumsum(chosen, axis=0) - 1, column.to(tl.int16), mask=chosen == 1)


def largest(values: torch.Tensor, kept: int, indices: torch.Tensor, first_bad: torch.Tensor) -> None:
    """Write the columns (int16) of the largest of a flat float32 tensor; see `blocks.encode` for `first_bad`."""
    grid = (triton.cdiv(values.numel(), GROUP),)
    kernel: triton.JITFunction = _largest
    kernel[grid](values, indices, first_bad, values.numel(), kept, GROUP=GROUP)
