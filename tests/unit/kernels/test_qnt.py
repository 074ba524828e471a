"""The faults that others' codecs had (cases.md, QNT), none of which any codec here has."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.codec import CODECS, NonFiniteError, codec

from .every_codec import BLOCK_CODECS, LIMITS, decode, encode, normal, relative_error

REACH = {"float16": 65_519.0, "bfloat16": 3.3961e38}
"""From where on a value rounds to infinity."""
each_codec = pytest.mark.parametrize("name", CODECS)
each_block_codec = pytest.mark.parametrize("name", BLOCK_CODECS)
DENSE = [name for name in CODECS if name in LIMITS]
each_dense_codec = pytest.mark.parametrize("name", DENSE)


@each_dense_codec
def test_the_error_on_normal_data_is_what_the_format_promises(name):
    assert relative_error(name, normal(1 << 16)) <= LIMITS[name]


@each_codec
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_qnt_01_zeros_come_back_as_zeros(name, zero, back_end):
    data = encode(name, np.full(600, zero, np.float32))
    codec(name).check(data, 600)
    assert not decode(name, data, 600).any()


@each_block_codec
@pytest.mark.parametrize("first", [0, 256, 512])
def test_qnt_01_and_03_a_zero_block_anywhere_changes_no_other(name, first, back_end):
    values = normal(700)
    whole = decode(name, encode(name, values), 700)
    values[first : first + 256] = 0
    decoded = decode(name, encode(name, values), 700)
    assert not decoded[first : first + 256].any()
    whole[first : first + 256] = 0
    assert decoded.tobytes() == whole.tobytes()


@each_dense_codec
def test_qnt_02_a_tiny_block_beside_ones_keeps_its_own_scale(name, back_end):
    values = np.ones(768, np.float32)
    values[256:512] = normal(256, seed=1, std=1e-30)
    decoded = decode(name, encode(name, values), 768)
    if name == "float16":  # below its smallest subnormal number
        assert not decoded[256:512].any()
        return
    tiny = values[256:512].astype(np.float64)
    assert np.linalg.norm(decoded[256:512] - tiny) <= 1.2 * LIMITS[name] * np.linalg.norm(tiny) + 1e-38
    assert np.abs(decoded[:256] - 1).max() <= 0.01


@each_codec
@pytest.mark.parametrize("value", [1e-45, 1e-40, 2.0**-126, 1e-30, 0.1, 1.0, -3.0, 60_000.0])
def test_a_constant_vector_comes_back_nearly_constant_whatever_its_size(name, value, back_end):
    values = np.full(700, value, np.float32)
    data = encode(name, values)
    codec(name).check(data, values.size)
    decoded = decode(name, data, values.size)
    assert np.isfinite(decoded).all()
    close = np.abs(decoded.astype(np.float64) - values) <= 0.005 * abs(value) + 5e-41  # half a subnormal bfloat16
    assert (close | (decoded == 0)).all()
    if name in LIMITS and abs(value) >= 1:
        assert close.all()


@each_codec
@pytest.mark.parametrize("largest", [3.0e38, float(np.finfo(np.float32).max)])
def test_huge_values_stay_finite_or_are_refused(name, largest, back_end):
    values = normal(600)
    values[[3, 70, 599]] = largest, -largest, largest / 3
    if name in ("float16", "bfloat16") and largest > REACH[name]:
        with pytest.raises(NonFiniteError, match=r"value 3 of 600 .* beyond the format"):
            encode(name, values)
        return
    data = encode(name, values)
    codec(name).check(data, 600)
    assert np.isfinite(decode(name, data, 600)).all()


@each_codec
@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2], lambda x: x.T, lambda x: x[:, ::3], lambda x: np.broadcast_to(x[:, :1], (64, 128))],
    ids=["rows", "transposed", "columns", "expanded"],
)
def test_qnt_04_strided_input_equals_its_contiguous_copy(name, view):
    strided = view(normal(64 * 128).reshape(64, 128))
    assert not strided.flags.c_contiguous
    assert encode(name, strided).tobytes() == encode(name, np.ascontiguousarray(strided)).tobytes()


@each_codec
def test_qnt_04_strided_output_is_written_in_its_own_order(name):
    values = normal(32 * 64)
    data, wide = encode(name, values), np.full((64, 64), 7, np.float32)
    plain = decode(name, data, values.size)
    codec(name).decode(data, wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), plain)
    codec(name).accumulate(data, 1.0, wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), 2 * plain)
    codec(name).accumulate_many([data, data, data], [1.0, 1.0, 1.0], wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), plain + plain + plain)
    assert (wide.T[1::2] == 7).all()


@each_codec
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_, np.dtype(">f4")])
def test_qnt_05_another_dtype_is_a_type_error_that_names_it(name, dtype):
    values = np.ones(4, dtype)
    with pytest.raises(TypeError, match=str(np.dtype(dtype))):
        codec(name).encode(values, np.empty(codec(name).nbytes(4), np.uint8))
    with pytest.raises(TypeError, match=str(np.dtype(dtype))):
        codec(name).decode(np.zeros(codec(name).nbytes(4), np.uint8), values)


@each_codec
def test_qnt_05_a_tensor_of_another_dtype_is_a_type_error_that_names_it(name):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.float64, torch.int32):
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            codec(name).encode_tensor(torch.ones(4, dtype=dtype), np.empty(codec(name).nbytes(4), np.uint8))


@each_codec
@pytest.mark.parametrize("shape", [(0,), (3, 0, 5)])
def test_qnt_06_arrays_without_elements_pass(name, shape, back_end):
    values = np.empty(shape, np.float32)
    data = encode(name, values)
    assert data.size == 0
    codec(name).check(data, 0)
    codec(name).decode(data, values)
    codec(name).accumulate_many([data, b""], [0.5, 0.5], values)
    assert codec(name).squared_norm(data, 0) == 0


@each_codec
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (1, 2, 3, 4, 5)])
def test_qnt_07_any_number_of_dimensions_keeps_its_shape(name, shape, back_end):
    values = normal(int(np.prod(shape))).reshape(shape)
    out = np.empty(shape, np.float32)
    codec(name).decode(encode(name, values), out)
    assert out.tobytes() == decode(name, encode(name, values.reshape(-1)), values.size).tobytes()


@each_codec
@pytest.mark.parametrize("num_peers", [2, 64])
@pytest.mark.parametrize("value", [120.0, -127.0])
def test_qnt_08_sums_do_not_wrap(name, num_peers, value, back_end):
    data, out = encode(name, np.full(5, value, np.float32)), np.empty(5, np.float32)
    codec(name).accumulate_many([data] * num_peers, [1 / num_peers] * num_peers, out)
    assert np.abs(out - value).max() <= 0.01 * abs(value)


@each_codec
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 63, 255, 256, 599])
def test_qnt_09_non_finite_input_is_an_error_that_names_the_first(name, bad, index, back_end):
    values = normal(600)
    values[index] = bad
    values[599] = np.nan
    with pytest.raises(NonFiniteError, match=f"value {index} of 600"):
        encode(name, values)


@each_dense_codec
@pytest.mark.parametrize("num", [1, 7, 63, 64, 65, 255, 256, 257])
@pytest.mark.parametrize("num_peers", [1, 3, 6])
def test_qnt_11_every_size_and_group_gives_the_mean(name, num, num_peers):
    contributions = [normal(num, seed) for seed in range(num_peers)]
    out = np.full(num, np.nan, np.float32)
    datas = [encode(name, each) for each in contributions]
    codec(name).accumulate_many(datas, [1 / num_peers] * num_peers, out)
    exact = np.mean(contributions, axis=0, dtype=np.float64)
    norms = sum(np.linalg.norm(each) for each in contributions) / num_peers
    assert np.linalg.norm(out - exact) <= (1.6 * LIMITS[name] + 1e-6) * norms


@each_codec
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_qnt_13_known_numbers_have_their_hand_computed_mean(name, num_ranks, back_end):
    # A single value is its block's largest, hence exact where the format has its digits.
    contributions = [encode(name, np.array([2.0**rank], np.float32)) for rank in range(num_ranks)]
    out = np.empty(1, np.float32)
    codec(name).accumulate_many(contributions, [1.0] * num_ranks, out)
    assert out[0] / num_ranks == pytest.approx({2: 1.5, 3: 7 / 3, 4: 3.75}[num_ranks], rel=0.004)


@each_codec
def test_unaligned_values_and_data_are_handled(name, back_end):
    values, size = normal(300), codec(name).nbytes(300)
    room, data = np.zeros(4 * 300 + 1, np.uint8), np.zeros(size + 1, np.uint8)
    unaligned = room[1:].view(np.float32)
    unaligned[:] = values
    codec(name).encode(unaligned, data[1:])
    assert data[1:].tobytes() == encode(name, values).tobytes()
    codec(name).check(data[1:], 300)
    codec(name).decode(data[1:], unaligned)
    assert unaligned.tobytes() == decode(name, data[1:].copy(), 300).tobytes()
    assert codec(name).squared_norm(data[1:], 300) == codec(name).squared_norm(data[1:].copy(), 300)


@each_codec
def test_nothing_to_accumulate_gives_zeros(name, back_end):
    out = np.full(300, 5, np.float32)
    codec(name).accumulate_many([], [], out)
    assert not out.any()


@each_codec
@pytest.mark.parametrize("weights", [[], [1.0, 1.0], [float("nan")], [1e39]])
def test_weights_must_be_finite_and_match_the_contributions(name, weights):
    with pytest.raises(ValueError, match="expected 1 finite float32 weights"):
        codec(name).accumulate_many([encode(name, normal(60))], weights, np.zeros(60, np.float32))
