"""Which delegate a follower goes to, whom it speaks to, and from whom it gets the result."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from atoll.protocol.groups import choice, circle
from atoll.protocol.groups.choice import Candidate, Probe, best, worth_probing
from atoll.protocol.groups.hand_down import Crew, sources
from atoll.protocol.messages import Group, Heartbeat
from atoll.protocol.peers import PeerInfo

from .conftest import DIGEST, PEERS, A, B, C, D, E, plan_of


def test_the_fastest_line_is_chosen_among_equal_groups() -> None:
    candidates = [Candidate(D, 2), Candidate(E, 2)]
    assert best(candidates, {D: Probe(0.01, 1e6), E: Probe(0.2, 3e6)}) == E


def test_a_full_house_behind_a_fast_line_is_worth_less_than_an_empty_one_behind_a_slower() -> None:
    candidates = [Candidate(D, 9), Candidate(E, 1)]
    assert best(candidates, {D: Probe(0.01, 3e6), E: Probe(0.01, 1e6)}) == E


def test_of_equal_rates_the_nearer_is_chosen_and_of_none_measured_none() -> None:
    candidates = [Candidate(D, 1), Candidate(E, 1)]
    assert best(candidates, {D: Probe(0.2, 1e6), E: Probe(0.1, 1e6)}) == E
    assert best(candidates, {}) is None


def test_only_a_few_near_delegates_with_room_are_measured() -> None:
    candidates = [Candidate(peer, 16 if peer == A else 1, 0.1 * i) for i, peer in enumerate(PEERS)]
    for seed in range(20):
        chosen = worth_probing(candidates, 16, Random(seed))
        assert len(chosen) == choice.NUM_PROBED
        assert A not in {one.peer for one in chosen}
        assert [one.round_trip_s for one in chosen] == sorted(one.round_trip_s for one in chosen)


def test_who_has_refused_is_left_out_unless_nobody_else_is_there() -> None:
    candidates = [Candidate(D, 1), Candidate(E, 1)]
    assert [one.peer for one in choice.without(candidates, {D})] == [E]
    assert choice.without(candidates, {D, E}) == candidates


@pytest.mark.parametrize("num_followers", [30, 60, 90])
def test_followers_that_choose_one_after_another_fill_equal_groups_evenly(num_followers: int) -> None:
    """As in a swarm of equal lines: measured with a fifth of noise, groups differ by a few followers."""
    random, sizes = Random(1), dict.fromkeys(PEERS[:6], 1)
    for _ in range(num_followers):
        candidates = worth_probing([Candidate(peer, size) for peer, size in sizes.items()], 64, random)
        probes = {one.peer: Probe(0.05, random.uniform(0.8e7, 1.2e7)) for one in candidates}
        sizes[best(candidates, probes)] += 1  # type: ignore[index]
    assert max(sizes.values()) <= 1.5 * min(sizes.values())


def info(peer: str, heard_s: float | None, delegate: str | None = None) -> PeerInfo:
    group = None if delegate is None else Group(delegate=delegate, num_peers=1)  # type: ignore[arg-type]
    heartbeat = Heartbeat(round=0, state_hash=DIGEST, phase="training", group=group)
    return PeerInfo(peer, 0.0, heartbeat, heard_s)  # type: ignore[arg-type]


def test_a_delegate_speaks_to_the_roster_and_to_those_who_speak_to_it() -> None:
    peers = {A: info(A, 99.0), B: info(B, 1.0), C: info(C, None)}
    assert circle.of_delegate((D, E), peers, now=100.0, timeout_s=10.0) == (D, E, A)


def test_a_follower_speaks_to_its_group_only() -> None:
    assert circle.of_follower(D, (A, B)) == (D, A, B)


def test_a_peer_without_a_group_speaks_to_a_few_delegates_and_in_time_to_all() -> None:
    roster = [f"peer {number}" for number in range(50)]
    stated = {A: info(A, None, delegate=A), B: info(B, None, delegate=A)}
    turns = [circle.of_seeker(roster, stated, turn) for turn in range(10)]  # type: ignore[arg-type]
    assert {len(turn) for turn in turns} == {circle.NUM_ASKED}
    assert {peer for turn in turns for peer in turn} == {*roster, A}


# --- the way down -----------------------------------------------------------------------------------------------------


def crew(num_dialable: int, num_others: int = 0) -> Crew:
    names = [f"peer {number}" for number in range(num_dialable + num_others)]
    return Crew(D, tuple(names[:num_dialable]), tuple(names[num_dialable:]))  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_dialable", "num_others"), [(1, 0), (3, 0), (15, 0), (10, 5), (2, 9)])
def test_a_delegate_gives_each_span_away_once_and_every_follower_about_two_vectors(num_dialable: int, num_others: int):
    group, num_spans = crew(num_dialable, num_others), 64
    peers = (*group.dialable, *group.others)
    given = Counter(group.line(span, peer)[0] for span in range(num_spans) for peer in peers)
    assert given[D] == num_spans
    most = 2 + -(-num_others // num_dialable)
    assert max(given[peer] for peer in group.dialable) <= most * num_spans if len(peers) > 1 else True
    assert not any(given[peer] for peer in group.others)


def test_every_line_leads_to_the_delegate_in_few_steps_and_never_through_oneself() -> None:
    group = crew(15)
    for span in range(30):
        for peer in group.dialable:
            line = group.line(span, peer)
            assert line[-1] == D
            assert peer not in line
            assert len(set(line)) == len(line) <= 5


def test_where_nobody_can_be_dialled_or_one_is_new_the_delegate_is_asked() -> None:
    assert crew(0, 3).line(0, "peer 1") == (D,)  # type: ignore[arg-type]
    assert crew(3).line(0, A) == (D,)


def test_a_parent_that_is_gone_is_passed_over_and_impatience_asks_all() -> None:
    assert sources((A, B, D), gone={A}, is_patient=True) == (B,)
    assert sources((A, B, D), gone={A}, is_patient=False) == (B, D)
    assert sources((A, D), gone={A, D}, is_patient=True) == (D,)


def test_who_has_owned_a_span_of_the_groups_plan_can_be_dialled() -> None:
    plan = plan_of([(D, 1, DIGEST), (A, 1, DIGEST), (B, 1, DIGEST)], [(3, D), (3, B)])
    assert Crew.of(plan) == Crew(D, (B,), (A,))
