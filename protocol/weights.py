"""What each contribution weighs in a mean: a pure function of the plan, so that nobody states weights.

Tokens are the sender's claim. They are clamped to the spec's limit and to `MAX_TOKENS_FACTOR` medians; newcomers on
probation weigh nothing, equal contributions count as one, and of three or more members none has more than `max_share`.
What is left is multiplied by the clip, which compares committed norms as SparseLoCo's gather does (2508.15706):

    min(1, limit / norm)        limit = c · median norm · max(1, tokens / median tokens)

The ratio of tokens is for peers of unequal speed: while loss falls quickly, a norm grows with the steps behind it; at
speeds of 1:2:4:6 a limit without the ratio, or with its root, clips honest work (+2.6 % and +0.5 % of loss). Tokens
are clamped, so that a claim buys at most `MAX_TOKENS_FACTOR` times the norm.

The bound (S7): whatever a member sends, it moves the mean by at most its share × its limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median_low

from .record import Plan
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
    tokens = counted_tokens(plan, included, limits)
    norms = [math.sqrt(member.squared_norm) for member in plan.members]
    factors = clip_factors(norms, tokens, trust.clip_factor)
    return tuple(share * factor for share, factor in zip(_shares(tokens, trust.max_share), factors, strict=True))


def clip_factors(norms: Sequence[float], tokens: Sequence[float], clip_factor: float) -> tuple[float, ...]:
    """min(1, limit / norm) per contribution. The (low) medians are over those that count. c = 0: no clip."""
    counted = [(norm, count) for norm, count in zip(norms, tokens, strict=True) if count > 0]
    if clip_factor == 0 or not counted:
        return (1.0,) * len(norms)
    usual_norm, usual_tokens = (median_low(each) for each in zip(*counted, strict=True))
    limits = [clip_factor * usual_norm * max(1.0, count / usual_tokens) for count in tokens]
    return tuple(min(1.0, limit / norm) if norm > 0 else 1.0 for norm, limit in zip(norms, limits, strict=True))


def counted_tokens(plan: Plan, included: Sequence[bool], limits: LimitsConfig) -> list[float]:
    """Tokens that each member's contribution counts for, after all clamps but the share's."""
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
    if len(counted) < MIN_CAPPED:
        return tokens
    highest = MAX_TOKENS_FACTOR * median_low(counted)
    return [min(count, highest) for count in tokens]


def _shares(tokens: Sequence[float], max_share: float) -> list[float]:
    num_counted = sum(count > 0 for count in tokens)
    if not num_counted:
        return [0.0] * len(tokens)
    return capped_shares(tokens, max_share if num_counted >= MIN_CAPPED else 1.0)


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
