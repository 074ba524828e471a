"""Who of a plan's members takes part in its means at all.

`refusals` is a pure function of what they have committed to: every owner refuses the same members before it accumulates
a byte. `copies` is the owner's own judgement of what it was sent, compared with what it has seen before (`recent.py`).
What else only the bytes can show (their digests, norms and encoding) the owner of each span checks chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from .identity import PeerId
from .likeness import own_shares_among, own_shares_beside, units
from .record import Member
from .weights import MAX_TOKENS_FACTOR

ABSURD_FACTOR = 100.0
"""Honest norms differ by a few times; a peer this many medians out is broken or hostile, and not worth clipping."""
MIN_COMPARED = 3
"""Of two members neither is the usual one."""
MIN_OTHERS = 3
"""Whom a likeness is compared with: of two others, one that lies could make any honest likeness look unusual."""


@dataclass(frozen=True)
class Refusal:
    """The rule that a contribution broke, what was measured, and what is allowed."""

    rule: str
    value: float
    limit: float
    of: str = ""
    """What it was found to be like, in words."""

    def __str__(self) -> str:
        return f"{self.value:.6g}{self.of}, allowed {self.limit:.6g}"


def refusals(members: Sequence[Member]) -> dict[int, Refusal]:
    """Members (by index) whose contributions are refused. An all-zero one moves nothing and only dilutes."""
    refused = {
        i: Refusal("empty contribution", 0.0, math.ulp(0.0)) for i, m in enumerate(members) if m.squared_norm == 0
    }
    norms = {i: math.sqrt(member.squared_norm) for i, member in enumerate(members) if i not in refused}
    if not norms:
        return {}  # nobody's work moves anything, which is no reason to stop the run
    if len(norms) < MIN_COMPARED:
        return refused
    limit = ABSURD_FACTOR * median_low(norms.values())
    return refused | {i: Refusal("absurd norm", norm, limit) for i, norm in norms.items() if norm > limit}


# --- copies -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Earlier:
    """Samples of a round that is over, and of the present one at the same elements."""

    round: int
    authors: tuple[PeerId | None, ...]
    """Of the rows; None: the round's mean."""
    rows: NDArray[np.float32]  # (num_rows, num_samples)
    present: NDArray[np.float32]  # (num_members, num_samples)


@dataclass(frozen=True)
class Copy:
    """A member's contribution is like another one that it cannot be like by honest work."""

    refusal: Refusal
    original: tuple[int, int] | None = None
    """Index in what was given as ``earlier``, and row; None: another member's of the same round."""


@dataclass(frozen=True)
class Present:
    """One round's contributions as an owner of a span has them, by member."""

    members: Sequence[Member]
    samples: NDArray[np.float32]  # (num_members, num_samples)
    order: Sequence[int]
    """When each member's commitment was heard of first."""

    @property
    def work(self) -> NDArray[np.float64]:
        """Logarithm of the tokens behind each contribution, which are the members' word: within `MAX_TOKENS_FACTOR`."""
        tokens = [max(1, member.tokens) for member in self.members]
        usual = median_low(tokens)
        least, most = usual / MAX_TOKENS_FACTOR, usual * MAX_TOKENS_FACTOR
        return np.array([math.log(min(max(count, least), most)) for count in tokens])


def copies(present: Present, earlier: Sequence[Earlier], copy_cosine: float) -> dict[int, Copy]:
    """Members (by index) that send again what is in a recent round, or what another member of this round sends.

    The likeness of each member to its own past, to that of others, to past means and to the other members is compared
    with the usual likeness of that kind (the low median over the others): a copy has less of its own beside its
    original (`likeness`) than 1 − ``copy_cosine``² times what is usual. Of alike members of one round the first in
    ``order`` stays. Nobody is judged beside fewer than `MIN_OTHERS` others. A Gram matrix's work, in float64; its last
    bits may differ between machines.
    """
    found: dict[int, Copy] = {}
    for index, past in enumerate(earlier):
        found |= _copies_of(index, past, present, copy_cosine)
    return found | _copies_among(present, set(found), copy_cosine)


def _copies_of(index: int, past: Earlier, present: Present, copy_cosine: float) -> dict[int, Copy]:
    shares_MK = own_shares_beside(units(past.present), units(past.rows), present.work)
    found: dict[int, Copy] = {}
    for kind in ("own", "other", "mean"):
        nearest = {
            member: min((float(shares_MK[member, row]), row) for row in rows)
            for member, each in enumerate(present.members)
            if (rows := [row for row, author in enumerate(past.authors) if _kind(author, each.peer) == kind])
        }
        limits = _limits({member: share for member, (share, _) in nearest.items()}, copy_cosine)
        for member, limit in limits.items():
            share, row = nearest[member]
            if share < limit:
                refusal = _refusal(share, limit, f" like {_WORDS[kind]} of round {past.round}")
                found[member] = Copy(refusal, (index, row))
    return found


def _kind(author: PeerId | None, peer: PeerId) -> str:
    return "mean" if author is None else "own" if author == peer else "other"


_WORDS = {"own": "its own", "other": "another's", "mean": "the mean"}


def _copies_among(present: Present, copied: set[int], copy_cosine: float) -> dict[int, Copy]:
    shares_MM = own_shares_among(units(present.samples), present.work)
    limits = _limits({member: float(row.min()) for member, row in enumerate(shares_MM)}, copy_cosine)
    found: dict[int, Copy] = {}
    kept: list[int] = []
    for member in sorted(limits.keys() - copied, key=lambda member: (present.order[member], member)):
        share = min((float(shares_MM[member, other]) for other in kept), default=1.0)
        if share < limits[member]:
            found[member] = Copy(_refusal(share, limits[member], " like another's of this round"))
        else:
            kept.append(member)
    return found


def _limits(shares: Mapping[int, float], copy_cosine: float) -> dict[int, float]:
    """Per member, the share of its own that it must have at least, going by the others."""
    if len(shares) <= MIN_OTHERS:
        return {}
    allowed = 1 - copy_cosine**2
    return {
        member: allowed * median_low(share for other, share in shares.items() if other != member) for member in shares
    }


def _refusal(share: float, limit: float, of: str) -> Refusal:
    """As cosines."""
    return Refusal("copy", math.sqrt(1 - share), math.sqrt(1 - limit), of)
