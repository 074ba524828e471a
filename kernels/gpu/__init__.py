"""The formats' kernels for CUDA, in Triton, so that only codes travel to the host. Same bits as `reference/`.

Needs torch and triton; import it only where a CUDA tensor is at hand. What keeps the bits: no fused multiply-add
(`enable_fp_fusion=False`), division rounded to nearest (`div_rn`), subnormals kept (Triton's default), maxima over
integer bits, rounding by adding 1.5 · 2²³.
"""

from __future__ import annotations

from typing import Any

import torch

from ..codec import InvalidEncoding
from ..formats import BlockFormat, Format
from . import blocks, values


def encode(layout: Format, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode a float32 CUDA tensor of any shape, in C order, without waiting for the result.

    Returns the bytes (uint8, 1-D) and the index of the first value that cannot be encoded (int64, (1,)), which is the
    number of values if there is none; both stay on the tensor's device. Other dtype: TypeError naming it.
    """
    flat = _float32(tensor).contiguous().view(-1)
    data = torch.empty(layout.nbytes(flat.numel()), dtype=torch.uint8, device=flat.device)
    return data, encode_chunks(layout, flat, max(flat.numel(), 1), data)


def encode_chunks(layout: Format, values: torch.Tensor, chunk_elements: int, data: torch.Tensor) -> torch.Tensor:
    """Encode chunk after chunk of a flat, contiguous float32 tensor into bytes on its device, in one launch.

    Returns the index of the first value that cannot be encoded, as `encode`.
    """
    first_bad = torch.full((1,), values.numel(), dtype=torch.int64, device=values.device)
    if values.numel():
        _module(layout).encode(layout, values, data, first_bad, chunk_elements)
    return first_bad


def decode(layout: Format, data: torch.Tensor, num_elements: int) -> torch.Tensor:
    """Decode `num_elements` values (1-D, on the data's device). Wrong length: `InvalidEncoding`."""
    out = torch.empty(num_elements, dtype=torch.float32, device=data.device)
    if num_elements:
        _module(layout).accumulate(layout, _encoding(layout, data, num_elements), out, 1.0, fresh=True)
    return out


def accumulate(layout: Format, data: torch.Tensor, weight: float, out: torch.Tensor) -> None:
    """out += weight · decoded, as `Codec.accumulate`. `out` is a contiguous float32 tensor on the data's device."""
    if not _float32(out).is_contiguous():
        raise ValueError("out must be contiguous")
    if out.numel():
        _module(layout).accumulate(layout, _encoding(layout, data, out.numel()), out, float(weight), fresh=False)


def _module(layout: Format) -> Any:
    return blocks if isinstance(layout, BlockFormat) else values


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float32:
        raise TypeError(f"values must be a tensor of float32, not {tensor.dtype}")
    return tensor


def _encoding(layout: Format, data: torch.Tensor, num_elements: int) -> torch.Tensor:
    expected = layout.nbytes(num_elements)
    if data.dtype != torch.uint8 or data.numel() != expected or not data.is_contiguous():
        raise InvalidEncoding(f"expected {expected} contiguous uint8, not {data.numel()} of {data.dtype}")
    return data
