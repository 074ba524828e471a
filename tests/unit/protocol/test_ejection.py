"""Single transitions of the round machine once somebody's misconduct is proven, or an owner is distrusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Accepted, PlanMessage, Prepare, Promise, Proposal, SpanDone, SpanFailed, Vote
from atoll.protocol.record import Record
from atoll.protocol.round_machine import (
    Acceptor,
    Contributed,
    Distrusted,
    Proven,
    RoundState,
    check_plan,
    views,
)
from atoll.protocol.round_machine.values import Preparing
from atoll.protocol.signed_results import is_sealed, is_signed, seal_of, signed
from atoll.protocol.spans import assign_spans
from atoll.protocol.transport import RemoteProtocolError

from .test_round_machine import (
    LEADER,
    ORDER,
    PEOPLE,
    SECOND,
    THIRD,
    after,
    held,
    plan_of,
    ready_of,
    received,
    record_of,
    rules_of,
    sent,
    state_of,
)


def leading(*events, **changes) -> tuple[RoundState, list]:
    """The first leader after it has planned with everybody."""
    readies = [received(peer, ready_of(peer)) for peer in ORDER]
    return after(state_of(0, **changes), Contributed(ready_of(LEADER)), *readies, *events)


def done(plan, *indices: int) -> list:
    results = record_of(plan).results
    return [received(plan.spans[i].owner, SpanDone(result=results[i], round=1)) for i in indices]


def test_a_leader_that_learns_of_a_lie_plans_again_without_the_liar_and_ejects_it():
    state, actions = leading()
    plan = sent(actions, PlanMessage)[0].plan
    state, actions = after(state, *done(plan, 0, 1), Proven(THIRD))
    (ballot,) = {prepare.ballot for prepare in sent(actions, Prepare)}
    promise = Promise(fragment=0, round=1, ballot=ballot)
    _, actions = after(state, *(received(peer, promise) for peer in ORDER[:2]))
    repaired = sent(actions, PlanMessage)[0].plan
    assert repaired.ejected == (THIRD,)
    assert THIRD not in {*repaired.next_roster, *(m.peer for m in repaired.members), *(s.owner for s in repaired.spans)}
    check_plan(rules_of(1), repaired, LEADER)


def test_the_promise_of_a_proven_liar_is_worth_nothing():
    ballot = 3
    state = replace(state_of(0, proven=frozenset({THIRD})), lead=Preparing(ballot), seen=ballot)
    state = replace(state, acceptor=Acceptor(promised=ballot, led=ballot))
    lie = Accepted(ballot=0, record=record_of(plan_of()))
    _, actions = after(state, received(THIRD, Promise(fragment=0, round=1, ballot=ballot, accepted=lie)))
    assert not sent(actions, Proposal)


def test_nobody_votes_for_means_of_a_proven_liar_but_what_may_be_decided_is_helped():
    record = record_of(plan_of())
    state, actions = after(
        state_of(1), held(record), Proven(THIRD), received(LEADER, Proposal(ballot=0, record=record))
    )
    assert not sent(actions, Vote)
    _, actions = after(state, received(LEADER, Proposal(ballot=3, record=record)))
    assert [vote.ballot for vote in sent(actions, Vote)] == [3]


def test_a_plan_that_ejects_is_followed_only_with_the_evidence():
    members = plan_of().members[:2]
    spans = assign_spans(6, dict.fromkeys(ORDER[:2], 1.0))
    roster = tuple(peer for peer in plan_of().next_roster if peer != THIRD)
    plan = plan_of(ejected=(THIRD,), next_roster=roster, members=members, spans=spans)
    proposal = received(LEADER, Proposal(ballot=0, record=record_of(plan)))
    state, actions = after(state_of(1), received(LEADER, PlanMessage(plan=plan)), held(record_of(plan)), proposal)
    assert state.attempt is None
    assert not sent(actions, Vote)
    state, actions = after(state, Proven(THIRD), received(LEADER, PlanMessage(plan=plan)), proposal)
    assert state.attempt is not None
    assert len(sent(actions, Vote)) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ejected": (THIRD,)}, "takes part"),
        ({"ejected": ()}, "forgets"),
        ({"ejected": ("x" * 50, "y" * 50, "y" * 50)}, "twice"),
        ({"ejected": ("x" * 50, "y" * 50)}, "not in the roster"),
    ],
)
def test_what_a_plan_may_not_do_with_the_ejected(changes, why):
    rules = rules_of(1)
    known = ("x" * 50,) if changes["ejected"] != (THIRD,) else ()
    rules = replace(rules, standing=replace(rules.standing, ejected=known))
    with pytest.raises(RemoteProtocolError, match=why):
        check_plan(rules, plan_of(**changes), LEADER)


def test_the_leader_is_replaced_at_once_when_its_own_misconduct_is_proven():
    readies = [received(peer, ready_of(peer)) for peer in ORDER]
    state, actions = after(state_of(1), Contributed(ready_of(SECOND)), *readies)
    assert not sent(actions, Prepare)
    _, actions = after(state, received(LEADER, PlanMessage(plan=plan_of())), Proven(LEADER))
    assert {prepare.ballot for prepare in sent(actions, Prepare)} == {1}


# --- distrust ---------------------------------------------------------------------------------------------------------


def distrust(plan, sender: str, owner: str):
    span = next(i for i, span in enumerate(plan.spans) if span.owner == owner)
    return received(
        sender, SpanFailed(plan=plan.content_id(), round=1, span=span, why="shows nothing", distrusted=True)
    )


def test_a_distrusted_owner_loses_its_spans_although_its_result_is_there():
    state, actions = leading()
    plan = sent(actions, PlanMessage)[0].plan
    state, actions = after(state, *done(plan, 0, 1, 2), held(record_of(plan)))
    assert sent(actions, Proposal)
    _, actions = after(state, distrust(plan, SECOND, THIRD))
    assert sent(actions, Prepare)


def test_who_distrusts_everybody_costs_one_attempt():
    state, actions = leading()
    plan = sent(actions, PlanMessage)[0].plan
    state, actions = after(state, distrust(plan, SECOND, THIRD))
    (ballot,) = {prepare.ballot for prepare in sent(actions, Prepare)}
    promises = [received(peer, Promise(fragment=0, round=1, ballot=ballot)) for peer in ORDER[:2]]
    state, actions = after(state, *promises)
    repaired = sent(actions, PlanMessage)[0].plan
    state, actions = after(state, distrust(repaired, SECOND, LEADER))
    assert not sent(actions, Prepare)


def test_a_member_tells_the_leader_whom_it_distrusts():
    plan = plan_of()
    state, _ = after(state_of(1), received(LEADER, PlanMessage(plan=plan)))
    _, actions = after(state, Distrusted(plan.content_id(), 2, "shows nothing"))
    assert [(message.span, message.distrusted) for message in sent(actions, SpanFailed)] == [(2, True)]


# --- signatures -------------------------------------------------------------------------------------------------------


def signing(**changes) -> dict:
    return {"is_signed": is_signed, "is_sealed": is_sealed, **changes}


def signed_record(plan) -> Record:
    results = tuple(signed(PEOPLE[plan.spans[r.span].owner], r) for r in record_of(plan).results)
    return Record(plan=plan, results=results)


def proposal_of(record: Record, ballot: int = 0, leader: str = LEADER) -> Proposal:
    return Proposal(ballot=ballot, record=record, seal=seal_of(PEOPLE[leader], ballot, record.content_id()))


def preparing(ballot: int) -> RoundState:
    state = replace(state_of(1, **signing()), lead=Preparing(ballot), seen=ballot)
    return replace(state, acceptor=Acceptor(promised=ballot, led=ballot))


def test_results_that_their_owners_have_not_signed_get_no_vote():
    record = record_of(plan_of())
    with pytest.raises(RemoteProtocolError, match=r"result\.signature"):
        after(state_of(1, **signing()), held(record), received(LEADER, proposal_of(record)))
    record = signed_record(plan_of())
    state, actions = after(state_of(1, **signing()), held(record), received(LEADER, proposal_of(record)))
    assert len(sent(actions, Vote)) == 1
    assert state.acceptor.accepted is not None
    assert state.acceptor.accepted.seal == proposal_of(record).seal


def test_a_promise_that_carries_a_made_up_record_is_refused():
    made_up, unsealed = record_of(plan_of()), signed_record(plan_of())
    for accepted in (
        Accepted(ballot=0, record=made_up, seal=proposal_of(made_up).seal),
        Accepted(ballot=0, record=unsealed),
        Accepted(ballot=0, record=unsealed, seal=proposal_of(unsealed, leader=THIRD).seal),
    ):
        with pytest.raises(RemoteProtocolError, match=r"result\.signature|proposal\.seal"):
            after(preparing(1), received(THIRD, Promise(fragment=0, round=1, ballot=1, accepted=accepted)))


def test_a_promise_with_what_was_really_proposed_makes_the_leader_propose_it_again():
    record = signed_record(plan_of())
    accepted = Accepted(ballot=0, record=record, seal=proposal_of(record).seal)
    promises = [Promise(fragment=0, round=1, ballot=1, accepted=accepted), Promise(fragment=0, round=1, ballot=1)]
    _, actions = after(preparing(1), received(THIRD, promises[0]), received(SECOND, promises[1]))
    assert {proposal.record.content_id() for proposal in sent(actions, Proposal)} == {record.content_id()}


def test_a_leader_ejects_members_of_the_roster_only():
    """Of whom it holds evidence against all: keys cost nothing, and every plan and commit names the ejected."""
    strangers = frozenset(PeerId(f"{number:050d}") for number in range(5000))
    assert views.ejected(state_of(0, proven=strangers | {THIRD})) == (THIRD,)
