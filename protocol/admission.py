"""Who of a plan's members takes part in its means at all: a pure function of what they have committed to.

Every owner refuses the same members before it accumulates a byte. What only the bytes can show (their digests, norms
and encoding) the owner of each span checks chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from .record import Member

ABSURD_FACTOR = 100.0
"""Honest norms differ by a few times; a peer this many medians out is broken or hostile, and not worth clipping."""
MIN_COMPARED = 3
"""Of two members neither is the usual one."""


@dataclass(frozen=True)
class Refusal:
    """The rule that a contribution broke, what was measured, and what is allowed."""

    rule: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.value:g}, allowed {self.limit:g}"


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
