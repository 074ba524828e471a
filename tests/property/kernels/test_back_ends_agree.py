"""All back ends give the same bits, whatever the input; and the codec keeps its promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import CODECS, InvalidEncoding, NonFiniteError, codec
from atoll.kernels.formats import FORMATS, BlockFormat, ValueFormat
from atoll.kernels.hash_tree import LEAF_BYTES, leaf_digest, leaf_digests
from atoll.kernels.initial import fill_normal
from atoll.kernels.outer_step import nesterov_step

FASTER = [choice for choice in choices() if choice != "reference"]
SMALLEST, LARGEST = float(np.float32(2.0**-126)), float(np.finfo(np.float32).max)
WHOLE_RANGE = st.floats(width=32, allow_nan=False, allow_infinity=False)
NARROW = st.floats(-3, 3, width=32)
BLOCKY_SIZES = st.sampled_from([0, 1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 700])
common = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
each = settings(common, max_examples=25)
each_codec = pytest.mark.parametrize("name", CODECS)


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


def encode(values, name="int8"):
    data = np.full(codec(name).nbytes(values.size), 0xAA, np.uint8)
    codec(name).encode(values, data)
    return data


def decode(data, num, name="int8"):
    out = np.empty(num, np.float32)
    codec(name).decode(data, out)
    return out


def encodable(name, values):
    """The values, cut to what the 16-bit formats can hold."""
    limit = {"float16": 65_504.0, "bfloat16": 3.38e38}.get(name, LARGEST)
    return values.clip(-limit, limit).astype(np.float32)


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


@each_codec
@each
@given(vectors())
@example(np.array([LARGEST, -LARGEST, 1e-45], np.float32))
@example(np.array([127 * SMALLEST * 0.998, -SMALLEST], np.float32))
def test_encodings_have_the_same_bits_and_pass_the_check(name, values):
    values = encodable(name, values)
    assert_all_equal(on_each(lambda: [encode(values, name)]))
    for choice in choices():
        with using(load(choice)):
            codec(name).check(encode(values, name), values.size)


@each_codec
@each
@given(vectors(), st.lists(WHOLE_RANGE, min_size=0, max_size=4), st.booleans())
def test_accumulating_has_the_same_bits_and_the_order_of_single_steps(name, values, weights, reverse):
    order = -1 if reverse else 1
    values = encodable(name, values)
    datas = [encode(np.roll(values, i)[::order], name) for i in range(len(weights))]

    def accumulate():
        many, steps = np.full(values.size, 9, np.float32), np.zeros(values.size, np.float32)
        codec(name).accumulate_many(datas, weights, many)
        for data, weight in zip(datas, weights, strict=True):
            codec(name).accumulate(data, weight, steps)
        assert many.tobytes() == steps.tobytes() or np.isnan(many).any()
        return np.nan_to_num(many), decode(encode(values, name), values.size, name)

    assert_all_equal(on_each(accumulate))


def somewhat_plausible(name, noise, num):
    """Arbitrary bytes, of which those of the scales are positive, so that what comes after them is looked at."""
    data = np.resize(np.frombuffer(noise or b"\0", np.uint8), codec(name).nbytes(num)).copy()
    layout = FORMATS.get(name)
    if isinstance(layout, BlockFormat):
        data[1 : layout.scale_bytes(num) : 2] &= 0x7F
    return data


@each_codec
@each
@given(st.binary(max_size=600), BLOCKY_SIZES)
def test_checks_of_arbitrary_bytes_reach_the_same_verdict(name, noise, num):
    data, verdicts = somewhat_plausible(name, noise, num), set()
    for choice in choices():
        with using(load(choice)):
            try:
                codec(name).check(data, num)
                verdicts.add("valid")
                assert np.isfinite(decode(data, num, name)).all()
            except InvalidEncoding as refusal:
                verdicts.add(str(refusal))
    assert len(verdicts) == 1


@each_codec
@each
@given(vectors(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=2))
def test_a_changed_byte_gets_the_same_verdict_everywhere(name, values, changes):
    data, verdicts = encode(encodable(name, values), name), set()
    for place, byte in changes if data.size else []:
        data[place % data.size] = byte
    for choice in choices():
        with using(load(choice)):
            try:
                codec(name).check(data, values.size)
                decoded = decode(data, values.size, name)
                assert np.isfinite(decoded).all()
                verdicts.add(decoded.tobytes())
            except InvalidEncoding as refusal:
                verdicts.add(str(refusal))
    assert len(verdicts) == 1


def pair_of(name, values):
    values = encodable(name, values)
    return encode(values, name), encode(np.roll(values, 1)[::-1], name)


@each_codec
@each
@given(vectors())
def test_inner_products_have_the_same_bits_and_are_those_of_the_decoded_values(name, values):
    pair = pair_of(name, values)
    dots = on_each(lambda: [np.float64(codec(name).dot(*pair, values.size))])
    norms = on_each(lambda: [np.float64(codec(name).squared_norm(pair[0], values.size))])
    assert_all_equal(dots)
    assert_all_equal(norms)
    first, second = (decode(data, values.size, name).astype(np.float64) for data in pair)
    # Fewer values than lanes: the terms of value formats are sums of one product each.
    assert np.frombuffer(dots["reference"][0]) == math.fsum((first * second).tolist())
    assert np.frombuffer(norms["reference"][0]) == math.fsum((first * first).tolist())


@each_codec
@each
@given(vectors(st.integers(1, 700)), st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 699))
def test_every_back_end_names_the_same_non_finite_value(name, values, bad, index):
    values = encodable(name, values)
    values[index % values.size] = bad
    for choice in choices():
        with using(load(choice)), pytest.raises(NonFiniteError, match=f"value {index % values.size} of"):
            encode(values, name)


@pytest.mark.parametrize("name", [n for n, layout in FORMATS.items() if isinstance(layout, ValueFormat)])
@each
@given(vectors(st.sampled_from([0, 1, 300, 4095, 4096, 4097, 9000])))
def test_norms_of_formats_without_blocks_are_sums_of_exact_squares_in_lanes(name, values):
    data, lanes = encode(encodable(name, values), name), [0.0] * 4096
    for i, value in enumerate(decode(data, values.size, name).tolist()):
        lanes[i % 4096] += value * value
    norms = on_each(lambda: [np.float64(codec(name).squared_norm(data, values.size))])
    assert_all_equal(norms)
    assert np.frombuffer(norms["reference"][0]) == math.fsum(lanes)


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


@pytest.mark.parametrize("name", ["int8", "int4"])
@common
@given(vectors())
def test_the_error_is_at_most_half_a_step_of_the_own_block(name, values):
    layout, data = FORMATS[name], encode(values, name)
    decoded, top = decode(data, values.size, name), max(layout.levels)
    scales = (data[: layout.scale_bytes(values.size)].view("<u2").astype(np.uint32) << 16).view(np.float32)
    step = np.repeat(scales.astype(np.float64), layout.block)[: values.size]
    # A block without a scale loses at most what has none: top · 2⁻¹²⁶. The reciprocal's rounding adds a 2⁻¹⁵th.
    allowed = np.where(step > 0, step / 2 * (1 + 2**-14), top * SMALLEST)
    assert (np.abs(decoded.astype(np.float64) - values) <= allowed).all()


@common
@given(vectors())
def test_e3m0_takes_the_nearest_level_of_its_block(values):
    layout, data = FORMATS["e3m0"], encode(values, "e3m0")
    decoded = decode(data, values.size, "e3m0").astype(np.float64)
    scales = (data[: layout.scale_bytes(values.size)].view("<u2").astype(np.uint32) << 16).view(np.float32)
    levels = np.repeat(scales.astype(np.float64), 256)[: values.size, None] * np.array(sorted(set(layout.levels)))
    nearest = np.abs(levels - values[:, None]).min(axis=1)
    assert (np.abs(decoded - values) <= nearest + np.abs(values) * 2.0**-20).all()


@common
@given(vectors(st.sampled_from([1, 2, 3, 255, 256, 700])))
def test_stat2_takes_from_a_vector_as_much_as_it_leaves(values):
    """Its magnitudes are means, so that what is left is at right angles to what is sent: error feedback converges."""
    values[np.abs(values) > 1e37] = 1.0  # squares of larger ones, and of very small ones, have too few digits
    values[np.abs(values) < 1e-30] = 0.0
    exact, sent = values.astype(np.float64), decode(encode(values, "stat2"), values.size, "stat2").astype(np.float64)
    left = exact - sent
    assert left @ left == pytest.approx(exact @ exact - sent @ sent, abs=0.01 * (exact @ exact))


@common
@given(vectors())
def test_encoding_what_was_decoded_changes_codes_by_nothing(values):
    once = decode(encode(values), values.size)
    twice = decode(encode(once), values.size)
    largest = np.abs(values).max(initial=0.0)
    assert np.abs(twice.astype(np.float64) - once).max(initial=0.0) <= largest / 127 * 0.51 + 127 * SMALLEST


@each_codec
@each
@given(vectors(st.integers(1, 600)), st.integers(1, 5), st.integers(0, 3))
def test_views_encode_like_their_copies(name, values, step, offset):
    view = encodable(name, values)[offset::step][::-1]
    assert encode(view, name).tobytes() == encode(view.copy(), name).tobytes()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2 * LEAF_BYTES), max_size=4))
def test_leaves_do_not_depend_on_how_the_bytes_are_divided(sizes):
    whole = bytes(sum(sizes)) if not sizes else np.resize(np.arange(251, dtype=np.uint8), sum(sizes)).tobytes()
    ends = np.cumsum(sizes, dtype=int)
    buffers = [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    assert leaf_digests(buffers) == [leaf_digest(whole[i : i + LEAF_BYTES]) for i in range(0, len(whole), LEAF_BYTES)]
