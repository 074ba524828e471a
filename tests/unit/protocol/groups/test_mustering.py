"""When a group reduces, what it reduces, and what a plan must be for a follower to send it anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol.grace import Pace
from atoll.protocol.groups import mustering
from atoll.protocol.groups.mustering import GroupRules
from atoll.protocol.groups.seats import Seated, Seats
from atoll.protocol.record import Plan
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.standing import Standing
from atoll.protocol.transport import RemoteProtocolError

from .conftest import DIGEST, NUM_CHUNKS, A, B, C, D, E, digest, follows, genesis, plan_of, ready, record_of

GENESIS = genesis()
RULES = GroupRules(GENESIS, D, Standing.of_genesis(GENESIS), DIGEST, NUM_CHUNKS)
SEATS = Seats(0, 1, 4, {1: Seated(A, 1), 2: Seated(B, 1)})
READIES = {D: ready(commitment=1), A: ready(commitment=2), B: ready(tokens=50, commitment=3)}
PARENT = RULES.standing.record_id


def at_home(readies: dict) -> dict:
    return {peer: each.model_copy(update={"parent": PARENT}) for peer, each in readies.items()}


def planned(**changes: object) -> Plan:
    plan = mustering.make_plan(RULES, SEATS, at_home(READIES), [D, A, B], 0)
    return plan.model_copy(update=changes)


# --- gathering --------------------------------------------------------------------------------------------------------


def test_a_follower_is_awaited_while_it_lives_says_that_it_follows_and_trains() -> None:
    peers = {A: follows(D), B: follows(D)}
    assert mustering.awaited(RULES, SEATS, {A: READIES[A]}, peers, now=1.0) == [B]
    assert mustering.awaited(RULES, SEATS, {}, {A: follows(E), B: follows(None)}, now=1.0) == []
    assert mustering.awaited(RULES, SEATS, {}, {A: follows(D, phase="syncing")}, now=1.0) == []
    assert mustering.awaited(RULES, SEATS, {}, {A: follows(D, phase="leaving")}, now=1.0) == []
    late_s = GENESIS.timing.heartbeat_timeout_s + 1
    assert mustering.awaited(RULES, SEATS, {}, peers, now=late_s) == []


def test_a_peer_without_a_seat_is_not_awaited_even_if_it_follows() -> None:
    assert mustering.awaited(RULES, SEATS, {}, {C: follows(D)}, now=1.0) == []


def test_with_everybody_ready_a_group_reduces_at_once() -> None:
    assert mustering.may_plan(RULES, [], [], ready_s=10.0, now=10.0)


def test_stragglers_are_waited_for_as_long_as_the_last_rounds_justify() -> None:
    recent = [Pace(work_s=100.0, spread_s=4.0)] * 3
    grace_s = min(GENESIS.timing.ready_grace_s, 1.5 * 4 + 0.25 * 100)
    assert not mustering.may_plan(RULES, [follows(D)], recent, ready_s=0.0, now=grace_s - 1)
    assert mustering.may_plan(RULES, [follows(D)], recent, ready_s=0.0, now=grace_s + 1)


def test_one_that_says_it_needs_longer_than_that_is_not_waited_for() -> None:
    slow = follows(D, num_inner_steps=1, target_inner_steps=100, tokens=10, tokens_per_s=1.0)
    assert mustering.may_plan(RULES, [slow], [Pace(10.0, 1.0)], ready_s=0.0, now=1.0)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_the_delegate_first_then_the_seats_and_only_fit_owners() -> None:
    plan = mustering.make_plan(RULES, SEATS, at_home(READIES), [D, B], 3)
    assert [member.peer for member in plan.members] == [D, A, B]
    assert {span.owner for span in plan.spans} == {D, B}
    assert (plan.leader, plan.ballot, plan.roster) == (D, 3, (D, A, B))


def test_a_follower_accepts_what_its_delegate_plans() -> None:
    for peer in (A, B):
        mustering.check_plan(RULES, planned(), peer, READIES[peer].commitment, D)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("leader", {"leader": E}),
        ("parent", {"round": 2}),
        ("parent", {"rules": digest(9)}),
        ("parent", {"parent_state": digest(9)}),
        ("members", {"members": planned().members * 2}),
        ("roster", {"roster": (D,)}),
        ("member", {"members": planned().members[:1], "roster": (D,)}),
        ("owners", {"spans": (planned().spans[0].model_copy(update={"owner": C, "num_chunks": NUM_CHUNKS}),)}),
        ("spans", {"spans": planned().spans[:1]}),
        ("attempt_timeout_s", {"attempt_timeout_s": 1e4}),
    ],
)
def test_a_plan_that_no_honest_delegate_makes_is_refused_by_name(rule: str, change: dict) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        mustering.check_plan(RULES, planned(**change), A, READIES[A].commitment, D)
    assert caught.value.rule == f"group_plan.{rule}"


def test_a_plan_that_counts_more_than_a_peer_may_weigh_is_refused() -> None:
    limited = genesis(limits=LimitsConfig(max_tokens_per_round=60))
    rules = replace(RULES, genesis=limited)
    plan = mustering.make_plan(rules, SEATS, at_home(READIES), [D], 0)
    assert [member.tokens for member in plan.members] == [60, 60, 50]
    above = plan.model_copy(update={"members": (plan.members[0].model_copy(update={"tokens": 61}), *plan.members[1:])})
    with pytest.raises(RemoteProtocolError, match="tokens"):
        mustering.check_plan(rules, above, A, READIES[A].commitment, D)


def test_a_plan_for_another_contribution_of_ours_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="member"):
        mustering.check_plan(RULES, planned(), A, digest(77), D)


def test_newcomers_to_the_group_weigh_nothing_in_their_probation() -> None:
    rules = replace(RULES, genesis=genesis(trust=TrustConfig(probation_rounds=2)))
    seats = Seats(0, 1, 4, {1: Seated(A, 1), 2: Seated(B, -1)})
    plan = mustering.make_plan(rules, seats, at_home(READIES), [D], 0)
    assert [newcomer.peer for newcomer in plan.newcomers] == [A]
    record = record_of(plan, [[True, True, True]])
    assert mustering.tokens_of(record, LimitsConfig()) == 150


def test_a_later_attempt_is_known_by_the_delegates_life_then_by_its_ballot() -> None:
    def lived(life: int, ballot: int) -> Plan:
        plan = planned(ballot=ballot)
        return plan.model_copy(
            update={"members": (plan.members[0].model_copy(update={"life": life}), *plan.members[1:])}
        )

    orders = [mustering.order_of(plan) for plan in (lived(1, 0), lived(1, 2), lived(2, 0), lived(2, 1))]
    assert orders == sorted(orders)
    assert len(set(orders)) == 4


# --- what a group weighs ----------------------------------------------------------------------------------------------


def test_a_group_weighs_the_tokens_of_those_in_its_mean_on_average_over_the_chunks() -> None:
    plan = plan_of([(D, 100, digest(1)), (A, 60, digest(2))], [(4, D), (2, A)])
    assert mustering.tokens_of(record_of(plan, [[True, True], [True, True]]), LimitsConfig()) == 160
    assert mustering.tokens_of(record_of(plan, [[True, True], [True, False]]), LimitsConfig()) == 140
    assert mustering.tokens_of(record_of(plan, [[True, False], [True, False]]), LimitsConfig()) == 100


def test_equal_contributions_weigh_as_one_in_a_group_too() -> None:
    plan = plan_of([(D, 100, digest(1)), (A, 100, digest(2)), (B, 100, digest(2))], [(6, D)])
    assert mustering.tokens_of(record_of(plan, [[True] * 3]), LimitsConfig()) == 200


def test_a_groups_speed_is_that_of_its_typical_peer() -> None:
    assert mustering.speed_of(planned()) == 10.0
    assert mustering.speed_of(plan_of([(D, 1, DIGEST)], [(1, D)])) == 0.0


def test_a_member_of_the_roster_may_weigh_as_much_as_all_its_seats() -> None:
    limited = genesis(limits=LimitsConfig(max_tokens_per_round=60))
    assert limited.member_limits.max_tokens_per_round == 4 * 60
    flat = limited.model_copy(update={"exchange": limited.exchange.model_copy(update={"topology": "all"})})
    assert flat.member_limits.max_tokens_per_round == 60
