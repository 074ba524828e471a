"""Single transitions of the round machine: the legal ones, and illegal ones that raise and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol.envelope import Header, seal
from atoll.protocol.identity import Identity
from atoll.protocol.messages import (
    Commit,
    Nack,
    PlanMessage,
    Prepare,
    Promise,
    Proposal,
    Ready,
    SpanDone,
    SpanFailed,
    Vote,
)
from atoll.protocol.record import Member, Plan, Record, SpanResult
from atoll.protocol.round_machine import (
    Acceptor,
    Contributed,
    Decide,
    FetchResults,
    GiveUp,
    IllegalTransition,
    Persist,
    Phase,
    Received,
    ResultsHeld,
    RoundState,
    Rules,
    Send,
    SpanLost,
    StartExchange,
    Tick,
    advance,
    begin,
)
from atoll.protocol.simulator import digest, world_genesis
from atoll.protocol.spans import assign_spans
from atoll.protocol.standing import Standing
from atoll.protocol.transport import RemoteProtocolError

GENESIS = world_genesis(3)
STATE = digest("state")
PEOPLE = {
    identity.peer_id: identity for identity in (Identity.from_seed(bytes([number + 1]) * 32) for number in range(3))
}


def rules_of(rank: int, **changes) -> Rules:
    """Rules of the member with this rank in the round's permutation."""
    rules = Rules(GENESIS, GENESIS.membership.roster[0], Standing.of_genesis(GENESIS), STATE, 10, 6)
    return replace(rules, me=rules.order[rank], **changes)


ORDER = rules_of(0).order
LEADER, SECOND, THIRD = ORDER


def state_of(rank: int, **changes) -> RoundState:
    return begin(rules_of(rank, **changes), Acceptor(), {}, 0.0)


def ready_of(peer: str, **changes) -> Ready:
    ready = Ready(round=1, parent=GENESIS.run_id, parent_state=STATE, tokens=100, commitment=digest(peer))
    return ready.model_copy(update=changes)


def plan_of(ballot: int = 0, **changes) -> Plan:
    leader = ORDER[ballot % 3]
    plan = Plan(
        lineage=0,
        fragment=0,
        round=1,
        ballot=ballot,
        leader=leader,
        parent=GENESIS.run_id,
        parent_state=STATE,
        members=tuple(Member(peer=peer, tokens=100, commitment=digest(peer)) for peer in ORDER),
        spans=assign_spans(6, dict.fromkeys(ORDER, 1.0)),
        roster=GENESIS.membership.roster,
        next_roster=GENESIS.membership.roster,
        data_cursor=30,
        rules=GENESIS.rules_id,
        attempt_timeout_s=20.0,
    )
    return plan.model_copy(update=changes)


def record_of(plan: Plan) -> Record:
    included = (True,) * len(plan.members)
    results = tuple(
        SpanResult(plan=plan.content_id(), span=index, included=included, digest=digest("mean", index))
        for index in range(len(plan.spans))
    )
    return Record(plan=plan, results=results)


def held(record: Record) -> ResultsHeld:
    return ResultsHeld(record.plan.content_id(), tuple(result.digest for result in record.results))


def vote_of(voter: str, record: Record, ballot: int = 0) -> str:
    header = Header(run_id=GENESIS.run_id, lineage=0, sender=voter, sequence=1, expires_unix_s=0)
    body = Vote(fragment=0, round=1, ballot=ballot, record=record.content_id())
    return seal(PEOPLE[voter], header, body).hex()


def commit_of(record: Record, voters: list[str], ballot: int = 0) -> Commit:
    return Commit(record=record, ballot=ballot, votes=tuple(vote_of(voter, record, ballot) for voter in voters))


def received(sender: str, body) -> Received:
    return Received(sender, body, b"")


def after(state: RoundState, *events, now: float = 0.0) -> tuple[RoundState, list]:
    actions: list = []
    for event in events:
        state, more = advance(state, event, now)
        actions += more
    return state, actions


