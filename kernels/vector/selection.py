"""Which values a sparse codec chooses, on whole arrays; `reference/selection.py` is the specification."""

from __future__ import annotations

from ..formats import GROUP
from .arrays import Array, Arrays

CACHE_GROUPS = 32
INFINITY_BITS = 0x7F800000


def largest(arrays: Arrays, values: Array, kept: int, indices: Array) -> int:
    """Per group of values, where the largest magnitudes are; the index of the first value that is not finite, or −1."""
    num_whole = len(values) // GROUP * GROUP
    for start in range(0, num_whole, CACHE_GROUPS * GROUP):
        groups = values[start : min(start + CACHE_GROUPS * GROUP, num_whole)].reshape(-1, GROUP)
        first = start // GROUP * kept
        indices[first : first + len(groups) * kept] = chosen(arrays, groups, kept)
    if num_whole < len(values):
        rest = values[num_whole:].reshape(1, -1)
        indices[num_whole // GROUP * kept :] = chosen(arrays, rest, min(kept, rest.shape[1]))
    return arrays.first(~arrays.finite(values))


def chosen(arrays: Arrays, groups: Array, kept: int) -> Array:
    """Columns of each row's largest magnitudes, flat."""
    magnitudes = arrays.bits(groups) & 0x7FFFFFFF
    limit = arrays.kth_largest(magnitudes, kept)[:, None]
    larger = magnitudes > limit
    equal = magnitudes == limit
    room = kept - arrays.sums(arrays.int32(larger))[:, None]
    return arrays.columns(larger | (equal & (arrays.cumulated(arrays.int32(equal)) <= room)))
