"""S6: only a committed round that missed us makes a carry, and a carry is at most one round old."""

from __future__ import annotations

from atoll.kernels.carry import carry_after


def test_work_that_a_commit_includes_is_spent():
    assert carry_after("work", counted=True) is None


def test_work_that_a_commit_misses_is_carried():
    assert carry_after("work", counted=False) == "work"


def test_without_work_of_the_round_nothing_is_carried():
    assert carry_after(None, counted=False) is None
