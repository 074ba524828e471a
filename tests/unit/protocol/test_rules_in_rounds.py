"""The round machine under amended rules: what is refused, and what of the old rules must still be helped to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol.messages import Accepted, PlanMessage, Promise, Proposal
from atoll.protocol.quorum import Quorum, has_witnesses, quorum_of
from atoll.protocol.record import Newcomer
from atoll.protocol.round_machine import Received, ResultsHeld, Send, advance, begin
from atoll.protocol.round_machine.values import Acceptor, Preparing
from atoll.protocol.spec import MembershipConfig
from atoll.protocol.standing import Standing, newcomers_after
from atoll.protocol.transport import RemoteProtocolError, RulesDiffer

from .test_round_machine import GENESIS, LEADER, ORDER, SECOND, plan_of, record_of, rules_of

NEWER = GENESIS.amended({"limits": {"max_peers": 64, "max_tokens_per_round": 1 << 30}})
PAUSED = GENESIS.amended({"control": {"paused": True}})


def state_under(genesis, *alternatives, rank: int = 2):
    rules = rules_of(rank, genesis=genesis, alternatives=alternatives)
    return begin(rules, Acceptor(), {}, 0.0)


def said(sender: str, body) -> Received:
    return Received(sender, body, b"")


def test_a_new_plan_under_older_rules_is_refused_and_is_nobodys_misconduct():
    state = state_under(NEWER, GENESIS)
    with pytest.raises(RulesDiffer):
        advance(state, said(LEADER, PlanMessage(plan=plan_of())), 1.0)
    with pytest.raises(RulesDiffer):
        advance(state, said(LEADER, Proposal(ballot=0, record=record_of(plan_of()))), 1.0)


def test_what_was_accepted_under_older_rules_is_voted_for_again_when_a_later_leader_proposes_it():
    record = record_of(plan_of())
    state, _ = advance(state_under(NEWER, GENESIS), said(SECOND, Proposal(ballot=1, record=record)), 1.0)
    digests = tuple(result.digest for result in record.results)
    state, actions = advance(state, ResultsHeld(record.plan.content_id(), digests), 1.0)
    assert [action.message.kind for action in actions if isinstance(action, Send)] == ["vote"]
    assert state.acceptor.accepted.record == record


def test_a_promise_with_a_record_under_older_rules_counts():
    state = state_under(NEWER, GENESIS, rank=1)
    state = replace(state, lead=Preparing(1), seen=1)
    accepted = Accepted(ballot=0, record=record_of(plan_of()))
    promise = Promise(fragment=0, round=1, ballot=1, accepted=accepted)
    state, _ = advance(state, said(ORDER[2], promise), 1.0)
    assert state.lead.promises[ORDER[2]] == accepted


def test_rules_that_nobody_here_knows_are_not_voted_on():
    record = record_of(plan_of(rules="ab" * 32))
    with pytest.raises(RulesDiffer):
        advance(state_under(NEWER, GENESIS), said(SECOND, Proposal(ballot=1, record=record)), 1.0)


def test_in_a_paused_run_no_new_plan_is_taken():
    with pytest.raises(RemoteProtocolError, match="the run is paused"):
        advance(state_under(PAUSED), said(LEADER, PlanMessage(plan=plan_of(rules=PAUSED.rules_id))), 1.0)


def test_a_banned_member_is_not_heard():
    genesis = GENESIS.amended({"control": {"banned": [LEADER]}})
    with pytest.raises(RemoteProtocolError, match="banned"):
        advance(state_under(genesis), said(LEADER, PlanMessage(plan=plan_of(rules=genesis.rules_id))), 1.0)


def test_a_plan_that_lets_a_newcomer_count_at_once_is_refused():
    joiner = GENESIS.membership.allowed[0]
    genesis = GENESIS.amended({"trust": {"probation_rounds": 3}})
    plan = plan_of(rules=genesis.rules_id, next_roster=(*GENESIS.membership.roster, joiner))
    with pytest.raises(RemoteProtocolError, match="not those on probation"):
        advance(state_under(genesis), said(LEADER, PlanMessage(plan=plan)), 1.0)
    honest = plan.model_copy(update={"newcomers": (Newcomer(peer=joiner, counts_from=5),)})
    state, _ = advance(state_under(genesis), said(LEADER, PlanMessage(plan=honest)), 1.0)
    assert state.attempt.plan == honest


def test_probation_ends_is_not_begun_again_by_staying_and_is_by_coming_back():
    old, new = GENESIS.membership.roster, GENESIS.membership.allowed[0]
    entered = newcomers_after(Standing(7, "", old), (*old, new), 2)
    assert [(newcomer.peer, newcomer.counts_from) for newcomer in entered] == [(new, 11)]
    member = Standing(8, "", (*old, new), newcomers=entered)
    assert newcomers_after(member, (*old, new), 2) == entered
    last = Standing(9, "", (*old, new), newcomers=entered)
    assert newcomers_after(last, (*old, new), 2) == entered  # the plan of round 10, in which it weighs nothing yet
    assert newcomers_after(Standing(10, "", (*old, new), newcomers=entered), (*old, new), 2) == ()
    back = newcomers_after(Standing(20, "", old), (*old, new), 2)
    assert [newcomer.counts_from for newcomer in back] == [24]


def test_a_single_round_of_probation_is_one_round():
    old, new = GENESIS.membership.roster, GENESIS.membership.allowed[0]
    entered = newcomers_after(Standing(7, "", old), (*old, new), 1)
    assert newcomers_after(Standing(8, "", (*old, new), newcomers=entered), (*old, new), 1) == entered
    assert entered == (Newcomer(peer=new, counts_from=10),)


def test_who_leaves_while_on_probation_weighs_nothing_in_its_last_round():
    old, new = GENESIS.membership.roster, GENESIS.membership.allowed[0]
    entered = newcomers_after(Standing(7, "", old), (*old, new), 4)
    assert newcomers_after(Standing(8, "", (*old, new), newcomers=entered), old, 4) == entered


def test_where_only_newcomers_are_left_they_count_from_the_next_round_on():
    old, new = GENESIS.membership.roster, GENESIS.membership.allowed[:2]
    assert newcomers_after(Standing(7, "", old), tuple(new), 5) == ()
    entered = newcomers_after(Standing(7, "", old), (*old, *new), 5)
    left = newcomers_after(Standing(8, "", (*old, *new), newcomers=entered), tuple(new), 5)
    assert [(newcomer.peer, newcomer.counts_from) for newcomer in left] == [(peer, 10) for peer in new]


def test_a_quorum_without_most_of_the_witnesses_is_none():
    roster, strangers = ("a", "b", "c"), ("d", "e", "f", "g", "h")
    quorum = Quorum((*roster, *strangers), 0, "a", witnesses=roster)
    assert not quorum.reached((*strangers, "a"))
    assert quorum.reached(("a", "b", "d", "e", "f"))
    assert not has_witnesses(roster, ("a",))
    assert quorum.fewest_with("d") == 4


def test_a_plan_that_drops_most_witnesses_is_refused():
    roster = GENESIS.membership.roster
    membership = {**GENESIS.membership.model_dump(mode="json"), "witnesses": list(roster)}
    genesis = GENESIS.amended({"membership": membership})
    plan = plan_of(rules=genesis.rules_id, next_roster=(LEADER,))
    with pytest.raises(RemoteProtocolError, match="too few witnesses"):
        advance(state_under(genesis), said(LEADER, PlanMessage(plan=plan)), 1.0)
    assert quorum_of(genesis, roster, 1).witnesses == roster


def test_an_open_run_names_witnesses_of_its_roster_or_takes_the_risk():
    roster = GENESIS.membership.roster
    assert MembershipConfig(mode="open", roster=roster, witnesses=roster[:1]).admits("anybody")
    with pytest.raises(ValueError, match=r"needs membership\.witnesses"):
        MembershipConfig(mode="open", roster=roster)
    with pytest.raises(ValueError, match=r"must be in membership\.roster"):
        MembershipConfig(mode="open", roster=roster[:2], witnesses=roster[2:])
