"""The formats that write each value by itself; `reference/values.py` is the specification."""

# ruff: noqa: ANN001, ANN201, ANN202 (the arguments of device functions are Triton's own)

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..formats import ValueFormat

ELEMENTS = 4096
"""Values per program."""


@triton.jit
def write_float32(x):
    """Bits as they are written."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def read_float32(bits):
    """The value of written bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def write_float16(x):
    return x.to(tl.float16, fp_downcast_rounding="rtne").to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def read_float16(bits):
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def write_bfloat16(x):
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = tl.where(magnitude < 0x7F800000, magnitude + 0x7FFF + ((magnitude >> 16) & 1), 0x7F800000)
    return (rounded >> 16) | ((bits >> 16) & 0x8000)


@triton.jit
def read_bfloat16(bits):
    return (bits << 16).to(tl.float32, bitcast=True)


FUNCTIONS = {
    "float32": (write_float32, read_float32),
    "float16": (write_float16, read_float16),
    "bfloat16": (write_bfloat16, read_bfloat16),
}


@triton.jit
def _encode(
    values, data, first_bad, total, WRITE: tl.constexpr, READ: tl.constexpr, BYTES: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = offsets < total
    bits = WRITE(tl.load(values + offsets, mask=inside, other=0.0))
    magnitude = READ(bits).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bad = tl.where((magnitude >= 0x7F800000) & inside, offsets, total)
    tl.atomic_min(first_bad, tl.min(bad, axis=0))
    for byte in tl.static_range(BYTES):
        tl.store(data + BYTES * offsets + byte, ((bits >> (8 * byte)) & 0xFF).to(tl.uint8), mask=inside)


@triton.jit
def _accumulate(
    data, out, weight, num_elements, FRESH: tl.constexpr, READ: tl.constexpr, BYTES: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = offsets < num_elements
    bits = tl.zeros([ELEMENTS], tl.int32)
    for byte in tl.static_range(BYTES):
        bits |= tl.load(data + BYTES * offsets + byte, mask=inside, other=0).to(tl.int32) << (8 * byte)
    total = READ(bits)
    if not FRESH:
        total = tl.load(out + offsets, mask=inside, other=0.0) + weight * total
    tl.store(out + offsets, total, mask=inside)


def encode(
    layout: ValueFormat, values: torch.Tensor, data: torch.Tensor, first_bad: torch.Tensor, chunk_elements: int
) -> None:
    """Launch the encoder on checked arguments. Chunks follow each other without a mark."""
    write, read = FUNCTIONS[layout.name]
    _launch(_encode, layout, values.numel(), values, data, first_bad, WRITE=write, READ=read)


def accumulate(layout: ValueFormat, data: torch.Tensor, out: torch.Tensor, weight: float, *, fresh: bool) -> None:
    """Launch the decoder on checked arguments."""
    _launch(_accumulate, layout, out.numel(), data, out, weight, FRESH=fresh, READ=FUNCTIONS[layout.name][1])


def _launch(
    kernel: triton.JITFunction, layout: ValueFormat, num_elements: int, *arguments: object, **chosen: object
) -> None:
    grid = (triton.cdiv(num_elements, ELEMENTS),)
    shape = {"BYTES": layout.bytes_per_value, "ELEMENTS": ELEMENTS}
    kernel[grid](*arguments, num_elements, **shape, **chosen, enable_fp_fusion=False)
