"""Amendments whatever comes: in any order, twice, forged, cut off, and by too few."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.protocol.amendments import Amendment, InvalidAmendment, RunRules
from atoll.protocol.changes import (
    Allow,
    Ban,
    Change,
    LearningRate,
    Limits,
    Pause,
    Resume,
    Rollback,
    Seeds,
    Timing,
)
from atoll.protocol.identity import Identity
from atoll.protocol.spec import Genesis, MembershipConfig

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 8)]
PEERS = [person.peer_id for person in PEOPLE]
GENESIS = Genesis(
    name="amended",
    protocol_version=1,
    initial_state="00" * 32,
    operators=tuple(PEERS[:3]),
    operator_threshold=2,
    model={},
    inner={"lr": 0.004},
    outer={"lr": 0.7},
    membership=MembershipConfig(roster=tuple(PEERS[:4]), allowed=tuple(PEERS[4:])),
)

changes = st.one_of(
    st.builds(LearningRate, inner=st.floats(1e-6, 1), outer=st.none() | st.floats(1e-6, 1)),
    st.just(Pause()),
    st.just(Resume()),
    st.builds(Ban, peers=st.lists(st.sampled_from(PEERS[1:]), min_size=1, unique=True).map(tuple)),
    st.builds(Allow, peers=st.lists(st.sampled_from(PEERS), min_size=1, unique=True).map(tuple)),
    st.builds(Seeds, seeds=st.lists(st.text(max_size=20), max_size=3).map(tuple)),
    st.builds(Timing, values=st.fixed_dictionaries({"attempt_timeout_s": st.floats(20, 500)})),
    st.builds(Limits, values=st.fixed_dictionaries({"max_peers": st.integers(1, 1024)})),
)
plans = st.lists(st.tuples(changes, st.integers(1, 9)), max_size=4)


def signed_by(amendment: Amendment, *people: Identity) -> Amendment:
    for person in people:
        amendment = amendment.signed(person)
    return amendment


def rules_of(wanted: list[tuple[Change, int]]) -> RunRules:
    rules = RunRules(GENESIS)
    for change, from_round in wanted:
        rules = rules.extended([signed_by(rules.next(change, from_round), *PEOPLE[:2])])
    return rules


@given(plans, st.data())
@settings(max_examples=20)
def test_in_any_order_and_however_often_sent_everybody_ends_with_the_same_rules(wanted, data) -> None:
    full = rules_of(wanted)
    mine = RunRules(GENESIS)
    sendings = data.draw(st.lists(st.sampled_from(full.amendments), max_size=20)) if full.amendments else []
    for amendment in [*sendings, *full.amendments]:  # at last the whole list in order, as a peer sends it
        with suppress(InvalidAmendment):  # number 3 before number 2
            mine = mine.extended([amendment])
    assert mine.head == full.head
    assert [mine.at(number).rules_id for number in range(1, 12)] == [full.at(n).rules_id for n in range(1, 12)]


@given(plans, st.integers(1, 12))
@settings(max_examples=20)
def test_the_run_keeps_its_id_and_nothing_changes_before_its_round(wanted, number) -> None:
    rules = rules_of(wanted)
    assert rules.at(number).run_id == GENESIS.run_id
    if all(from_round > number for _, from_round in wanted):
        assert rules.at(number) is GENESIS


@given(plans, st.integers(1, 12), st.integers(0, 6))
@settings(max_examples=20)
def test_rules_of_whoever_knows_fewer_are_among_those_that_a_round_may_have_had(wanted, number, num_known) -> None:
    rules, fewer = rules_of(wanted), rules_of(wanted[:num_known])
    assert fewer.at(number).rules_id in [possible.rules_id for possible in rules.possible(number)]


@given(plans.filter(bool), st.data())
@settings(max_examples=40)
def test_a_changed_byte_is_no_amendment_any_more(wanted, data) -> None:
    amendment = rules_of(wanted).amendments[-1]
    before = rules_of(wanted[:-1])
    text = bytearray(amendment.canonical())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(32, 126).filter(lambda byte: byte != text[place]))
    try:
        other = Amendment.parse(bytes(text))
    except InvalidAmendment:
        return
    if other != amendment:  # else another spelling of the same value
        with pytest.raises(InvalidAmendment):
            before.extended([other])


@given(plans.filter(bool), st.data())
@settings(max_examples=20)
def test_a_cut_off_text_is_refused(wanted, data) -> None:
    text = rules_of(wanted).amendments[-1].canonical()
    with pytest.raises(InvalidAmendment):
        Amendment.parse(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
@settings(max_examples=20)
def test_any_other_json_is_refused_in_one_line(value) -> None:
    with pytest.raises(InvalidAmendment) as caught:
        Amendment.parse(json.dumps(value))
    assert "\n" not in str(caught.value)


@given(changes, st.lists(st.sampled_from(PEOPLE), max_size=6))
@settings(max_examples=20)
def test_only_two_of_three_operators_and_nobody_else_amend(change, people) -> None:
    rules = RunRules(GENESIS)
    signers = {person.peer_id for person in people}
    amendment = signed_by(rules.next(change, 3), *people)
    if len(signers) >= 2 and signers <= set(GENESIS.operators):
        assert rules.extended([amendment]).head == amendment.digest
    else:
        with pytest.raises(InvalidAmendment):
            rules.extended([amendment])


@given(st.integers(0, 6), st.integers(1, 12))
@settings(max_examples=20)
def test_after_a_rollback_only_rules_of_the_new_lineage_may_follow(fork_round, number) -> None:
    rules = rules_of([(LearningRate(inner=0.1), 3)])
    change = Rollback(lineage=1, round=fork_round, record="11" * 32, state_hash="22" * 32, roster=(PEERS[0],))
    rules = rules.extended([signed_by(rules.next(change, fork_round + 1), *PEOPLE[:2])])
    lineages = {possible.lineage for possible in rules.possible(number)}
    assert lineages == ({1} if number > fork_round else {0})
