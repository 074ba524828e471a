"""All back ends give the same bits, whatever the input; and the codec keeps its promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec
from atoll.kernels.hash_tree import LEAF_BYTES, leaf_digest, leaf_digests
from atoll.kernels.initial import fill_normal
from atoll.kernels.outer_step import nesterov_step

INT8 = codec("int8")
FASTER = [choice for choice in choices() if choice != "reference"]
SMALLEST, LARGEST = float(np.float32(2.0**-126)), float(np.finfo(np.float32).max)
WHOLE_RANGE = st.floats(width=32, allow_nan=False, allow_infinity=False)
NARROW = st.floats(-3, 3, width=32)
BLOCKY_SIZES = st.sampled_from([0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 700])
common = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def vectors(draw, sizes=BLOCKY_SIZES):
    """Float32 vectors of awkward lengths: noise at some magnitude, sprinkled with special values."""
    num = draw(sizes)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    magnitude = 2.0 ** draw(st.integers(-149, 120))
    with np.errstate(over="ignore", under="ignore"):
        values = (random.standard_normal(num) * magnitude).astype(np.float32)
        if draw(st.booleans()):
            values *= np.exp2(random.integers(-140, 5, num)).astype(np.float32)
    special = draw(st.lists(st.tuples(st.integers(0, max(num - 1, 0)), WHOLE_RANGE), max_size=4 if num else 0))
    for index, value in special:
        values[index] = value
    if draw(st.booleans()):
        values[random.random(num) < 0.5] = draw(st.sampled_from([0.0, -0.0, SMALLEST, 1e-45]))
    return values


def encode(values):
    data = np.full(INT8.nbytes(values.size), 0xAA, np.uint8)
    INT8.encode(values, data)
    return data


def decode(data, num):
    out = np.empty(num, np.float32)
    INT8.decode(data, out)
    return out


def on_each(action):
    """Results of `action` on the reference, then on every other back end, by name."""
    results = {}
    for choice in ("reference", *FASTER):
        with using(load(choice)):
            results[choice] = [array.tobytes() for array in action()]
    return results


def assert_all_equal(results):
    differing = [choice for choice, result in results.items() if result != results["reference"]]
    assert not differing


@common
@given(vectors())
@example(np.array([LARGEST, -LARGEST, 1e-45], np.float32))
@example(np.array([127 * SMALLEST * 0.998, -SMALLEST], np.float32))
def test_encodings_have_the_same_bits_and_pass_the_check(values):
    assert_all_equal(on_each(lambda: [encode(values)]))
    for choice in choices():
        with using(load(choice)):
            INT8.check(encode(values), values.size)


@common
@given(vectors(), st.lists(WHOLE_RANGE, min_size=0, max_size=4), st.booleans())
def test_accumulating_has_the_same_bits_and_the_order_of_single_steps(values, weights, reverse):
    order = -1 if reverse else 1
    datas = [encode(np.roll(values, i)[::order]) for i in range(len(weights))]

    def accumulate():
        many, steps = np.full(values.size, 9, np.float32), np.zeros(values.size, np.float32)
        INT8.accumulate_many(datas, weights, many)
        for data, weight in zip(datas, weights, strict=True):
            INT8.accumulate(data, weight, steps)
        assert many.tobytes() == steps.tobytes() or np.isnan(many).any()
        return np.nan_to_num(many), decode(encode(values), values.size)

    assert_all_equal(on_each(accumulate))


@common
@given(st.binary(max_size=600), BLOCKY_SIZES)
def test_checks_of_arbitrary_bytes_reach_the_same_verdict(noise, num):
    data = np.resize(np.frombuffer(noise or b"\0", np.uint8), INT8.nbytes(num)).copy()
    data[1 : 2 * -(-num // 256) : 2] &= 0x7F  # positive scales, so that codes are looked at
    verdicts = set()
    for choice in choices():
        with using(load(choice)):
            try:
                INT8.check(data, num)
                verdicts.add("valid")
                assert np.isfinite(decode(data, num)).all()
            except InvalidEncoding as refusal:
                verdicts.add(str(refusal))
    assert len(verdicts) == 1


@common
@given(vectors())
def test_inner_products_have_the_same_bits_and_are_those_of_the_decoded_values(values):
    datas = [encode(values), encode(np.roll(values, 1)[::-1])]
    dots = on_each(lambda: [np.float64(INT8.dot(*datas, values.size))])
    assert_all_equal(dots)
    first, second = (decode(data, values.size).astype(np.float64) for data in datas)
    assert np.frombuffer(dots["reference"][0]) == math.fsum((first * second).tolist())


@common
@given(vectors())
def test_squared_norms_have_the_same_bits_and_are_those_of_the_decoded_values(values):
    data = encode(values)
    norms = on_each(lambda: [np.float64(INT8.squared_norm(data, values.size))])
    assert_all_equal(norms)
    decoded = decode(data, values.size).astype(np.float64)
    assert np.frombuffer(norms["reference"][0]) == math.fsum((decoded * decoded).tolist())


@common
@given(vectors(st.sampled_from([0, 1, 300, 4095, 4096, 4097, 9000])))
def test_the_float32_norm_is_the_sum_of_exact_squares_in_lanes(values):
    data, lanes = values.astype("<f4").tobytes(), [0.0] * 4096
    for i, value in enumerate(values.tolist()):
        lanes[i % 4096] += value * value
    assert codec("float32").squared_norm(data, values.size) == math.fsum(lanes)


@common
@given(vectors(), vectors(), NARROW, st.floats(0, 1, width=32))
def test_outer_steps_have_the_same_bits(anchor, mean, lr, beta):
    mean = np.resize(mean, anchor.size)

    def step():
        state = anchor.copy(), anchor[::-1].copy()
        with np.errstate(all="ignore"):
            nesterov_step(*state, mean, lr, beta)
        return [np.nan_to_num(array) for array in state]

    assert_all_equal(on_each(step))


@common
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**70), st.integers(0, 300), st.floats(0, 1e30))
def test_initial_values_have_the_same_bits(key, start, num, std):
    def fill():
        out = np.empty(num, np.float32)
        fill_normal(out, key, start % 2**63, std)
        return [out]

    assert_all_equal(on_each(fill))


@common
@given(vectors())
def test_the_error_is_at_most_half_a_step_of_the_own_block(values):
    data = encode(values)
    decoded = decode(data, values.size)
    scales = (data[: 2 * -(-values.size // 256)].view("<u2").astype(np.uint32) << 16).view(np.float32)
    step = np.repeat(scales.astype(np.float64), 256)[: values.size]
    # A block without a scale loses at most what has none: 127 · 2⁻¹²⁶. The reciprocal's rounding adds a 2⁻¹⁵th.
    allowed = np.where(step > 0, step / 2 * (1 + 2**-14), 127 * SMALLEST)
    assert (np.abs(decoded.astype(np.float64) - values) <= allowed).all()


@common
@given(vectors())
def test_encoding_what_was_decoded_changes_codes_by_nothing(values):
    once = decode(encode(values), values.size)
    twice = decode(encode(once), values.size)
    largest = np.abs(values).max(initial=0.0)
    assert np.abs(twice.astype(np.float64) - once).max(initial=0.0) <= largest / 127 * 0.51 + 127 * SMALLEST


@common
@given(vectors(st.integers(1, 700)), st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 699))
def test_every_back_end_names_the_same_non_finite_value(values, bad, index):
    values[index % values.size] = bad
    for choice in choices():
        with using(load(choice)), pytest.raises(NonFiniteError, match=f"value {index % values.size} of"):
            encode(values)


@common
@given(vectors(st.integers(1, 600)), st.integers(1, 5), st.integers(0, 3))
def test_views_encode_like_their_copies(values, step, offset):
    view = values[offset::step][::-1]
    assert encode(view).tobytes() == encode(view.copy()).tobytes()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2 * LEAF_BYTES), max_size=4))
def test_leaves_do_not_depend_on_how_the_bytes_are_divided(sizes):
    whole = bytes(sum(sizes)) if not sizes else np.resize(np.arange(251, dtype=np.uint8), sum(sizes)).tobytes()
    ends = np.cumsum(sizes, dtype=int)
    buffers = [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    assert leaf_digests(buffers) == [leaf_digest(whole[i : i + LEAF_BYTES]) for i in range(0, len(whole), LEAF_BYTES)]
