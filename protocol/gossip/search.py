"""One peer's search for the partner of a gossip round, as a value: whom to dial, whom to wait for, when to go alone.

    searching   ─ we are further ahead of most than peers pair  → wait for them, at most until the grace is over
                ─ the partner that the matching names is ready  → dial it
                ─ it still trains                               → wait for it, at most until the grace is over
                ─ it is away, late, taken, or has failed us     → the matching over the others
                ─ nobody is left for us, or the grace is over
                  and nobody is ready                           → go alone
                ─ nobody is left, but most are behind us        → wait for them, at most until the grace is over
    dialling    ─ accepted                                      → swapping
                ─ declined, unreachable                         → searching without it
    swapping    ─ done                                          → the round is over
                ─ abandoned                                     → searching without it

Nobody is waited for but the partner, or most of the others where we are ahead of them, and no longer than the grace,
counted from our being ready; a dial and a swap have time limits of their own. An offer is accepted only from the
partner that our own view names, or when our view has nobody for us, or the grace is over: who dials first gains nothing
by it.

Pure: values in, values out; views and times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Literal, TypeAlias

from ..grace import can_make_it
from ..identity import PeerId
from .pairing import Draw, Spot, matching, stands

Doing = Literal["training", "ready", "taken"]
Why = Literal["training", "taken", "crossed", "expects another", "too far apart", "another lineage"]
"""Why an offer is declined."""

RETRY_S = 0.5
"""A peer that declined is asked again after this, as long as the grace lasts."""


@dataclass(frozen=True)
class Sight:
    """What is known of another peer that takes part."""

    round: int
    """That it works on."""
    doing: Doing
    is_reachable: bool = True
    """Whether it can be dialled."""
    remaining_s: float | None = None
    """Until its inner steps are done, by its own word."""


@dataclass(frozen=True)
class Rules:
    """What a search goes by."""

    draw: Draw
    max_apart: int
    grace_s: float


@dataclass(frozen=True)
class Search:
    """Of one contribution."""

    me: PeerId
    round: int
    since_s: float
    is_reachable: bool = True
    """Whether others can dial us."""
    dialled: PeerId | None = None
    """Our offer to it is on its way."""
    partner: PeerId | None = None
    """The swap with it goes on."""
    not_before_s: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])
    """Peers that are left out, until then."""

    def over_s(self, rules: Rules) -> float:
        """When the grace is over."""
        return self.since_s + rules.grace_s


@dataclass(frozen=True)
class Dial:
    """Offer ourselves to this peer."""

    peer: PeerId


@dataclass(frozen=True)
class Wait:
    """For this peer's readiness or its dial, or for one that has declined; look again at ``until_s`` at the latest."""

    peer: PeerId | None
    until_s: float


@dataclass(frozen=True)
class Alone:
    """Take the step alone."""

    why: str


Move: TypeAlias = Dial | Wait | Alone


def next_move(search: Search, sights: Mapping[PeerId, Sight], rules: Rules, now_s: float) -> Move:
    """What to do now, while neither an offer of ours nor a swap goes on."""
    over_s = search.over_s(rules)
    if now_s < over_s and _is_ahead(search, sights, by=rules.max_apart):
        return Wait(None, over_s)
    peer = expected(search, sights, rules, now_s)
    if peer is None:
        return _without_partner(search, sights, rules, now_s)
    if sights[peer].doing == "ready" and sights[peer].is_reachable:
        return Dial(peer)
    return Wait(peer, over_s) if now_s < over_s else Alone("the partner cannot be dialled, and did not dial")


