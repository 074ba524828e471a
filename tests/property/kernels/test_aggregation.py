"""Robust rules give the same bits on every back end, are the mean among few or equal, and shrug off a minority."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.aggregation import AGREEMENT, MIN_MEMBERS, RULES, aggregate
from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import codec

ROBUST = [rule for rule in RULES if rule != "mean"]
NUM = 1500


def encode(name, values):
    data = np.empty(codec(name).nbytes(values.size), np.uint8)
    codec(name).encode(values, data)
    return data


def honest(seed, num, noise=1.0):
    """``num`` vectors with a direction in common."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(NUM)
    return [(common + noise * random.standard_normal(NUM)).astype(np.float32) for _ in range(num)]


def run(rule, vectors, weights=None, name="int8"):
    out = np.empty(NUM, np.float32)
    weights = weights or [1 / len(vectors)] * len(vectors)
    left_out = aggregate(rule, codec(name), [encode(name, vector) for vector in vectors], weights, out)
    return out, left_out


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(ROBUST), st.sampled_from(["int8", "float32"]), st.integers(0, 99), st.integers(5, 8))
def test_every_back_end_gives_the_same_bits(rule, name, seed, num):
    vectors = honest(seed, num)
    vectors[0] *= -3
    weights = [1 / (num + i) for i in range(num)]
    results = set()
    for choice in (choice for choice in choices() if choice != "reference" or seed < 20):
        with using(load(choice)):
            out, left_out = run(rule, vectors, weights, name)
            results.add((out.tobytes(), left_out))
    assert len(results) == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num", range(1, MIN_MEMBERS))
def test_with_fewer_than_five_members_every_rule_is_the_mean(rule, num):
    vectors = honest(1, num)
    vectors[0] *= -5
    assert run(rule, vectors)[0].tobytes() == run("mean", vectors)[0].tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_who_weighs_nothing_has_no_influence(rule):
    vectors, weights = honest(2, 6), [0.2] * 5 + [0.0]
    others = [*vectors[:5], vectors[5] * -1000]
    assert run(rule, vectors, weights)[0].tobytes() == run(rule, others, weights)[0].tobytes()


@pytest.mark.parametrize("rule", ROBUST)
def test_equal_contributions_are_their_own_aggregate(rule):
    vector = honest(3, 1)[0]
    out, _ = run(rule, [vector] * 7)
    assert np.allclose(out, run("mean", [vector])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("num_malicious", [1, 2, 3])
@pytest.mark.parametrize("attack", ["flip", "noise", "same_noise"])
def test_agreement_leaves_out_exactly_the_minority_that_pulls_elsewhere(attack, num_malicious, noise):
    vectors = honest(4, 10, noise)
    random, same = np.random.default_rng(5), np.random.default_rng(6).standard_normal(NUM)
    for i in range(num_malicious):
        lies = {"flip": -vectors[i], "noise": random.standard_normal(NUM) * 2, "same_noise": same * 2}
        vectors[i] = lies[attack].astype(np.float32)
    out, left_out = run("agreement", vectors)
    assert [each.contribution for each in left_out] == list(range(num_malicious))
    assert all(each.value < each.limit for each in left_out)
    assert np.allclose(out, np.mean(vectors[num_malicious:], axis=0), atol=0.1 * noise)


@pytest.mark.parametrize("seed", range(5))
def test_agreement_among_honest_members_is_the_mean_bit_for_bit(seed):
    vectors = honest(seed, 8)
    out, left_out = run("agreement", vectors)
    assert not left_out
    assert out.tobytes() == run("mean", vectors)[0].tobytes()


def test_without_a_direction_in_common_nobody_is_judged():
    random = np.random.default_rng(7)
    vectors = [random.standard_normal(NUM).astype(np.float32) for _ in range(8)]
    assert run("agreement", vectors)[1] == ()
    assert 0 < AGREEMENT < 1


def test_a_trimmed_mean_is_the_mean_of_the_middle_values():
    vectors = [np.full(NUM, value, np.float32) for value in (-1000, 1, 2, 3, 1000)]
    assert np.allclose(run("trimmed_mean", vectors, name="float32")[0], 2)


def test_centred_clip_stays_near_the_honest_whatever_one_sends():
    vectors = honest(8, 9, 0.3)
    clean = run("centred_clip", vectors, name="float32")[0]
    vectors[4] = vectors[4] * np.float32(1e6)
    moved = run("centred_clip", vectors, name="float32")[0] - clean
    assert np.linalg.norm(moved) < np.linalg.norm(vectors[0]) * 0.3


def test_an_unknown_rule_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="known are mean, agreement"):
        run("krum", honest(1, 5))
