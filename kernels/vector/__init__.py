"""The formats on whole arrays at a time, once for numpy (machines without the compiled library) and for torch (devices
without a kernel of their own). `arrays.py` is what differs between the two."""

from __future__ import annotations

from ..formats import BlockFormat, Format
from . import stat2
from .absmax import ABSMAX
from .arrays import Arrays
from .blocks import BlockKernels, Quantise
from .values import ValueKernels

QUANTISERS: dict[str, Quantise] = {**ABSMAX, "stat2": stat2.quantise}
"""How each block format finds scales and codes."""


def kernels_of(arrays: Arrays, layout: Format) -> BlockKernels | ValueKernels:
    """A format's kernels on numpy's or torch's arrays."""
    if isinstance(layout, BlockFormat):
        return BlockKernels(arrays, layout, QUANTISERS[layout.name])
    return ValueKernels(arrays, layout)
