"""CHN-07: a contribution that fails every time ends the node with its reason, and nothing else does."""

from __future__ import annotations

import pytest

from atoll.node.failures import MAX_FAILURES, Failures


def test_a_contribution_that_is_never_finite_is_given_up_after_some_tries():
    """QNT-10: there is no loss scale to halve for ever, and no work goes on that never counts."""
    failures = Failures()
    for _ in range(MAX_FAILURES - 1):
        failures.withheld("value 0 is nan")
    assert not failures.is_too_many
    failures.withheld("value 0 is nan")
    assert failures.is_too_many
    assert failures.why == "value 0 is nan"


def test_a_contribution_that_owners_refuse_in_every_round_is_given_up():
    failures = Failures()
    for _ in range(MAX_FAILURES):
        assert not failures.is_too_many
        failures.refused("invalid encoding")
        failures.refused("invalid encoding")  # by several owners in one round
        failures.committed(counted=False)
    assert failures.is_too_many


def test_one_that_counts_forgives_what_was_before():
    failures = Failures()
    for _ in range(3 * MAX_FAILURES):
        failures.withheld("value 0 is nan")
        failures.committed(counted=True)
    assert not failures.is_too_many


@pytest.mark.parametrize("why", [None, "too slow", "connection lost", "no contact", "dead"])
def test_missed_rounds_and_a_bad_link_are_no_failures_of_the_contribution(why):
    failures = Failures()
    for _ in range(3 * MAX_FAILURES):
        if why is not None:
            failures.refused(why)
        failures.committed(counted=False)
    assert not failures.is_too_many


def test_a_refusal_by_one_owner_does_not_outlive_its_round():
    failures = Failures()
    failures.refused("invalid encoding")
    failures.committed(counted=True)
    for _ in range(MAX_FAILURES):
        failures.committed(counted=False)
    assert failures.num_failures == 0
