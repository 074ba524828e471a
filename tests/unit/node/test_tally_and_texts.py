"""Small pure parts of reporting: what a node has given, and the driver's events in words."""

from __future__ import annotations

import pytest

from atoll.node.round_texts import text_of
from atoll.node.tally import Tally
from atoll.protocol.identity import PeerId
from atoll.protocol.outcomes import RoundEvent

PEER, OTHER = PeerId("12D3KooWpeer"), PeerId("12D3KooWother")


def test_a_tally_counts_what_counted_and_what_was_missed() -> None:
    tally = Tally()
    tally.add(4, [OTHER], 0, counted=False)
    tally.add(5, [PEER, OTHER], 100, counted=True)
    tally.add(6, [PEER], 50, counted=True)
    assert (tally.num_counted, tally.num_skipped, tally.tokens, tally.joined_round) == (2, 1, 150, 5)
    assert tally.num_rounds == {PEER: 2, OTHER: 2}


def test_a_tally_goes_on_after_a_restart() -> None:
    tally = Tally()
    rows = [
        {"round": 1, "outcome": "missed", "data": None},
        {"round": 2, "outcome": "committed", "data": {"tokens": 7}},
    ]
    tally.restore(rows)
    tally.add(3, [PEER], 5, counted=True)
    assert (tally.num_counted, tally.num_skipped, tally.tokens, tally.joined_round) == (2, 1, 12, 2)


def test_an_event_names_its_peer_as_people_know_it() -> None:
    event = RoundEvent("exchange.lost", 3, {"peer": PEER, "why": "reset"})
    said = text_of(event, {PEER: "anna"})
    assert said is not None
    assert said.text.startswith("round 3: anna dropped out while averaging (reset)")
    assert said.is_warning


def test_only_what_comes_at_each_attempt_while_a_trouble_lasts_has_a_cause_and_it_names_no_round() -> None:
    given_up = [text_of(RoundEvent("round.aborted", number, {"reason": "no quorum"}), {}) for number in (3, 4)]
    assert [said.text[:20] for said in given_up] == ["round 3 was given up", "round 4 was given up"]
    assert given_up[0].cause == given_up[1].cause
    other = text_of(RoundEvent("round.aborted", 4, {"reason": "no commit within 200 s"}), {})
    assert other.cause != given_up[1].cause
    assert text_of(RoundEvent("exchange.lost", 3, {"peer": PEER, "why": "reset"}), {}).cause is None


def test_a_point_of_the_round_is_no_warning() -> None:
    said = text_of(RoundEvent("round.voted", 3), {})
    assert said is not None
    assert (said.text, said.is_warning) == ("round 3: voted", False)


@pytest.mark.parametrize("point", ["peer.unreachable", "something.new"])
def test_what_nobody_needs_to_read_has_no_words(point: str) -> None:
    assert text_of(RoundEvent(point, 3, {"peer": PEER, "why": "off"}), {}) is None
