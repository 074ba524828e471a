"""How long a round waits for stragglers once a quorum is ready (L3). Pure.

A fixed deadline is wrong both ways: it wastes time on peers that will not come, and drops some that nearly have. So the
grace follows what this member has seen of the last rounds, and a straggler that by its own word will not make it
within the grace is not waited for at all. Every member notes the same things, so a new leader knows as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .messages import Heartbeat

NUM_ROUNDS = 8
"""Recent rounds that count."""
_MARGIN = 1.5
"""On the lateness that three of four recent rounds stayed within."""
_SHARE = 0.25
"""Of the time that the work took: peers that measure alike still end this far apart."""
_DOUBT = 0.8
"""A prediction may be this much too long before it is believed."""


@dataclass(frozen=True)
class Pace:
    """What a member has seen of one round."""

    work_s: float
    """From the round's begin until a quorum was ready."""
    spread_s: float
    """From then until the last contribution was heard of before the decision, planned or not."""


def justified_s(recent: Sequence[Pace], floor_s: float, ceiling_s: float) -> float:
    """Grace in seconds, ``floor_s`` … ``ceiling_s``; the ceiling while nothing is known.

    Never longer than the work itself took: who is later than that is in another round's time.
    """
    if not recent:
        return ceiling_s
    work_s = median(pace.work_s for pace in recent)
    spreads = sorted(pace.spread_s for pace in recent)
    usual_s = spreads[math.ceil(0.75 * len(spreads)) - 1]
    learned_s = min(work_s, _MARGIN * usual_s + _SHARE * work_s)
    return min(ceiling_s, max(floor_s, learned_s))


def remaining_s(heartbeat: Heartbeat | None, heard_s: float, now: float, round_number: int) -> float | None:
    """Time until a member's inner steps of the round are done, by its own last word; None if that says nothing."""
    if heartbeat is None or heartbeat.round != round_number - 1 or heartbeat.phase != "training":
        return None
    left = heartbeat.target_inner_steps - heartbeat.num_inner_steps
    if left <= 0 or heartbeat.num_inner_steps == 0 or heartbeat.tokens_per_s <= 0:
        return None
    tokens_per_step = heartbeat.tokens / heartbeat.num_inner_steps
    return max(0.0, left * tokens_per_step / heartbeat.tokens_per_s - (now - heard_s))


def can_make_it(predicted_s: float | None, left_s: float) -> bool:
    """Whether a straggler may be ready within ``left_s``; one that says nothing has the benefit of the doubt."""
    return predicted_s is None or _DOUBT * predicted_s <= left_s
