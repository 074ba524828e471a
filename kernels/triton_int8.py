"""The block int8 codec on CUDA, so that only codes travel to the host. Same bits as `reference.py`.

Needs torch and triton; import it only where a CUDA tensor is at hand. What keeps the bits: no fused multiply-add
(`enable_fp_fusion=False`), division rounded to nearest (`div_rn`), subnormals kept (Triton's default), maxima over
integer bits, rounding by adding 1.5 · 2²³.
"""

# ruff: noqa: ANN001, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from .codec import InvalidEncoding, NonFiniteError
from .int8 import BLOCK, num_blocks

ROWS = 16
"""Blocks per program: 16 KiB of float32, enough for full use of the memory bus."""


@triton.jit
def _encode(values, data, first_bad, num_elements, num_blocks, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offsets = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = offsets < num_elements
    x = tl.load(values + offsets, mask=inside, other=0.0)
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bad = tl.where(magnitude >= 0x7F800000, offsets, num_elements)
    tl.atomic_min(first_bad, tl.min(tl.min(bad, axis=1), axis=0))
    largest = tl.max(magnitude, axis=1).to(tl.float32, bitcast=True)
    raw = tl.div_rn(largest, tl.full([ROWS], 127.0, tl.float32)).to(tl.int32, bitcast=True)
    bits = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    bits = tl.where(bits < 0x0080, 0, bits)
    scale = tl.where(bits == 0, 0x3F80, bits) << 16
    inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scale.to(tl.float32, bitcast=True))
    inverse = tl.where(bits == 0, 0.0, inverse)
    rounded = (x * inverse[:, None] + 12582912.0).to(tl.int32, bitcast=True) & 0xFF
    tl.store(data + 2 * rows, (bits & 0xFF).to(tl.uint8), mask=rows < num_blocks)
    tl.store(data + 2 * rows + 1, (bits >> 8).to(tl.uint8), mask=rows < num_blocks)
    tl.store(data + 2 * num_blocks + offsets, rounded.to(tl.uint8), mask=inside)


@triton.jit
def _accumulate(
    data, out, weight, num_elements, num_blocks, FRESH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offsets = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = offsets < num_elements
    low = tl.load(data + 2 * rows, mask=rows < num_blocks, other=0).to(tl.int32)
    high = tl.load(data + 2 * rows + 1, mask=rows < num_blocks, other=0).to(tl.int32)
    scale = ((high << 24) | (low << 16)).to(tl.float32, bitcast=True)
    unsigned = tl.load(data + 2 * num_blocks + offsets, mask=inside, other=0).to(tl.int32)
    code = tl.where(unsigned >= 128, unsigned - 256, unsigned).to(tl.float32)
    if FRESH:
        total = scale[:, None] * code
    else:
        total = tl.load(out + offsets, mask=inside, other=0.0) + (scale * weight)[:, None] * code
    tl.store(out + offsets, total, mask=inside)


def encode(values: torch.Tensor) -> torch.Tensor:
    """Encode a float32 CUDA tensor of any shape, in C order; the bytes (uint8, 1-D) stay on its device.

    Other dtype: TypeError naming it. NaN or infinity: `NonFiniteError` naming the first. Waits for the result.
    """
    flat = _float32(values).contiguous().view(-1)
    data = torch.empty(2 * num_blocks(flat.numel()) + flat.numel(), dtype=torch.uint8, device=flat.device)
    first_bad = torch.full((1,), flat.numel(), dtype=torch.int64, device=flat.device)
    _launch(_encode, flat.numel(), flat, data, first_bad)
    index = int(first_bad.item())
    if index < flat.numel():
        raise NonFiniteError(f"value {index} of {flat.numel()} is {flat[index].item()}: only finite values are encoded")
    return data


def decode(data: torch.Tensor, num_elements: int) -> torch.Tensor:
    """Decode `num_elements` values (1-D, on the data's device). Wrong length: `InvalidEncoding`."""
    out = torch.empty(num_elements, dtype=torch.float32, device=data.device)
    _launch(_accumulate, num_elements, _encoding(data, num_elements), out, 1.0, FRESH=True)
    return out


def accumulate(data: torch.Tensor, weight: float, out: torch.Tensor) -> None:
    """out += weight · decoded, as `Codec.accumulate`. `out` is a contiguous float32 tensor on the data's device."""
    if not _float32(out).is_contiguous():
        raise ValueError("out must be contiguous")
    _launch(_accumulate, out.numel(), _encoding(data, out.numel()), out, float(weight), FRESH=False)


def _launch(kernel: triton.JITFunction, num_elements: int, *arguments: object, **constants: bool) -> None:
    blocks = num_blocks(num_elements)
    if blocks:
        grid = (triton.cdiv(blocks, ROWS),)
        kernel[grid](*arguments, num_elements, blocks, **constants, BLOCK=BLOCK, ROWS=ROWS, enable_fp_fusion=False)


def _float32(values: torch.Tensor) -> torch.Tensor:
    if values.dtype != torch.float32:
        raise TypeError(f"values must be a tensor of float32, not {values.dtype}")
    return values


def _encoding(data: torch.Tensor, num_elements: int) -> torch.Tensor:
    expected = 2 * num_blocks(num_elements) + num_elements
    if data.dtype != torch.uint8 or data.numel() != expected or not data.is_contiguous():
        raise InvalidEncoding(f"expected {expected} contiguous uint8, not {data.numel()} of {data.dtype}")
    return data
