"""What is remembered of attempts to reach a peer directly."""

from __future__ import annotations

from atoll.protocol.identity import PeerId
from atoll.protocol.swarm.direct import outcomes
from atoll.protocol.swarm.direct.outcomes import FIRST_PAUSE_S, MAX_PAUSE_S, Outcomes

A = PeerId("A")


def test_a_peer_that_nobody_tried_is_dialled() -> None:
    made = Outcomes()
    assert made.way(A, 0.0, can_be_dialled=True) == "out"
    assert not made.is_proven(A)
    assert made.reason(A) == ""


def test_after_one_way_the_other_is_tried_at_once_and_after_both_there_is_a_pause() -> None:
    made = Outcomes()
    made.fail(A, "out", "refused", 0.0, can_be_dialled=True)
    assert made.way(A, 0.0, can_be_dialled=True) == "in"
    made.fail(A, "in", "silent", 0.0, can_be_dialled=True)
    assert made.way(A, FIRST_PAUSE_S - 0.1, can_be_dialled=True) is None
    assert made.way(A, FIRST_PAUSE_S, can_be_dialled=True) == "out"
    assert made.reason(A) == "silent"


def test_who_cannot_be_dialled_pauses_after_one_way() -> None:
    made = Outcomes()
    made.fail(A, "out", "refused", 0.0, can_be_dialled=False)
    assert made.way(A, 1.0, can_be_dialled=False) is None
    assert made.way(A, FIRST_PAUSE_S, can_be_dialled=False) == "out"


def test_pauses_double_up_to_their_limit_and_a_success_ends_them() -> None:
    made, now_s, pauses = Outcomes(), 0.0, list[float]()
    for _ in range(10):
        made.fail(A, "out", "refused", now_s, can_be_dialled=False)
        pauses.append(made.retry_in_s(A, now_s))
        now_s += pauses[-1]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    made.succeed(A, "in")
    assert made.is_proven(A)
    assert made.way(A, now_s, can_be_dialled=True) == "in", "the way that worked comes first"


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(outcomes, "MAX_PEERS", 3)
    made = Outcomes()
    for number in range(10):
        made.fail(PeerId(str(number)), "out", "refused", 0.0, can_be_dialled=False)
    assert len(made._of) == 3
