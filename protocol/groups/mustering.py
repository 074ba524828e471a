"""When a delegate's group reduces, and what: the gathering, plan and tokens of tier 1. Pure.

A group's plan is a `Plan` like a round's, so that the exchange, admission, clip, weights and aggregation rule are the
same; its leader is the delegate, its roster the group. Ballots count the attempts of a group in a round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .. import grace
from ..identity import PeerId
from ..messages import Ready
from ..record import Member, Newcomer, Plan, Record
from ..round_machine import PeerView
from ..spans import assign_spans, cover
from ..spec import Genesis, LimitsConfig
from ..standing import Standing
from ..transport import RemoteProtocolError
from ..weights import counted_tokens
from .seats import Seats

_SHARE_OF_ATTEMPT = 0.5
"""Of `timing.attempt_timeout_s` that a group's attempt may take: the other delegates wait meanwhile."""
_TRAINING = frozenset({"training", "ready", "exchanging"})


@dataclass(frozen=True)
class GroupRules:
    """What does not change in a round of one group."""

    genesis: Genesis
    delegate: PeerId
    standing: Standing
    parent_state: str
    num_chunks: int

    @property
    def round(self) -> int:
        return self.standing.round + 1

    @property
    def attempt_timeout_s(self) -> float:
        return self.genesis.timing.attempt_timeout_s * _SHARE_OF_ATTEMPT


# --- gathering --------------------------------------------------------------------------------------------------------


def follows(view: PeerView | None, rules: GroupRules, now: float) -> bool:
    """Whether a peer is in the group at present: it lives, and says so itself."""
    if view is None or view.heartbeat is None or now - view.heard_s > rules.genesis.timing.heartbeat_timeout_s:
        return False
    group = view.heartbeat.group
    is_ours = group is not None and group.delegate == rules.delegate
    return is_ours and view.heartbeat.phase != "leaving"


def awaited(
    rules: GroupRules, seats: Seats, readies: Mapping[PeerId, Ready], peers: Mapping[PeerId, PeerView], now: float
) -> list[PeerId]:
    """Followers that train on a seat of this round and are not ready yet."""
    followers = (peer for peer in seats.peers if peer not in readies and follows(peers.get(peer), rules, now))
    return [peer for peer in followers if _trains(peers[peer])]


def _trains(view: PeerView) -> bool:
    return view.heartbeat is not None and view.heartbeat.phase in _TRAINING


def may_plan(
    rules: GroupRules, waiting: Iterable[PeerView], recent: Sequence[grace.Pace], ready_s: float, now: float
) -> bool:
    """Nobody is awaited, or the grace since ``ready_s``, when the delegate was ready, is over or too short for all."""
    timing = rules.genesis.timing
    grace_s = grace.justified_s(recent, 2 * timing.heartbeat_interval_s, timing.ready_grace_s)
    left_s = ready_s + grace_s - now
    remaining = (grace.remaining_s(view.heartbeat, view.heard_s, now, rules.round) for view in waiting)
    return not any(left_s > 0 and grace.can_make_it(each, left_s) for each in remaining)


# --- the plan ---------------------------------------------------------------------------------------------------------


def make_plan(
    rules: GroupRules,
    seats: Seats,
    readies: Mapping[PeerId, Ready],
    owners: Collection[PeerId],
    ballot: int,
) -> Plan:
    """The plan of an attempt over ``readies``, the delegate's own among them; ``owners`` reduce the spans."""
    genesis, standing = rules.genesis, rules.standing
    peers = [peer for peer in (rules.delegate, *seats.peers) if peer in readies]
    limit = genesis.limits.max_tokens_per_round
    return Plan(
        lineage=genesis.lineage,
        fragment=0,
        round=rules.round,
        ballot=ballot,
        leader=rules.delegate,
        parent=standing.record_id,
        parent_state=rules.parent_state,
        members=tuple(_member(peer, readies[peer], limit) for peer in peers),
        spans=assign_spans(rules.num_chunks, {peer: 1.0 for peer in peers if peer in owners}),
        roster=tuple(peers),
        next_roster=tuple(peers),
        data_cursor=standing.data_cursor,
        newcomers=_newcomers(rules, seats, peers),
        rules=genesis.rules_id,
        attempt_timeout_s=rules.attempt_timeout_s,
    )


def _member(peer: PeerId, ready: Ready, limit: int) -> Member:
    return Member(
        peer=peer,
        tokens=min(ready.tokens, limit),
        num_inner_steps=ready.num_inner_steps,
        life=ready.life,
        tokens_per_s=ready.tokens_per_s,
        squared_norm=ready.squared_norm,
        commitment=ready.commitment,
    )


def _newcomers(rules: GroupRules, seats: Seats, peers: Collection[PeerId]) -> tuple[Newcomer, ...]:
    """Followers on probation, which begins when they enter the group: nobody else has seen them before."""
    num_rounds = rules.genesis.trust.probation_rounds
    counts_from = {seated.peer: seated.since + num_rounds for seated in seats.taken.values()}
    barred = ((peer, counts_from[peer]) for peer in peers if counts_from.get(peer, 0) > rules.round)
    return tuple(Newcomer(peer=peer, counts_from=number) for peer, number in barred)


def check_plan(rules: GroupRules, plan: Plan, me: PeerId, commitment: str, sender: PeerId) -> None:
    """Raise `RemoteProtocolError` for a plan that no honest delegate makes of this contribution of ours."""
    peers = [member.peer for member in plan.members]
    place = (plan.lineage, plan.fragment, plan.round, plan.parent, plan.parent_state, plan.rules)
    genesis, standing = rules.genesis, rules.standing
    expected = (genesis.lineage, 0, rules.round, standing.record_id, rules.parent_state, genesis.rules_id)
    limit = genesis.limits.max_tokens_per_round
    checks = {
        "leader": sender == plan.leader == rules.delegate,
        "parent": place == expected,
        "members": len(set(peers)) == len(peers) <= genesis.exchange.num_seats and rules.delegate in peers,
        "roster": plan.roster == tuple(peers),
        "member": any(member.peer == me and member.commitment == commitment for member in plan.members),
        "tokens": all(member.tokens <= limit for member in plan.members),
        "owners": {span.owner for span in plan.spans} <= set(peers),
        "spans": cover(plan.spans, rules.num_chunks),
        "attempt_timeout_s": plan.attempt_timeout_s == rules.attempt_timeout_s,
    }
    for name, is_sound in checks.items():
        if not is_sound:
            raise RemoteProtocolError(sender, f"group_plan.{name}", "not what a delegate plans with this node")


def order_of(plan: Plan) -> tuple[int, int]:
    """Which of two plans of one delegate in one round is the later one: by its process's life, then by ballot."""
    life = next((member.life for member in plan.members if member.peer == plan.leader), 0)
    return life, plan.ballot


# --- the result -------------------------------------------------------------------------------------------------------


def tokens_of(record: Record, limits: LimitsConfig) -> int:
    """What the group's mean weighs: the tokens that it is over, on average over the chunks."""
    plan = record.plan
    total = sum(
        span.num_chunks * sum(counted_tokens(plan, result.included, limits))
        for span, result in zip(plan.spans, record.results, strict=True)
    )
    return int(total / sum(span.num_chunks for span in plan.spans))


def speed_of(plan: Plan) -> float:
    """Tokens per second of a typical peer of the group: rounds are shared out by these (`budget`)."""
    known = [member.tokens_per_s for member in plan.members if member.tokens_per_s > 0]
    return fmean(known) if known else 0.0
