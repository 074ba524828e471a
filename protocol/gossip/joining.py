"""How a joiner begins: from the weights of several peers, of which those that lie far from the others are left out.

Nobody certifies a state of a gossip run, so a joiner takes the middle of what several peers give it. With n donors,
fewer than half of whom lie, the coordinate-wise median lies between honest values in every coordinate; who is further
from it than `OUTLIER_FACTOR` times the usual distance is left out, and the start is the mean of the rest. With one
donor or two nobody can tell who lies: the start is then theirs, finite and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

MIN_DONORS = 3
"""From so many on, a liar is told apart."""
OUTLIER_FACTOR = 3.0
"""Honest replicas are about equally far from their median, for their differences have many dimensions."""
_BLOCK_ELEMENTS = 1 << 16


class NotFinite(ValueError):
    """A donor's weights have a NaN or an infinity."""


@dataclass(frozen=True)
class Start:
    """What a joiner begins with."""

    kept: tuple[int, ...]
    """Donors, by index, whose weights are in the mean."""
    distances: tuple[float, ...]
    """Of every donor from the median of all."""


def choose(weights: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> Start:
    """Write the start into ``out`` (num_elements,). ``weights``: one vector per donor. Blocking, block by block.

    Raises ValueError without donors, `NotFinite` if one has sent such values (check each with `is_finite` first).
    """
    if not weights:
        raise ValueError("no donor")
    squared = np.zeros(len(weights), np.float64)
    for part in _blocks(out.size):
        rows = np.stack([np.asarray(vector[part], np.float64) for vector in weights])
        if not np.isfinite(rows).all():
            raise NotFinite("weights that are not finite")
        squared += ((rows - np.median(rows, axis=0)) ** 2).sum(axis=1)
    distances = tuple(float(value) for value in np.sqrt(squared))
    kept = tuple(index for index, distance in enumerate(distances) if not is_outlier(distance, distances))
    for part in _blocks(out.size):
        out[part] = np.mean([np.asarray(weights[index][part], np.float64) for index in kept], axis=0)
    return Start(kept, distances)


def is_outlier(distance: float, distances: Sequence[float]) -> bool:
    """Whether a donor is left out: further from the median of all than `OUTLIER_FACTOR` times the usual."""
    return len(distances) >= MIN_DONORS and distance > OUTLIER_FACTOR * median_low(distances)


def is_finite(vector: NDArray[np.float32]) -> bool:
    """Blocking, block by block."""
    return all(bool(np.isfinite(vector[part]).all()) for part in _blocks(vector.size))


def round_after(rounds: Sequence[int]) -> int:
    """The round that a joiner counts as ended: the low median of its donors'."""
    return median_low(rounds)


def _blocks(num_elements: int) -> list[slice]:
    return [slice(start, start + _BLOCK_ELEMENTS) for start in range(0, num_elements, _BLOCK_ELEMENTS)]
