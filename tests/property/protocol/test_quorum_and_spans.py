"""Quorums always intersect; ballots never collide; spans cover every chunk exactly once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.identity import Identity
from atoll.protocol.leader import distance, next_ballot, permutation, successor
from atoll.protocol.quorum import Quorum, tolerated_faults
from atoll.protocol.spans import assign_spans, at_fault, cover, without_faulty

NAMES = [Identity.from_seed(bytes([number + 1]) * 32).peer_id for number in range(12)]
A, B = NAMES[:2]


def quorum_of(size: int, configured: int | None) -> Quorum:
    return Quorum(tuple(NAMES[:size]), tolerated_faults(size, configured), NAMES[size // 2])


@pytest.mark.parametrize("configured", [None, 0, 1, 2])
@pytest.mark.parametrize("size", range(1, 9))
def test_any_two_quorums_share_more_members_than_may_misbehave(size, configured):
    quorum = quorum_of(size, configured)
    subsets = [set(voters) for n in range(size + 1) for voters in itertools.combinations(quorum.roster, n)]
    quorums = [voters for voters in subsets if quorum.reached(voters)]
    assert all(len(first & second) > quorum.num_faults for first in quorums for second in quorums)
    assert any(len(voters) <= size - quorum.num_faults for voters in quorums)  # the honest alone are enough


@pytest.mark.parametrize("size", [2, 4, 6])
def test_with_crash_faults_exactly_one_half_of_an_even_roster_is_a_quorum(size):
    quorum = quorum_of(size, 0)
    for half in itertools.combinations(quorum.roster, size // 2):
        assert quorum.reached(half) == (quorum.tie_breaker in half)


@pytest.mark.parametrize("configured", [None, 0, 1])
@pytest.mark.parametrize("size", range(1, 9))
def test_the_fewest_with_one_member_are_a_quorum_that_nobody_in_it_can_be_left_out_of(size, configured):
    quorum = quorum_of(size, configured)
    for me in quorum.roster:
        fewest = quorum.fewest_with(me)
        groups = [{me, *others} for others in itertools.combinations(set(quorum.roster) - {me}, fewest - 1)]
        assert any(quorum.reached(group) for group in groups)
        smaller = itertools.combinations(set(quorum.roster) - {me}, max(fewest - 2, 0))
        assert fewest == 1 or not any(quorum.reached({me, *others}) for others in smaller)


def test_strangers_and_repetition_do_not_count():
    quorum = quorum_of(3, 0)
    assert not quorum.reached([NAMES[0], NAMES[0], "stranger"])


@pytest.mark.parametrize(("size", "faults"), [(1, 0), (4, 0), (5, 1), (9, 1), (10, 2), (64, 12)])
def test_by_default_a_fifth_may_misbehave(size, faults):
    assert tolerated_faults(size, None) == faults


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 1000))
def test_a_round_is_led_in_the_same_order_whatever_the_order_of_the_roster(roster, number):
    order = permutation("run", 0, 0, number, sorted(roster))
    assert order == permutation("run", 0, 0, number, sorted(roster, reverse=True))
    assert set(order) == roster


@given(st.integers(1, 12), st.integers(0, 11), st.integers(-1, 1000))
def test_ballots_are_ones_own_and_greater(size, rank, above):
    order = NAMES[:size]
    me = order[rank % size]
    ballot = next_ballot(me, order, above)
    assert above < ballot <= above + size
    assert order[ballot % size] == me


def test_the_successor_is_the_next_that_can_lead():
    assert successor(NAMES, NAMES[10], lambda peer: peer in (NAMES[2], NAMES[10])) == NAMES[2]
    assert successor(NAMES, NAMES[10], lambda peer: peer == NAMES[10]) == NAMES[10]
    assert successor(NAMES, NAMES[10], lambda _: False) is None
    assert [distance(NAMES, NAMES[10], NAMES[i]) for i in (11, 0, 10)] == [1, 2, 12]


@given(st.integers(1, 5000), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12))
def test_spans_cover_every_chunk_exactly_once(num_chunks, speeds):
    spans = assign_spans(num_chunks, dict(zip(NAMES, speeds, strict=False)))
    assert cover(spans, num_chunks)
    assert len({span.owner for span in spans}) == len(spans)


def test_spans_follow_speed():
    spans = assign_spans(100, {A: 3.0, B: 1.0})
    assert [span.num_chunks for span in spans] == [75, 25]


@pytest.mark.parametrize("speeds", [{}, {A: 0.0}, {A: -1.0}])
def test_spans_without_a_capable_owner_are_refused(speeds):
    with pytest.raises(ValueError, match="positive"):
        assign_spans(10, speeds)


def test_gaps_and_overlaps_are_no_cover():
    spans = assign_spans(10, {A: 1.0, B: 1.0})
    assert not cover(spans[1:], 10)
    assert not cover((spans[0], spans[0]), 10)
    assert not cover(spans, 11)


def test_an_owner_that_others_complain_about_is_at_fault():
    assert at_fault(frozenset({("a", "b")})) == {"b"}
    assert at_fault(frozenset({("a", "c"), ("b", "c")})) == {"c"}


def test_who_alone_complains_about_everybody_is_at_fault_itself():
    assert at_fault(frozenset({("a", "b"), ("a", "c")})) == {"a"}
    assert at_fault(frozenset({("a", "b"), ("a", "c"), ("d", "b")})) == {"b", "c"}


def test_if_everybody_is_at_fault_everybody_is_tried():
    assert without_faulty(["a", "b"], frozenset({("c", "a"), ("d", "b")})) == ["a", "b"]
