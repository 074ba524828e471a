"""Encoding what lies on a device: there, by Triton's kernels on CUDA, by plain torch operations on anything else."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .codec import NonFiniteError
from .formats import Format
from .vector import kernels_of
from .vector.arrays import TORCH

if TYPE_CHECKING:
    from torch import Tensor


def encode_dense(layout: Format, values: Tensor) -> Tensor:
    """The encoding (uint8, 1-D) of a float32 tensor, on the tensor's device.

    Other dtype: TypeError naming it. NaN or infinity: `NonFiniteError` naming the first. Waits for the result.
    """
    if values.is_cuda and find_spec("triton") is not None:
        from . import gpu

        data, first_bad = gpu.encode(layout, values)
        index = int(first_bad.item())
    else:
        data, index = encode_with_torch(layout, values)
    if 0 <= index < values.numel():
        raise NonFiniteError(f"value {index} of {values.numel()} is {values.reshape(-1)[index].item()}: not encoded")
    return data


def encode_with_torch(layout: Format, values: Tensor) -> tuple[Tensor, int]:
    """The encoding by torch's own operations, and the index of the first value that cannot be encoded, or −1."""
    import torch

    if values.dtype != torch.float32:
        raise TypeError(f"values must be a tensor of float32, not {values.dtype}")
    flat = values.contiguous().view(-1)
    data = torch.empty(layout.nbytes(flat.numel()), dtype=torch.uint8, device=flat.device)
    return data, kernels_of(TORCH, layout).encode(flat, data)
