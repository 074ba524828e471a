"""The float32 codec passes exact bits, and refuses what no peer may send."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec

FLOAT32 = codec("float32")
HARD = np.array([0.0, -0.0, 1e-45, -1e-39, np.finfo(np.float32).max, 1.1, -3.0], np.float32)


def encode(values):
    data = np.empty(FLOAT32.nbytes(values.size), np.uint8)
    FLOAT32.encode(values, data)
    return data


def test_bits_pass_unchanged():
    out = np.empty_like(HARD)
    FLOAT32.decode(encode(HARD), out)
    assert out.tobytes() == HARD.tobytes() == encode(HARD).tobytes()


def test_the_wire_size_is_four_bytes_a_value():
    assert [FLOAT32.nbytes(n) for n in (0, 1, 257)] == [0, 4, 1028]


def test_qnt_04_strided_arrays_are_read_and_written_in_their_own_order():
    matrix = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert encode(matrix.T[::2]).tobytes() == np.ascontiguousarray(matrix.T[::2]).tobytes()
    target = np.zeros((8, 8), np.float32)
    FLOAT32.decode(encode(matrix[::2]), target.T[::2])
    assert np.array_equal(target.T[::2], matrix[::2])
    FLOAT32.accumulate(encode(matrix[::2]), 0.5, target.T[::2])
    assert np.array_equal(target.T[::2], 1.5 * matrix[::2])


def test_unaligned_data_is_read():
    data = np.zeros(4 * HARD.size + 1, np.uint8)
    FLOAT32.encode(HARD, data[1:])
    FLOAT32.check(data[1:], HARD.size)
    out = np.zeros_like(HARD)
    FLOAT32.accumulate_many([data[1:]], [1.0], out)
    assert np.array_equal(out, HARD)


def test_accumulate_many_equals_accumulate_in_sequence():
    contributions = [np.random.default_rng(i).standard_normal(70_001).astype(np.float32) for i in range(3)]
    weights, together, one_by_one = [0.1, 0.7, 0.2], np.empty(70_001, np.float32), np.zeros(70_001, np.float32)
    datas = [encode(c) for c in contributions]
    FLOAT32.accumulate_many(datas, weights, together)
    for data, weight in zip(datas, weights, strict=True):
        FLOAT32.accumulate(data, weight, one_by_one)
    assert together.tobytes() == one_by_one.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused_by_encode_and_by_check(bad):
    values = np.ones(40_000, np.float32)
    values[33_000] = bad
    with pytest.raises(NonFiniteError, match="value 33000 of 40000"):
        encode(values)
    with pytest.raises(InvalidEncoding, match="value 33000"):
        FLOAT32.check(values.view(np.uint8), values.size)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_])
def test_qnt_05_another_dtype_is_a_type_error_that_names_it(dtype):
    with pytest.raises(TypeError, match=np.dtype(dtype).name):
        FLOAT32.encode(np.ones(4, dtype), np.empty(16, np.uint8))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5)])
def test_qnt_06_arrays_without_elements_pass(shape):
    values = np.empty(shape, np.float32)
    FLOAT32.decode(encode(values), values)
    FLOAT32.accumulate_many([b""], [1.0], values)


def test_a_wrong_length_is_refused():
    with pytest.raises(InvalidEncoding, match="3 bytes long, expected 4"):
        FLOAT32.check(b"abc", 1)
