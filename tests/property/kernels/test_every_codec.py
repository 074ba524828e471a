"""What any registered codec must keep; a new line in the registry is tested here without another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.codec import CODECS, InvalidEncoding, NonFiniteError, codec

WEIGHTS = st.lists(st.floats(-(2.0**30), 2.0**30, width=32), max_size=4)
SIZES = st.integers(0, 600)
SEEDS = st.integers(0, 2**32)
each_codec = pytest.mark.parametrize("name", CODECS)
common = settings(max_examples=30, deadline=None)


def values_of(name, seed, num):
    random, reach = np.random.default_rng(seed), 3 if name == "float16" else 20
    return (random.standard_normal(num) * 10.0 ** random.integers(-reach, reach)).astype(np.float32)


def encode(name, values):
    data = np.full(codec(name).nbytes(values.size), 0xAA, np.uint8)
    codec(name).encode(values, data)
    return data


@each_codec
@common
@given(SEEDS, SIZES)
def test_what_is_encoded_passes_the_check_and_decodes_to_something_near(name, seed, num):
    values = values_of(name, seed, num)
    data, out = encode(name, values), np.full(num, np.nan, np.float32)
    codec(name).check(data, num)
    codec(name).decode(data, out)
    exact = values.astype(np.float64)
    assert np.linalg.norm(out - exact) <= (0.95 if "topk" in name else 0.6) * np.linalg.norm(exact)
    assert data.tobytes() == encode(name, values).tobytes()


@each_codec
@common
@given(SEEDS, SIZES, WEIGHTS)
def test_accumulating_many_is_accumulating_one_after_another(name, seed, num, weights):
    datas = [encode(name, values_of(name, seed + i, num)) for i in range(len(weights))]
    many, steps = np.full(num, np.nan, np.float32), np.zeros(num, np.float32)
    codec(name).accumulate_many(datas, weights, many)
    for data, weight in zip(datas, weights, strict=True):
        codec(name).accumulate(data, weight, steps)
    assert many.tobytes() == steps.tobytes()


@each_codec
@common
@given(SEEDS, st.integers(1, 600), st.integers(1, 5))
def test_inputs_are_left_alone(name, seed, num, num_datas):
    values = values_of(name, seed, num)
    kept = values.copy()
    datas = [encode(name, values) for _ in range(num_datas)]
    copies = [data.tobytes() for data in datas]
    codec(name).accumulate_many(datas, [0.5] * num_datas, np.empty(num, np.float32))
    assert values.tobytes() == kept.tobytes()
    assert [data.tobytes() for data in datas] == copies


@each_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(name, bad):
    with pytest.raises(NonFiniteError, match="value 1 of 3"):
        encode(name, np.array([1, bad, bad], np.float32))


@each_codec
@common
@given(SIZES, st.integers(-3, 3))
def test_another_length_is_refused(name, num, difference):
    num_bytes = max(codec(name).nbytes(num) + difference, 0)
    if num_bytes != codec(name).nbytes(num):
        with pytest.raises(InvalidEncoding, match=f"{num_bytes} bytes long"):
            codec(name).check(np.zeros(num_bytes, np.uint8), num)


@each_codec
@pytest.mark.parametrize("num", [0, 1, 255, 256, 257, 10**10])
def test_the_size_is_known_without_the_values(name, num):
    assert 0 <= codec(name).nbytes(num) <= 4 * num + 8
