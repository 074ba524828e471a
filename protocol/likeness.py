"""How much of its own a contribution has beside another one: the numbers behind the rule "copy". Pure.

Honest contributions may be very alike: they start at the same weights and see text of the same kind (their cosines
reach 0.998 with SGD, `docs/security.md`). What tells a copy is that it shares also what is *not* common to all. So what
the other members have in common is taken out of both vectors, and the rest is compared:

    c = cosine of x and y, each less its projection on the span of B        own share of x beside y = 1 − c²

c is the partial correlation of x and y given B: near zero for honest members of one round, one for copies, however they
are scaled. B are two weighted sums of the other members' unit vectors: the plain one, and the one that tells how
contributions change with the work behind them (fast peers have more in common with each other than with slow ones).
Shape suffixes: M members, K rows that they are compared with, N sampled elements, P cases of B, R vectors of B.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

NEGLIGIBLE = 1e-4
"""Share of a vector's energy beside B below which it is the codec's rounding (int8: 5e-5)."""
_RANK_TOLERANCE = 1e-10
"""Members of equal speed leave the second vector of B zero."""


def units(rows_KN: NDArray[np.float32]) -> Array:
    """The rows, scaled to length one in float64; all-zero rows stay zero."""
    wide_KN = rows_KN.astype(np.float64)
    norms_K1 = np.linalg.norm(wide_KN, axis=1, keepdims=True)
    return wide_KN / np.where(norms_K1 > 0, norms_K1, 1.0)


def own_shares_beside(members_MN: Array, rows_KN: Array, work_M: Array) -> Array:
    """(M, K): what each member has of its own beside each of the rows, 0 (a copy) to 1. All are `units`.

    ``work_M``: logarithm of the work behind each member's contribution.
    """
    products_MM, products_MK = members_MN @ members_MN.T, members_MN @ rows_KN.T
    combinations_MRM = _combinations(work_M, 1 - np.eye(len(work_M)))
    inverse_MRR = _inverse(combinations_MRM, products_MM)
    x_MR = np.einsum("prm,pm->pr", combinations_MRM, products_MM)
    y_MKR = np.einsum("prm,mk->pkr", combinations_MRM, products_MK)
    ahead_MR = np.einsum("prs,ps->pr", inverse_MRR, x_MR)
    rest_x_M = np.diag(products_MM) - (ahead_MR * x_MR).sum(axis=-1)
    rest_y_MK = _squares(rows_KN) - np.einsum("pkr,prs,pks->pk", y_MKR, inverse_MRR, y_MKR)
    rest_xy_MK = products_MK - np.einsum("pr,pkr->pk", ahead_MR, y_MKR)
    return _own_shares(rest_xy_MK, rest_x_M[:, None], rest_y_MK)


def own_shares_among(members_MN: Array, work_M: Array) -> Array:
    """(M, M): what each member has of its own beside each other one; 1 on the diagonal."""
    first_P, second_P = np.triu_indices(len(work_M), 1)
    products_MM, others = members_MN @ members_MN.T, np.eye(len(work_M))
    combinations_PRM = _combinations(work_M, 1 - others[first_P] - others[second_P])
    inverse_PRR = _inverse(combinations_PRM, products_MM)
    x_PR, y_PR = (np.einsum("prm,pm->pr", combinations_PRM, products_MM[each]) for each in (first_P, second_P))
    rest = {
        name: np.einsum("pr,prs,ps->p", left, inverse_PRR, right)
        for name, left, right in (("xx", x_PR, x_PR), ("yy", y_PR, y_PR), ("xy", x_PR, y_PR))
    }
    squares_M = np.diag(products_MM)
    rest_xy_P = products_MM[first_P, second_P] - rest["xy"]
    shares_P = _own_shares(rest_xy_P, squares_M[first_P] - rest["xx"], squares_M[second_P] - rest["yy"])
    shares_MM = np.ones_like(products_MM)
    shares_MM[first_P, second_P] = shares_MM[second_P, first_P] = shares_P
    return shares_MM


def _combinations(work_M: Array, kept_PM: Array) -> Array:
    """(P, R, M): what the vectors of B are made of, per case, over the members that are kept in it."""
    weights_RM = np.stack([np.ones_like(work_M), work_M - work_M.mean()])
    return kept_PM[:, None, :] * weights_RM[None]


def _inverse(combinations_PRM: Array, products_MM: Array) -> Array:
    """Pseudo-inverse of B's Gram matrix, per case."""
    gram_PRR = combinations_PRM @ products_MM @ combinations_PRM.transpose(0, 2, 1)
    return np.asarray(np.linalg.pinv(gram_PRR, rcond=_RANK_TOLERANCE, hermitian=True), np.float64)


def _squares(rows_KN: Array) -> Array:
    return np.einsum("kn,kn->k", rows_KN, rows_KN)


def _own_shares(xy: Array, xx: Array, yy: Array) -> Array:
    """1 − c² from products of what is left of x and y. 1 where c is negative, or nothing is left to judge."""
    is_judged = (xx > NEGLIGIBLE) & (yy > NEGLIGIBLE)
    squared = np.maximum(xy, 0.0) ** 2 / np.where(is_judged, xx * yy, 1.0)
    return np.where(is_judged, np.clip(1 - squared, 0.0, 1.0), 1.0)
