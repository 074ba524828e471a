"""How many inner steps each member of a round takes: a round is a budget of tokens, not a number of steps. Pure.

The budget is what the roster would process with ``num_steps`` steps each. Every member gets a part in proportion to its
measured speed, so that fast and slow peers finish together, and nobody idles while the slowest ends a fixed number.

Everybody computes only its own number, from the speeds that the last plan names, so nothing has to be agreed on. What a
member says of its speed is its own word. It is bounded by the roster's median: a liar at most shortens the others'
rounds to n / (n − f + f·r) of what they would be, n being the roster, f the liars (fewer than half), and r
`largest_ratio`; that costs traffic, and no correctness. It lengthens them less than twofold. One that claims more than
it does is late, is not waited for (`grace`), and is thereby out of the plan whose speeds count next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

from .identity import PeerId

DEAD_BAND = 0.1
"""A member within this of the mean speed takes exactly ``num_steps`` steps, so that noise changes nothing."""


def largest_ratio(num_steps: int, max_steps: int) -> float:
    """How far from the roster's median a speed is believed, as a factor: twice what a lease has room for."""
    return 2 * max_steps / num_steps


def target_steps(speeds: Mapping[PeerId, float], me: PeerId, *, num_steps: int, max_steps: int) -> int:
    """Inner steps of ``me`` in this round, 1 … ``max_steps`` (what its lease holds).

    ``speeds`` has every member of the roster, in tokens per second; 0 is unknown, and taken for the median.
    """
    if me not in speeds:
        return min(num_steps, max_steps)
    return steps_at(speeds[me], speeds, num_steps=num_steps, max_steps=max_steps)


def steps_at(own: float, speeds: Mapping[PeerId, float], *, num_steps: int, max_steps: int) -> int:
    """As `target_steps`, of a peer that is not in ``speeds`` itself: in two-tier rounds the roster's members state the
    speed of a typical peer of their group, and every peer goes by its own measurement, ``own``."""
    known = [speed for speed in speeds.values() if speed > 0 and math.isfinite(speed)]
    if not known:
        return min(num_steps, max_steps)
    typical, ratio = median_low(known), largest_ratio(num_steps, max_steps)
    # In units of the median, so that no sum or product leaves the range of a float.
    mine, *others = (min(max((each or typical) / typical, 1 / ratio), ratio) for each in (own, *speeds.values()))
    share = len(others) * mine / math.fsum(others)
    if abs(share - 1) <= DEAD_BAND:
        return min(num_steps, max_steps)
    return max(1, min(max_steps, round(share * num_steps)))
