"""The outer step's arithmetic, and that a refused step changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.outer_step import nesterov_step


def arrays(*values):
    return [np.array(v, np.float32) for v in values]


def test_sgd_moves_against_the_pseudo_gradient(back_end):
    # AVG-01: from 1.0, peers that end at 0.5 have the pseudo-gradient 0.5; the new anchor is 0.5, not 1.5.
    anchor, momentum, mean = arrays([1.0], [0.0], [0.5])
    nesterov_step(anchor, momentum, mean, lr=1.0, beta=0.0)
    assert (anchor[0], momentum[0], mean[0]) == (0.5, 0.5, 0.5)


def test_two_nesterov_steps_by_hand(back_end):
    anchor, momentum, mean = arrays([8.0], [0.0], [1.0])
    nesterov_step(anchor, momentum, mean, lr=1.0, beta=0.5)
    assert (anchor[0], momentum[0]) == (6.5, 1.0)
    nesterov_step(anchor, momentum, mean, lr=1.0, beta=0.5)
    assert (anchor[0], momentum[0]) == (4.75, 1.5)


def test_products_and_sums_are_rounded_separately(back_end):
    # beta · momentum = 1 + 2⁻¹¹ + 2⁻²⁴ exactly: rounding drops the last term, a fused operation would keep it.
    anchor, momentum, mean = arrays([0.0], [1 + 2**-12], [-1 - 2**-11])
    nesterov_step(anchor, momentum, mean, lr=0.0, beta=1 + 2**-12)
    assert momentum[0] == 0


def test_subnormals_are_kept(back_end):
    anchor, momentum, mean = arrays([0.0], [2e-45], [0.0])
    nesterov_step(anchor, momentum, mean, lr=1.0, beta=1.0)
    assert momentum[0] > 0 > anchor[0]


def test_a_range_of_the_vector_may_be_done_alone(back_end):
    random = np.random.default_rng(0)
    whole = [random.standard_normal(1001).astype(np.float32) for _ in range(3)]
    ranges = [array.copy() for array in whole]
    nesterov_step(*whole, lr=0.7, beta=0.9)
    for part in (slice(0, 5), slice(5, 700), slice(700, None)):
        nesterov_step(*(array[part] for array in ranges), lr=0.7, beta=0.9)
    assert [a.tobytes() for a in whole] == [a.tobytes() for a in ranges]


@pytest.mark.parametrize(
    ("replace", "error", "message"),
    [
        ({"momentum": np.zeros(4, np.float32)}, ValueError, r"momentum must be contiguous with shape \(3,\)"),
        ({"mean": np.zeros(6, np.float32)[::2]}, ValueError, "mean must be contiguous"),
        ({"anchor": np.zeros(3)}, TypeError, "anchor must be a numpy array of float32, not ndarray of float64"),
        ({"lr": float("nan")}, ValueError, "lr and beta must be finite"),
        ({"beta": 1e39}, ValueError, "lr and beta must be finite"),
    ],
)
def test_a_refused_step_changes_nothing(back_end, replace, error, message):
    given = {name: np.ones(3, np.float32) for name in ("anchor", "momentum", "mean")} | {"lr": 0.7, "beta": 0.9}
    given |= replace
    before = {name: value.copy() for name, value in given.items() if isinstance(value, np.ndarray)}
    with pytest.raises(error, match=message):
        nesterov_step(**given)
    assert all(np.array_equal(given[name], value) for name, value in before.items())


@pytest.mark.parametrize("read_only", ["anchor", "momentum"])
def test_a_read_only_array_is_refused(read_only):
    given = {name: np.ones(3, np.float32) for name in ("anchor", "momentum", "mean")}
    given[read_only].flags.writeable = False
    with pytest.raises(ValueError, match=f"{read_only} is read-only"):
        nesterov_step(**given, lr=0.7, beta=0.9)
