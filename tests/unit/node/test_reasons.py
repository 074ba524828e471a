"""Every state and reason has a sentence that a person can read, in the style of the dashboard's rules."""

from __future__ import annotations

import re

import pytest

from atoll.node.figures import about_text, bytes_text, count_text, duration_text, in_about_text, short_hash
from atoll.node.reasons import REASONS, STATES, Reason, State, explain, is_ready

VALUES = {
    "measured": "TCP port 4040 of your router (203.0.113.5) does not lead here, as 3 peers measured",
    "remedy": "To fix: forward TCP port 4040 to this machine in the router.",
    "num_seeds": 3,
    "causes": "refused, timed out, timed out",
    "round": 413,
    "skew": "1 min 10 s ahead of",
    "signer": "9fKq2",
    "wanted": 1,
    "found": 2,
    "needed": "22.4 GiB",
    "resource": "memory",
    "available": "16.0 GiB",
    "num_donors": 4,
    "percent": 38,
    "num_peers": 1,
    "num_members": 5,
    "num_needed": 3,
    "counts_from": 417,
    "min_peers": 2,
    "peer": "marl",
    "behind_s": 6,
    "rule": "its norm was 3.4 × the median, the limit is 3",
    "device": "GPU 2",
    "temperature": 83,
    "resume_below": 75,
    "limit_w": 300,
    "quota": "6.00 TB",
    "slept": "8 h",
    "what": "The trainer",
    "num_failures": 5,
    "why": "out of memory",
    "num_others": 6,
}


def test_states_and_reasons_are_all_described() -> None:
    assert set(STATES) == set(State)
    assert set(REASONS) == set(Reason)


@pytest.mark.parametrize("eta_s", [None, 32.0])
@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_is_one_short_sentence_without_holes(reason: Reason, eta_s: float | None) -> None:
    said = explain(State.WAITING, reason, VALUES, eta_s)
    assert said.sentence.endswith(".")
    assert "{" not in said.sentence + said.fix
    assert "–" not in said.sentence, "a value is missing in this test or misspelt in the template"
    assert len(said.sentence) <= 110
    assert not re.search(r"!|\b(please|oops|successfully|epoch|worker|client|soon)\b", said.sentence + said.fix)


@pytest.mark.parametrize("reason", [reason for reason in Reason if REASONS[reason].severity == "error"])
def test_what_a_person_must_mend_comes_with_a_fix(reason: Reason) -> None:
    assert REASONS[reason].fix.startswith("To fix: ")
    assert not REASONS[reason].is_normal


@pytest.mark.parametrize("state", list(State))
def test_a_state_has_a_sentence_with_and_without_an_end(state: State) -> None:
    for eta_s in (None, 5.0):
        said = explain(state, None, VALUES, eta_s)
        assert said.sentence.endswith(".")
        assert "{" not in said.sentence


def test_the_reader_that_counts_down_gets_a_hole_and_the_stale_one_no_time() -> None:
    said = explain(State.EXCHANGING, None, {"round": 412, "num_others": 6}, 32.2)
    assert said.sentence == "Averaging round 412 with 6 other peers; new weights in about 32 s."
    assert said.live_sentence == "Averaging round 412 with 6 other peers; new weights {eta}."
    assert said.timeless_sentence == "Averaging round 412 with 6 other peers."


def test_a_missing_value_is_shown_as_unknown_and_never_raises() -> None:
    assert explain(State.WAITING, Reason.STRAGGLER).sentence.startswith("Waiting for –, – s behind")


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        (State.TRAINING, None, 0),
        (State.WAITING, Reason.WAITING_MIN_PEERS, 3),
        (State.PAUSED, Reason.USER_PAUSED, 4),
        (State.DEGRADED, Reason.DEVICE_LOST, 5),
        (State.TRAINING, Reason.ALONE, 5),
        (State.STOPPED, None, 6),
        (State.FAILED, None, 6),
    ],
)
def test_the_exit_code_says_the_same_as_the_sentence(state: State, reason: Reason | None, code: int) -> None:
    assert explain(state, reason, VALUES).exit_code == code


def test_ready_means_contributing_or_rightly_waiting() -> None:
    assert is_ready(State.TRAINING, None)
    assert is_ready(State.WAITING, Reason.WAITING_ROUND_BOUNDARY)
    assert not is_ready(State.CONNECTING, Reason.SEEDS_UNREACHABLE)
    assert not is_ready(State.STARTING, None)
    assert not is_ready(State.FAILED, None)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (bytes_text(1_090_000_000), "1.09 GB"),
        (bytes_text(0), "0 B"),
        (bytes_text(None), "–"),
        (bytes_text(float("nan")), "–"),
        (count_text(81_200_000), "81.2 M"),
        (count_text(999), "999"),
        (count_text(48_300), "48.3 k"),
        (duration_text(2.14), "2.1 s"),
        (duration_text(46.2), "46 s"),
        (duration_text(1692), "28 min 12 s"),
        (duration_text(3 * 3600 + 300), "3 h 05 min"),
        (about_text(240), "about 4 min"),
        (about_text(2 * 3600 + 400), "about 2 h 05 min"),
        (in_about_text(0.1), "any moment"),
        (short_hash("b4d0" + "0" * 56 + "19f3"), "b4d0…19f3"),
    ],
)
def test_figures_follow_one_set_of_rules(written: str, expected: str) -> None:
    assert written == expected
