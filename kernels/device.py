"""Encoding what lies on a device: there, by Triton's kernels on CUDA, by plain torch operations on anything else."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .formats import Format
from .vector import kernels_of, selection
from .vector.arrays import TORCH

if TYPE_CHECKING:
    from torch import Tensor


def has_kernels(values: Tensor) -> bool:
    """Whether there are Triton kernels for where the values are."""
    return values.is_cuda and find_spec("triton") is not None


def encode_dense(layout: Format, values: Tensor) -> tuple[Tensor, int]:
    """The encoding (uint8, 1-D) of a float32 tensor, on its device, and the index of the first value that cannot be
    encoded, or −1. Another dtype is a TypeError that names it. Waits for the result.
    """
    if not has_kernels(values):
        return encode_with_torch(layout, values)
    from . import gpu

    data, first_bad = gpu.encode(layout, values)
    return data, index_of(first_bad, values)


def encode_with_torch(layout: Format, values: Tensor) -> tuple[Tensor, int]:
    """As `encode_dense`, by torch's own operations."""
    import torch

    flat = require_float32(values).contiguous().view(-1)
    data = torch.empty(layout.nbytes(flat.numel()), dtype=torch.uint8, device=flat.device)
    return data, kernels_of(TORCH, layout).encode(flat, data)


def largest(values: Tensor, kept: int, num_chosen: int) -> tuple[Tensor, int]:
    """Where the largest magnitudes of each group lie (int16, in the group), on the device, and as `encode_dense`."""
    import torch

    indices = torch.empty(num_chosen, dtype=torch.int16, device=require_float32(values).device)
    if not has_kernels(values):
        return indices, selection.largest(TORCH, values, kept, indices)
    from .gpu.selection import largest as largest_on_gpu

    first_bad = torch.full((1,), values.numel(), dtype=torch.int64, device=values.device)
    largest_on_gpu(values, kept, indices, first_bad)
    return indices, index_of(first_bad, values)


def index_of(first_bad: Tensor, values: Tensor) -> int:
    """What a kernel has found, as −1 if it is nothing."""
    index = int(first_bad.item())
    return index if index < values.numel() else -1


def require_float32(values: Tensor) -> Tensor:
    """`values` itself, or a TypeError that names its dtype."""
    import torch

    if values.dtype != torch.float32:
        raise TypeError(f"values must be a tensor of float32, not {values.dtype}")
    return values