def _without_partner(search: Search, sights: Mapping[PeerId, Sight], rules: Rules, now_s: float) -> Move:
    """Who has declined may be free again within the grace, and who is ahead of most others has the time to wait.

    A peer that always went on alone would be faster than those that swap, and soon be too far ahead to ever do so.
    """
    over_s = search.over_s(rules)
    near = {peer for peer, sight in sights.items() if abs(sight.round - search.round) <= rules.max_apart}
    again_s = [at_s for peer, at_s in search.not_before_s.items() if peer in near and now_s < at_s <= over_s]
    if now_s < over_s and _is_ahead(search, sights):
        again_s.append(over_s)
    if again_s:
        return Wait(None, min(again_s))
    return Alone("nobody is free" if near else "no peer is near this round")


def _is_ahead(search: Search, sights: Mapping[PeerId, Sight], by: int = 0) -> bool:
    """Of the low median: one peer's word keeps nobody waiting, unless it is the only other one.

    Further than peers pair, it waits although others as far ahead are at hand: two halves would part for good.
    """
    return bool(sights) and search.round > by + median_low(sight.round for sight in sights.values())


def expected(search: Search, sights: Mapping[PeerId, Sight], rules: Rules, now_s: float) -> PeerId | None:
    """The partner that our view names, among those that are free or will be within the grace."""
    left_s = max(0.0, search.over_s(rules) - now_s)
    free = {
        peer: Spot(sight.round, sight.is_reachable)
        for peer, sight in sights.items()
        if search.not_before_s.get(peer, now_s) <= now_s and _is_free(search, sight, left_s)
    }
    free[search.me] = Spot(search.round, search.is_reachable)
    return matching(rules.draw, free, rules.max_apart).get(search.me)


def _is_free(search: Search, sight: Sight, left_s: float) -> bool:
    """Who trains for our round has the benefit of the doubt; who has ended it must say that it will make the next."""
    if sight.doing != "training":
        return sight.doing == "ready"
    is_told = sight.round == search.round or sight.remaining_s is not None
    return left_s > 0 and is_told and can_make_it(sight.remaining_s, left_s)


def refusal(
    search: Search | None, sender: PeerId, round_number: int, sights: Mapping[PeerId, Sight], rules: Rules, now_s: float
) -> Why | None:
    """Why an offer of ``sender``, which works on ``round_number``, is declined; None if it is accepted."""
    if search is None:
        return "training"
    if abs(round_number - search.round) > rules.max_apart:
        return "too far apart"
    if search.partner is not None or search.dialled not in (None, sender):
        return "taken"
    if search.dialled == sender:
        return "crossed" if stands(search.me, sender) else None
    if search.not_before_s.get(sender) == math.inf:
        return "expects another"
    known = sights.get(sender)
    is_reachable = known is None or known.is_reachable
    seen = {**sights, sender: Sight(round_number, "ready", is_reachable)}
    named = expected(_without_exclusion(search, sender), seen, rules, now_s)
    if named in (None, sender) or now_s >= search.over_s(rules):
        return None
    return "expects another"


def _without_exclusion(search: Search, peer: PeerId) -> Search:
    """It declined a moment ago and offers itself now."""
    return replace(search, not_before_s={p: at_s for p, at_s in search.not_before_s.items() if p != peer})


def dialled(search: Search, peer: PeerId) -> Search:
    """Our offer is on its way."""
    return replace(search, dialled=peer)


def engaged(search: Search, peer: PeerId) -> Search:
    """An offer was accepted, theirs or ours."""
    return replace(search, dialled=None, partner=peer)


def declined(search: Search, peer: PeerId, rules: Rules, now_s: float) -> Search:
    """It is not to be had now; after the grace, not at all."""
    until_s = now_s + RETRY_S if now_s < search.over_s(rules) else math.inf
    return _free(search, peer, until_s)


def failed(search: Search, peer: PeerId) -> Search:
    """It is unreachable, or the swap with it was abandoned: not again in this round."""
    return _free(search, peer, math.inf)


def _free(search: Search, peer: PeerId, until_s: float) -> Search:
    return replace(search, dialled=None, partner=None, not_before_s={**search.not_before_s, peer: until_s})
