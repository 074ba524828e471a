"""How much of its own a contribution has beside another one: the numbers behind the rule "copy". Pure.

Honest contributions may be very alike: they start at the same weights and see text of the same kind (their cosines
reach 0.998 with SGD, `docs/security.md`). What tells a copy is that it shares also what is *not* common to all. So the
direction that the other members have in common, the sum b of their unit vectors, is taken out of both vectors, and what
is left is compared:

    c = cosine(x − (x·b) b / b·b, y − (y·b) b / b·b)        own share of x beside y = 1 − c²

c is the partial correlation of x and y given b: near zero for honest members of one round, one for copies, whatever
they are scaled by. Shape suffixes: M members, K rows that they are compared with, N sampled elements.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

NEGLIGIBLE = 1e-4
"""Share of a vector's energy beside the common direction below which it is the codec's rounding (int8: 5e-5)."""


def units(rows_KN: NDArray[np.float32]) -> Array:
    """The rows, scaled to length one in float64; all-zero rows stay zero."""
    wide_KN = rows_KN.astype(np.float64)
    norms_K1 = np.linalg.norm(wide_KN, axis=1, keepdims=True)
    return wide_KN / np.where(norms_K1 > 0, norms_K1, 1.0)


def own_shares_beside(members_MN: Array, rows_KN: Array) -> Array:
    """(M, K): what each member has of its own beside each of the rows, 0 (a copy) to 1. All are `units`."""
    sum_N = members_MN.sum(axis=0)
    cosines_MK = members_MN @ rows_KN.T
    own_M, along_M = _squares(members_MN), members_MN @ sum_N
    common_M = sum_N @ sum_N - 2 * along_M + own_M
    beside_M = along_M - own_M
    others_MK = rows_KN @ sum_N - cosines_MK
    return _own_shares(
        cosines_MK, own_M[:, None], _squares(rows_KN)[None], beside_M[:, None], others_MK, common_M[:, None]
    )


def own_shares_among(members_MN: Array) -> Array:
    """(M, M): what each member has of its own beside each other one; 1 on the diagonal. All are `units`."""
    sum_N = members_MN.sum(axis=0)
    cosines_MM = members_MN @ members_MN.T
    own_M, along_M = _squares(members_MN), members_MN @ sum_N
    beside_MM = (along_M - own_M)[:, None] - cosines_MM
    pairs_MM = along_M[:, None] + along_M[None]
    common_MM = sum_N @ sum_N - 2 * pairs_MM + own_M[:, None] + own_M[None] + 2 * cosines_MM
    shares_MM = _own_shares(cosines_MM, own_M[:, None], own_M[None], beside_MM, beside_MM.T, common_MM)
    np.fill_diagonal(shares_MM, 1.0)
    return shares_MM


def _squares(rows_KN: Array) -> Array:
    return np.einsum("kn,kn->k", rows_KN, rows_KN)


def _own_shares(xy: Array, xx: Array, yy: Array, xb: Array, yb: Array, bb: Array) -> Array:
    """1 − c² from the products of x, y and b, which broadcast. 1 where c is negative, or nothing is left to judge."""
    inverse = np.where(bb > NEGLIGIBLE, 1 / np.maximum(bb, NEGLIGIBLE), 0.0)
    rest_x, rest_y = xx - xb * xb * inverse, yy - yb * yb * inverse
    is_judged = (rest_x > NEGLIGIBLE) & (rest_y > NEGLIGIBLE)
    squared = np.maximum(xy - xb * yb * inverse, 0.0) ** 2 / np.where(is_judged, rest_x * rest_y, 1.0)
    return np.where(is_judged, np.clip(1 - squared, 0.0, 1.0), 1.0)
