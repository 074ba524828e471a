"""What the round bar and the sentences say about time."""

from __future__ import annotations

import pytest

from atoll.node.round_clock import RoundClock


def after_one_round(train_s: float = 10.0) -> RoundClock:
    clock = RoundClock()
    clock.enter("train", 0.0)
    clock.enter("gather", train_s)
    clock.enter("reduce", train_s + 1)
    clock.enter("commit", train_s + 3)
    clock.enter("apply", train_s + 4)
    clock.finish(train_s + 5)
    return clock


def test_nothing_is_known_before_the_first_round_has_gone_a_part_of_its_way() -> None:
    clock = RoundClock()
    clock.enter("train", 0.0)
    assert clock.remaining_s(3.0, "gather") is None
    assert clock.remaining_s(3.0, "gather", 0.05) is None
    assert clock.remaining_s(3.0, "gather", 0.25) == pytest.approx(9.0)
    assert clock.remaining_s(3.0, "apply", 0.25) is None


def test_a_round_is_expected_to_take_what_the_last_one_took() -> None:
    clock = after_one_round()
    assert clock.remaining_s(20.0, "gather") == pytest.approx(10.0)
    clock.enter("train", 20.0)
    assert clock.remaining_s(24.0, "gather") == pytest.approx(6.0)
    assert clock.remaining_s(24.0, "apply") == pytest.approx(10.0)


def test_a_round_that_is_slower_than_usual_is_not_said_to_end_any_moment() -> None:
    clock = after_one_round()
    clock.enter("train", 20.0)
    assert clock.remaining_s(30.0, "gather", 0.5) == pytest.approx(5.0)
    assert clock.remaining_s(38.0, "gather", 0.9) == pytest.approx(1.8)
    clock.enter("gather", 40.0)
    assert clock.remaining_s(40.5, "apply") == pytest.approx(3.5)
