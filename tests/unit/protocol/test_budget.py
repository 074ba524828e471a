"""Steps of a round by measured speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.budget import largest_ratio, target_steps
from atoll.protocol.identity import PeerId

H, LEASE = 50, 200
SPEEDS = st.floats(1e-3, 1e6)


def steps_of(speeds: list[float], num_steps: int = H, max_steps: int = LEASE) -> list[int]:
    by_peer = {PeerId(f"peer{index}"): speed for index, speed in enumerate(speeds)}
    return [target_steps(by_peer, peer, num_steps=num_steps, max_steps=max_steps) for peer in by_peer]


def utilisation(true_speeds: list[float], steps: list[int]) -> float:
    """Tokens per second of the round, over what all would process if none ever waited."""
    duration_s = max(number / speed for number, speed in zip(steps, true_speeds, strict=True))
    return sum(steps) / duration_s / sum(true_speeds)


def test_speeds_of_one_two_four_and_six_finish_together():
    steps = steps_of([1.0, 2.0, 4.0, 6.0])
    assert steps == [15, 31, 62, 92]
    assert sum(steps) == pytest.approx(4 * H, abs=2)  # the same budget as equal peers have
    assert utilisation([1.0, 2.0, 4.0, 6.0], steps) >= 0.98
    assert utilisation([1.0, 2.0, 4.0, 6.0], [H] * 4) < 0.31  # what a fixed number would reach


@given(st.lists(st.floats(0.95, 1.05), min_size=4, max_size=4))
def test_measuring_with_five_per_cent_of_noise_still_reaches_nine_tenths(noise):
    speeds = [1.0, 2.0, 4.0, 6.0]
    steps = steps_of([speed * factor for speed, factor in zip(speeds, noise, strict=True)])
    assert utilisation(speeds, steps) >= 0.90


@given(st.lists(st.floats(0.96, 1.04), min_size=1, max_size=32))
def test_noise_among_equal_peers_changes_no_steps(speeds):
    assert set(steps_of(speeds)) == {H}


def test_without_any_measurement_everybody_takes_the_steps_of_the_spec():
    assert steps_of([0.0, 0.0, 0.0]) == [H] * 3
    assert target_steps({}, PeerId("a stranger"), num_steps=H, max_steps=LEASE) == H


def test_a_lone_peer_takes_the_steps_of_the_spec():
    assert steps_of([123.0]) == [H]


def test_a_member_that_is_unknown_is_taken_for_a_typical_one():
    assert steps_of([2.0, 2.0, 0.0, 2.0]) == [H] * 4


@given(st.lists(SPEEDS, min_size=1, max_size=32), st.integers(1, 500), st.integers(1, 8))
def test_steps_are_at_least_one_and_fit_into_the_lease(speeds, num_steps, lease_factor):
    max_steps = num_steps * lease_factor
    assert all(1 <= number <= max_steps for number in steps_of(speeds, num_steps, max_steps))


@pytest.mark.parametrize("claim", [0.0, 1e-300, 1e12, 1e300, math.inf])
@pytest.mark.parametrize("size", [3, 4, 10, 64])
def test_a_liar_shifts_the_others_steps_only_within_the_stated_bounds(claim, size):
    *honest, liar = steps_of([100.0] * (size - 1) + [claim])
    ratio = largest_ratio(H, LEASE)
    assert set(honest) == {honest[0]}
    assert math.floor(H * size / (size - 1 + ratio)) <= honest[0] <= math.ceil(H * size / (size - 1))
    assert 1 <= liar <= LEASE


@given(st.lists(SPEEDS, min_size=5, max_size=16), st.floats(1e-300, 1e300))
def test_whatever_a_liar_says_nobody_else_gets_faster_or_slower_relative_to_the_others(speeds, claim):
    """Only the length of the round moves: honest members still finish together."""
    ratio = largest_ratio(H, LEASE)
    known = sorted(speeds)
    lowest, highest = known[(len(known) - 2) // 2], known[(len(known) + 1) // 2]
    bounded = [min(max(speed, highest / ratio), lowest * ratio) for speed in speeds]  # where no bound ever bites
    steps = steps_of([*bounded, claim], num_steps=1000, max_steps=LEASE * 20)[:-1]
    free = [(n, s) for n, s in zip(steps, bounded, strict=True) if 1 < n < LEASE * 20 and n != 1000]
    paces = [number / speed for number, speed in free]
    rounding = max((1 / number for number, _ in free), default=0)
    assert not paces or max(paces) <= min(paces) * (1 + rounding) / (1 - rounding) + 1e-9
