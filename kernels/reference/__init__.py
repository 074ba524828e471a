"""The specification of the numeric kernels: one value at a time, one float32 operation per line.

Slow on purpose. Every other back end must give these bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..back_ends import Kernels
from ..codec import Bytes, Float32Array
from ..formats import FORMATS, BlockFormat
from . import selection, stat2
from .absmax import ABSMAX
from .arithmetic import F, normal_integer
from .blocks import BlockKernels, Quantise
from .values import ValueKernels

QUANTISERS: dict[str, Quantise] = {**ABSMAX, "stat2": stat2.quantise}
"""How each block format finds scales and codes."""


class Reference:
    """The back end made of the functions in this package."""

    name = "reference"

    def kernels(self, name: str) -> Kernels:
        layout = FORMATS[name]
        if isinstance(layout, BlockFormat):
            return BlockKernels(layout, QUANTISERS[name])
        return ValueKernels(layout)

    def largest(self, values: Float32Array, kept: int, indices: NDArray[np.uint16]) -> int:
        return selection.largest(values, kept, indices)

    def nonzero_rows(self, values: Float32Array, width: int, present: Bytes) -> None:
        selection.nonzero_rows(values, width, present)

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None:
        with np.errstate(all="ignore"):
            for i in range(anchor.size):
                momentum[i] = F(beta) * momentum[i] + mean[i]
                ahead = mean[i] + F(beta) * momentum[i]
                anchor[i] = anchor[i] - F(lr) * ahead

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        for i in range(out.size):
            out[i] = F(normal_integer(key, start + i)) * F(factor)
