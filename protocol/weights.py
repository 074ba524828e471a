"""What each contribution weighs in a mean: a pure function of the plan, so that nobody states weights.

Tokens are the sender's claim. They are clamped to the spec's limit and to `MAX_TOKENS_FACTOR` medians; newcomers on
probation weigh nothing, equal contributions count as one, and of three or more members none has more than `max_share`.
What is left is multiplied by the clip: min(1, c · median norm / norm) over the committed norms, as SparseLoCo's gather
does (2508.15706). The norms are compared as they are, not per √(inner steps): steps are a claim too, and a member could
buy norm with it, whereas honest speeds of 1:6 stay within two medians.

The bound (S7): whatever a member sends and claims, it moves the mean by at most share × c × median norm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median_low

from .messages import Plan
from .spec import LimitsConfig, TrustConfig

MAX_TOKENS_FACTOR = 4.0
"""Speeds of 1:2:4:6 finish together with 2.4 times the median's tokens at most."""
MIN_CAPPED = 3
"""Of two members one always has at least half."""


def weights(plan: Plan, included: Sequence[bool], trust: TrustConfig, limits: LimitsConfig) -> tuple[float, ...]:
    """Weight of each of ``plan.members`` in the mean of a span that ``included`` are in; zero for the others.

    Their sum is at most one; less when something is clipped, which is given to nobody. All zeros if nobody who is
    included counts.
    """
    shares = _shares(plan, included, trust, limits)
    factors = clip_factors([member.squared_norm for member in plan.members], shares, trust.clip_factor)
    return tuple(share * factor for share, factor in zip(shares, factors, strict=True))


def clip_factors(squared_norms: Sequence[float], shares: Sequence[float], clip_factor: float) -> tuple[float, ...]:
    """min(1, c · median / norm) per contribution; the (low) median is over those that have a share. c = 0: no clip."""
    counted = [math.sqrt(norm) for norm, share in zip(squared_norms, shares, strict=True) if share > 0]
    if clip_factor == 0 or not counted:
        return (1.0,) * len(shares)
    limit = clip_factor * median_low(counted)
    return tuple(min(1.0, limit / math.sqrt(norm)) if norm > 0 else 1.0 for norm in squared_norms)


def _shares(plan: Plan, included: Sequence[bool], trust: TrustConfig, limits: LimitsConfig) -> list[float]:
    barred = {newcomer.peer for newcomer in plan.newcomers if newcomer.counts_from > plan.round}
    tokens = [
        float(min(member.tokens, limits.max_tokens_per_round)) if is_in and member.peer not in barred else 0.0
        for member, is_in in zip(plan.members, included, strict=True)
    ]
    delivered = [member for member, is_in in zip(plan.members, included, strict=True) if is_in]
    num_alike = Counter(member.commitment for member in delivered)
    tokens = [count / max(1, num_alike[m.commitment]) for count, m in zip(tokens, plan.members, strict=True)]
    counted = [count for count in tokens if count > 0]
    if not counted:
        return tokens
    if len(counted) >= MIN_CAPPED:
        highest = MAX_TOKENS_FACTOR * median_low(counted)
        tokens = [min(count, highest) for count in tokens]
    return capped_shares(tokens, trust.max_share if len(counted) >= MIN_CAPPED else 1.0)


def capped_shares(tokens: Sequence[float], max_share: float) -> list[float]:
    """tokens / Σ tokens, none above ``max_share``, whose surplus goes to the others in proportion.

    With fewer than 1 / ``max_share`` members that is impossible: then all are equal.
    """
    num_counted = sum(count > 0 for count in tokens)
    if num_counted * max_share <= 1:
        return [1 / num_counted if count > 0 else 0.0 for count in tokens]
    capped: set[int] = set()
    while True:
        rest = math.fsum(count for i, count in enumerate(tokens) if i not in capped)
        room = 1 - max_share * len(capped)
        shares = [max_share if i in capped else count * room / rest for i, count in enumerate(tokens)]
        above = {i for i, share in enumerate(shares) if share > max_share}
        if above <= capped:
            return shares
        capped |= above