def sent(actions: list, kind: type) -> list:
    return [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def test_a_contribution_is_announced_to_the_whole_roster():
    state, actions = after(state_of(1), Contributed(ready_of(SECOND)))
    assert state.phase is Phase.READY
    assert actions == [Send(GENESIS.membership.roster, ready_of(SECOND))]


@pytest.mark.parametrize("event", [Contributed(ready_of(SECOND)), Contributed(ready_of(SECOND, round=2))])
def test_a_second_contribution_or_one_for_another_round_is_illegal_and_changes_nothing(event):
    state, _ = after(state_of(1), Contributed(ready_of(SECOND)))
    before = state
    with pytest.raises(IllegalTransition):
        advance(state, event, 1.0)
    assert state == before


def test_the_first_of_the_permutation_plans_without_prepare_once_all_are_ready():
    events = [Contributed(ready_of(LEADER))] + [received(peer, ready_of(peer)) for peer in ORDER]
    _, actions = after(state_of(0), *events)
    (plan,) = sent(actions, PlanMessage)
    assert plan.plan.ballot == 0
    assert [member.peer for member in plan.plan.members] == list(GENESIS.membership.roster)
    assert any(isinstance(action, Persist) and action.acceptor.led == 0 for action in actions)
    assert not sent(actions, Prepare)


def test_weights_are_clamped_by_the_spec():
    limit = GENESIS.limits.max_tokens_per_round
    events = [received(peer, ready_of(peer, tokens=2**53)) for peer in ORDER]
    _, actions = after(state_of(0), Contributed(ready_of(LEADER)), *events)
    assert {member.tokens for member in sent(actions, PlanMessage)[0].plan.members} == {limit}


def test_a_member_votes_only_once_it_holds_every_result():
    record = record_of(plan_of())
    state, actions = after(state_of(1), received(LEADER, PlanMessage(plan=plan_of())))
    assert actions == [StartExchange(plan_of())]
    state, actions = after(state, received(LEADER, Proposal(ballot=0, record=record)))
    assert not actions
    state, actions = after(state, held(record))
    assert state.phase is Phase.IN_DOUBT
    assert isinstance(actions[0], Persist)  # before the vote
    assert sent(actions, Vote)[0].record == record.content_id()


def test_results_that_do_not_match_the_record_are_fetched_instead():
    record = record_of(plan_of())
    state, _ = after(state_of(1), received(LEADER, PlanMessage(plan=plan_of())))
    other = ResultsHeld(record.plan.content_id(), (digest("other"),) * 3)
    state, _ = after(state, other, SpanLost(record.plan.content_id(), 2, "gone"))
    _, actions = after(state, received(LEADER, Proposal(ballot=0, record=record)))
    assert FetchResults(record) in actions
    assert not sent(actions, Vote)


def test_a_lost_span_is_complained_of_unless_its_result_is_proposed_already():
    record = record_of(plan_of())
    state, _ = after(state_of(1), received(LEADER, PlanMessage(plan=plan_of())))
    _, actions = after(state, SpanLost(record.plan.content_id(), 2, "gone"))
    assert sent(actions, SpanFailed)
    state, _ = after(state, received(LEADER, Proposal(ballot=0, record=record)))
    _, actions = after(state, SpanLost(record.plan.content_id(), 2, "gone"))
    assert actions == [FetchResults(record)]


def test_who_has_withdrawn_fetches_the_results_of_a_later_proposal_of_the_same_plan():
    """Seen in a hunt: it waited for its exchange, which it had cancelled, and withheld the vote that was missing."""
    record = record_of(plan_of())
    plan = received(LEADER, PlanMessage(plan=record.plan))
    state, _ = after(state_of(2), Contributed(ready_of(THIRD)), plan)
    state, _ = after(state, Tick(), now=10.0)
    state, actions = after(state, Tick(), now=31.0)
    assert any(isinstance(action, GiveUp) for action in actions)
    assert sent(actions, Ready)[0].tokens == 0
    _, actions = after(state, received(LEADER, Proposal(ballot=0, record=record)), now=32.0)
    assert FetchResults(record) in actions


def test_a_promise_binds_and_reports_what_was_accepted():
    record = record_of(plan_of())
    state, _ = after(state_of(2), held(record), received(LEADER, Proposal(ballot=0, record=record)))
    state, actions = after(state, received(SECOND, Prepare(fragment=0, round=1, ballot=4)))
    promise = sent(actions, Promise)[0]
    assert promise.accepted is not None
    assert promise.accepted.record == record
    assert isinstance(actions[0], Persist)
    _, actions = after(state, received(LEADER, Proposal(ballot=3, record=record)))
    assert sent(actions, Nack)[0].promised == 4


def test_a_new_leader_proposes_the_accepted_record_of_the_highest_ballot():
    older, newer = record_of(plan_of(0)), record_of(plan_of(2))
    state = begin(rules_of(1), Acceptor(promised=2, led=1), {}, 0.0)
    state, actions = after(state, Contributed(ready_of(SECOND)), now=100.0)
    ballot = sent(actions, Prepare)[0].ballot
    assert ballot == 4

    def promise(record: Record, accepted: int) -> Promise:
        body = {"fragment": 0, "round": 1, "ballot": ballot}
        return Promise.model_validate({**body, "accepted": {"ballot": accepted, "record": record}})

    state, actions = after(state, received(LEADER, promise(older, 0)), received(THIRD, promise(newer, 2)), now=100.0)
    assert sent(actions, Proposal)[0].record == newer


def test_a_restarted_leader_never_leads_the_same_ballot_again():
    state = begin(rules_of(0), Acceptor(led=0), {}, 0.0)
    _, actions = after(state, Contributed(ready_of(LEADER)))
    assert sent(actions, Prepare)[0].ballot == 3


def test_a_member_that_has_lost_its_memory_neither_votes_nor_leads():
    record = record_of(plan_of())
    state, actions = after(
        state_of(1, abstain=True),
        held(record),
        received(LEADER, Proposal(ballot=0, record=record)),
        received(THIRD, Prepare(fragment=0, round=1, ballot=2)),
        Contributed(ready_of(SECOND)),
    )
    _, more = after(state, Tick(), now=500.0)
    assert not [action for action in (*actions, *more) if isinstance(action, Persist)]


def test_a_commit_with_a_quorum_of_votes_decides():
    record = record_of(plan_of())
    state, actions = after(state_of(2), received(SECOND, commit_of(record, [LEADER, SECOND])))
    assert state.phase is Phase.DECIDED
    assert actions == [Decide(commit_of(record, [LEADER, SECOND]))]
    assert after(state, Tick(), received(LEADER, PlanMessage(plan=plan_of())))[1] == []


def forged_votes() -> dict[str, Commit]:
    record, other = record_of(plan_of()), record_of(plan_of(data_cursor=31))
    good = commit_of(record, [LEADER, SECOND])
    return {
        "too few": commit_of(record, [LEADER]),
        "one twice": good.model_copy(update={"votes": (good.votes[0], good.votes[0])}),
        "for another record": good.model_copy(update={"votes": commit_of(other, [LEADER, SECOND]).votes}),
        "at another ballot": good.model_copy(update={"ballot": 3}),
        "a flipped bit": good.model_copy(update={"votes": (good.votes[0], "00" + good.votes[1][2:])}),
        "no hexadecimal": good.model_copy(update={"votes": (good.votes[0], "zz")}),
        "no vote": good.model_copy(
            update={
                "votes": (
                    good.votes[0],
                    seal(
                        PEOPLE[SECOND],
                        Header(run_id=GENESIS.run_id, lineage=0, sender=SECOND, sequence=1, expires_unix_s=0),
                        Nack(fragment=0, round=1, promised=0),
                    ).hex(),
                )
            }
        ),
        "an outsider's": good.model_copy(
            update={
                "votes": (
                    good.votes[0],
                    seal(
                        outsider := Identity.from_seed(bytes([99]) * 32),
                        Header(run_id=GENESIS.run_id, lineage=0, sender=outsider.peer_id, sequence=1, expires_unix_s=0),
                        Vote(fragment=0, round=1, ballot=0, record=record.content_id()),
                    ).hex(),
                )
            }
        ),
    }


@pytest.mark.parametrize("forgery", forged_votes())
def test_a_commit_without_a_valid_certificate_is_refused(forgery):
    state = state_of(2)
    with pytest.raises(RemoteProtocolError, match=r"commit\.votes"):
        advance(state, received(LEADER, forged_votes()[forgery]), 0.0)
    assert state == state_of(2)


BAD_PLANS = {
    "plan.leader": {"leader": SECOND},
    "plan.parent": {"parent": digest("elsewhere")},
    "plan.parent_state": {"parent_state": digest("elsewhere")},
    "plan.roster": {"roster": GENESIS.membership.roster[:2]},
    "plan.data_cursor": {"data_cursor": 29},
    "plan.members": {"members": plan_of().members + plan_of().members[:1]},
    "plan.tokens": {"members": tuple(member.model_copy(update={"tokens": 0}) for member in plan_of().members)},
    "plan.owner": {"members": plan_of().members[1:]},
    "plan.spans": {"spans": plan_of().spans[1:]},
    "plan.next_roster": {"next_roster": (*GENESIS.membership.roster, Identity.from_seed(bytes([99]) * 32).peer_id)},
}


@pytest.mark.parametrize("rule", BAD_PLANS)
def test_a_plan_that_no_honest_leader_makes_is_refused_by_its_rule(rule):
    sender = SECOND if rule == "plan.leader" else LEADER
    with pytest.raises(RemoteProtocolError) as caught:
        advance(state_of(2), received(sender, PlanMessage(plan=plan_of(**BAD_PLANS[rule]))), 0.0)
    assert caught.value.rule == rule


def test_two_plans_at_one_ballot_are_misconduct():
    state, _ = after(state_of(2), received(LEADER, PlanMessage(plan=plan_of())))
    other = plan_of(members=plan_of().members[::-1])
    with pytest.raises(RemoteProtocolError, match="two plans"):
        advance(state, received(LEADER, PlanMessage(plan=other)), 0.0)


def test_consensus_messages_from_outside_the_roster_are_misconduct():
    stranger = Identity.from_seed(bytes([99]) * 32).peer_id
    with pytest.raises(RemoteProtocolError, match="roster"):
        advance(state_of(0), received(stranger, ready_of(stranger)), 0.0)


def test_a_ballot_of_somebody_else_is_misconduct():
    with pytest.raises(RemoteProtocolError, match="ballot"):
        advance(state_of(2), received(SECOND, Prepare(fragment=0, round=1, ballot=3)), 0.0)


def test_a_ballot_out_of_all_proportion_is_misconduct():
    ballot = (2**40 // 3) * 3 - 3
    with pytest.raises(RemoteProtocolError, match="proportion"):
        advance(state_of(2), received(LEADER, Prepare(fragment=0, round=1, ballot=ballot)), 0.0)


def test_a_span_result_from_another_than_its_owner_is_misconduct():
    events = [received(peer, ready_of(peer)) for peer in ORDER]
    state, actions = after(state_of(0), Contributed(ready_of(LEADER)), *events)
    plan = sent(actions, PlanMessage)[0].plan
    result = record_of(plan).results[0]
    thief = next(peer for peer in ORDER if peer != plan.spans[0].owner)
    with pytest.raises(RemoteProtocolError, match="not the span's owner"):
        advance(state, received(thief, SpanDone(result=result, round=1)), 0.0)


def test_a_lost_owner_leads_to_an_attempt_without_it():
    events = [received(peer, ready_of(peer)) for peer in ORDER]
    state, actions = after(state_of(0), Contributed(ready_of(LEADER)), *events)
    first = sent(actions, PlanMessage)[0].plan
    state, _ = after(state, received(LEADER, PlanMessage(plan=first)))
    lost = next(index for index, span in enumerate(first.spans) if span.owner == THIRD)
    state, actions = after(state, SpanLost(first.content_id(), lost, "no progress"))
    complaint = next(action.message for action in actions)
    state, actions = after(state, received(LEADER, complaint))
    ballot = sent(actions, Prepare)[0].ballot
    promise = Promise(fragment=0, round=1, ballot=ballot)
    state, actions = after(state, received(LEADER, promise), received(SECOND, promise))
    second = sent(actions, PlanMessage)[0].plan
    assert second.members == first.members  # its contribution still counts if it can be sent
    assert THIRD not in {span.owner for span in second.spans}
