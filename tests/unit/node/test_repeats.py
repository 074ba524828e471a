"""A trouble that lasts is said once, and then ever more rarely."""

from __future__ import annotations

from atoll.node.repeats import FIRST_PAUSE_S, Repeats


def said(repeats: Repeats, cause: str, every_s: float, until_s: float) -> dict[float, int]:
    """When it was said, and how often it had happened since the last time, if it happens every so often."""
    times = [every_s * index for index in range(int(until_s / every_s) + 1)]
    return {now_s: count for now_s in times if (count := repeats.note(cause, now_s)) is not None}


def test_the_first_time_is_said_at_once_and_the_pauses_double():
    pause = FIRST_PAUSE_S
    assert said(Repeats(), "no quorum", pause / 4, 16 * pause) == {
        0: 0,
        pause: 4,
        3 * pause: 8,
        7 * pause: 16,
        15 * pause: 32,
    }


def test_each_cause_is_news_by_itself_and_all_are_once_the_trouble_is_over():
    repeats = Repeats()
    assert repeats.note("no quorum", 0.0) == 0
    assert repeats.note("no commit", 1.0) == 0
    assert repeats.note("no quorum", 2.0) is None
    repeats.forget()
    assert repeats.note("no quorum", 3.0) == 0


def test_causes_without_end_take_no_memory():
    repeats = Repeats()
    for number in range(10_000):
        assert repeats.note(f"cause {number}", 0.0) == 0
    assert len(repeats._causes) <= 256
