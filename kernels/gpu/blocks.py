"""Every block format, given how it finds scales and codes and what levels its codes have.

A program has ROWS blocks, each as (slots of a byte, bytes): x[r, s, j] is value s · stride + j of block r, the stride
being the block's bytes of codes.
"""

# ruff: noqa: ANN001, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..formats import BlockFormat
from .absmax import ABSMAX
from .stat2 import level_stat2, quantise_stat2

FUNCTIONS = {**ABSMAX, "stat2": (quantise_stat2, level_stat2)}
"""Per format: quantise(x, bits of |x|, which are inside, values per block) -> bits of the first and the last scale,
and codes; and level(code)."""
ELEMENTS = 4096
"""Values per program: 16 KiB of float32, enough for full use of the memory bus."""


@triton.jit
def _offsets(num_elements, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Block numbers (ROWS,), values in each, bytes of codes in each, where values lie, and which of them exist."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    num = tl.maximum(tl.minimum(num_elements - rows * BLOCK, BLOCK), 0)
    stride = (num * BITS + 7) // 8
    column = tl.arange(0, BLOCK * BITS // 8)[None, None, :]
    index = tl.arange(0, 8 // BITS)[None, :, None] * stride[:, None, None] + column
    inside = (column < stride[:, None, None]) & (index < num[:, None, None])
    return rows, num, stride, (rows * BLOCK)[:, None, None] + index, inside


@triton.jit
def _encode(
    values, data, first_bad, total, chunk_elements, chunk_bytes,
    QUANTISE: tl.constexpr, BITS: tl.constexpr, NUM_SCALES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    first_element = tl.program_id(1).to(tl.int64) * chunk_elements
    num_elements = tl.minimum(total - first_element, chunk_elements)
    num_blocks = tl.cdiv(num_elements, BLOCK)
    values += first_element
    data += tl.program_id(1).to(tl.int64) * chunk_bytes
    rows, num, stride, offsets, inside = _offsets(num_elements, BITS, BLOCK, ROWS)
    x = tl.load(values + offsets, mask=inside, other=0.0)
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bad = tl.where(magnitude >= 0x7F800000, first_element + offsets, total)
    tl.atomic_min(first_bad, tl.min(tl.min(tl.min(bad, axis=2), axis=1), axis=0))
    first, last, codes = QUANTISE(x, magnitude, inside, num)
    scales = data + 2 * NUM_SCALES * rows
    tl.store(scales, (first & 0xFF).to(tl.uint8), mask=rows < num_blocks)
    tl.store(scales + 1, (first >> 8).to(tl.uint8), mask=rows < num_blocks)
    if NUM_SCALES == 2:
        tl.store(scales + 2, (last & 0xFF).to(tl.uint8), mask=rows < num_blocks)
        tl.store(scales + 3, (last >> 8).to(tl.uint8), mask=rows < num_blocks)
    shifts = (tl.arange(0, 8 // BITS) * BITS)[None, :, None]
    packed = tl.sum((codes & ((1 << BITS) - 1)) << shifts, axis=1)
    column = tl.arange(0, BLOCK * BITS // 8)[None, :]
    start = 2 * NUM_SCALES * num_blocks + rows * (BLOCK * BITS // 8)
    tl.store(data + start[:, None] + column, packed.to(tl.uint8), mask=column < stride[:, None])


@triton.jit
def _factor(data, index, mask, weight, FRESH: tl.constexpr):
    low = tl.load(data + 2 * index, mask=mask, other=0).to(tl.int32)
    high = tl.load(data + 2 * index + 1, mask=mask, other=0).to(tl.int32)
    scale = ((high << 24) | (low << 16)).to(tl.float32, bitcast=True)
    return scale if FRESH else scale * weight


@triton.jit
def _accumulate(
    data, out, weight, num_elements, num_blocks, FRESH: tl.constexpr,
    LEVEL: tl.constexpr, BITS: tl.constexpr, NUM_SCALES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows, _, stride, offsets, inside = _offsets(num_elements, BITS, BLOCK, ROWS)
    column = tl.arange(0, BLOCK * BITS // 8)[None, None, :]
    start = 2 * NUM_SCALES * num_blocks + rows * (BLOCK * BITS // 8)
    packed = tl.load(data + start[:, None, None] + column, mask=column < stride[:, None, None], other=0).to(tl.int32)
    code = (packed >> (tl.arange(0, 8 // BITS) * BITS)[None, :, None]) & ((1 << BITS) - 1)
    factor = _factor(data, NUM_SCALES * rows, rows < num_blocks, weight, FRESH)[:, None, None]
    if NUM_SCALES == 2:
        last = _factor(data, NUM_SCALES * rows + 1, rows < num_blocks, weight, FRESH)[:, None, None]
        factor = tl.where((code & 1) == 1, last, factor)
    total = factor * LEVEL(code).to(tl.float32)
    total = (0.0 if FRESH else tl.load(out + offsets, mask=inside, other=0.0)) + total  # never −0
    tl.store(out + offsets, total, mask=inside)


def encode(
    layout: BlockFormat, values: torch.Tensor, data: torch.Tensor, first_bad: torch.Tensor, chunk_elements: int
) -> None:
    """Launch the encoder on checked arguments: one chunk after another."""
    fixed, total = constants(layout), values.numel()
    per_chunk = triton.cdiv(layout.num_blocks(min(chunk_elements, total)), fixed["ROWS"])
    kernel: triton.JITFunction = _encode
    kernel[(per_chunk, triton.cdiv(total, chunk_elements))](
        values, data, first_bad, total, chunk_elements, layout.nbytes(chunk_elements),
        QUANTISE=FUNCTIONS[layout.name][0], **fixed, enable_fp_fusion=False,
    )  # fmt: skip


def accumulate(layout: BlockFormat, data: torch.Tensor, out: torch.Tensor, weight: float, *, fresh: bool) -> None:
    """Launch the decoder on checked arguments."""
    fixed, num_blocks = constants(layout), layout.num_blocks(out.numel())
    kernel: triton.JITFunction = _accumulate
    kernel[(triton.cdiv(num_blocks, fixed["ROWS"]),)](
        data, out, weight, out.numel(), num_blocks,
        FRESH=fresh, LEVEL=FUNCTIONS[layout.name][1], **fixed, enable_fp_fusion=False,
    )  # fmt: skip


def constants(layout: BlockFormat) -> dict[str, int]:
    """What both kernels are compiled for."""
    shape = {"BITS": layout.bits, "NUM_SCALES": layout.num_scales, "BLOCK": layout.block}
    return shape | {"ROWS": ELEMENTS // layout.block}
