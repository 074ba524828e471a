"""What a node says of itself when others are missing, and while it is new."""

from __future__ import annotations

import pytest

from atoll.node.reasons import EXIT_DEGRADED, Reason, State, explain, is_ready
from atoll.node.situation import Facts, situation
from atoll.protocol.round_machine import Phase


def facts(num_others: int, **changes: object) -> Facts:
    given = {"is_member": True, "roster_size": 5, "quorum_size": 3, "min_peers": 1, "has_started": True, **changes}
    return Facts(round=7, phase=Phase.TRAINING, num_others=num_others, **given)  # type: ignore[arg-type]


def test_with_a_quorum_it_trains_and_says_nothing_more():
    assert situation(facts(2)).reason is None


def test_without_a_quorum_it_says_how_many_of_how_many_are_here_and_that_it_trains_on():
    said = situation(facts(1, is_provisional=True))
    assert (said.state, said.reason) == (State.TRAINING, Reason.PROVISIONAL)
    sentence = explain(said.state, said.reason, said.values)
    assert sentence.sentence == "2 of 5 members are here, 3 commit a round; you train on provisionally."
    assert "At most one round of work is carried over." in sentence.fix


def test_enough_members_without_the_tie_breaker_are_no_quorum_either():
    assert situation(facts(1, roster_size=4, quorum_size=2, is_provisional=True)).reason is Reason.PROVISIONAL


def test_without_anybody_it_is_alone():
    assert situation(facts(0, is_provisional=True)).reason is Reason.ALONE


@pytest.mark.parametrize(("has_met", "reason"), [(True, Reason.ALONE), (False, Reason.SEEDS_UNREACHABLE)])
def test_who_has_met_others_is_alone_without_them_and_who_has_not_looks_for_its_seeds(has_met, reason):
    assert situation(facts(0, is_provisional=True, num_seeds=2, has_met=has_met)).reason is reason


@pytest.mark.parametrize("num_others", [0, 1, 2])
def test_below_the_specs_number_of_peers_it_waits(num_others):
    said = situation(facts(num_others, min_peers=4, is_provisional=True))
    assert (said.state, said.reason) == (State.WAITING, Reason.WAITING_MIN_PEERS)
    assert said.values == {"num_peers": num_others + 1, "min_peers": 4}


def test_who_was_ejected_says_so_with_the_remedy_whatever_else_is_the_case():
    said = situation(facts(0, is_member=False, is_ejected=True, is_paused=True, is_syncing=True))
    assert (said.state, said.reason) == (State.EJECTED, Reason.MISCONDUCT_PROVEN)
    explained = explain(said.state, said.reason, said.values)
    assert "Misconduct of this node was proven" in explained.sentence
    assert "ask the operator to let in another identity" in explained.fix
    assert (explained.severity, explained.exit_code) == ("error", EXIT_DEGRADED)
    assert not is_ready(said.state, said.reason)


def test_a_member_on_probation_says_from_when_on_it_counts():
    said = situation(facts(4, counts_from=9))
    assert (said.state, said.reason) == (State.TRAINING, Reason.ON_PROBATION)
    sentence = explain(said.state, said.reason, said.values)
    assert sentence.sentence == "Training for round 7; this node is new here, and its work counts from round 9 on."
    assert sentence.is_normal
