"""Which values or rows a sparse codec chooses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..codec import Bytes, Float32Array
from ..formats import GROUP


def largest(values: Float32Array, kept: int, indices: NDArray[np.uint16]) -> int:
    """Per group of values, where the largest magnitudes are, ascending; of two equal ones the first is chosen."""
    finite = np.isfinite(values)
    if not finite.all():
        return int(np.argmin(finite))
    for group, start in enumerate(range(0, values.size, GROUP)):
        magnitudes = [abs(x) for x in values[start : start + GROUP]]
        by_magnitude = sorted(range(len(magnitudes)), key=lambda i: (-magnitudes[i], i))
        chosen = sorted(by_magnitude[:kept])
        indices[group * kept : group * kept + len(chosen)] = chosen
    return -1


def nonzero_rows(values: Float32Array, width: int, present: Bytes) -> None:
    """Per row, whether any value is not 0."""
    for row in range(present.size):
        present[row] = any(x != 0 for x in values[row * width : (row + 1) * width])
