"""The block int8 codec: its format, what it refuses, and the faults that others' codecs had (cases.md, QNT)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec

BLOCK = 256
INT8 = codec("int8")


def encode(values):
    data = np.full(INT8.nbytes(values.size), 0xAA, np.uint8)
    INT8.encode(values, data)
    return data


def decode(data, num):
    out = np.full(num, np.nan, np.float32)
    INT8.decode(data, out)
    return out


def mean_of(contributions, weights=None):
    out = np.full(contributions[0].size, np.nan, np.float32)
    weights = weights or [1 / len(contributions)] * len(contributions)
    INT8.accumulate_many([encode(c) for c in contributions], weights, out)
    return out


def normal(num, seed=0, std=1.0):
    return (np.random.default_rng(seed).standard_normal(num) * std).astype(np.float32)


def scales(data, num):
    bits = data[: 2 * -(-num // BLOCK)].view("<u2").astype(np.uint32) << 16
    return bits.view(np.float32)


def test_the_layout_is_scales_then_codes(back_end):
    data = encode(np.array([127.0, -127.0, 1.0, 0.4, 0.5, 1.5], np.float32))
    assert data.tobytes() == bytes.fromhex("803f7f8101000002")


@pytest.mark.parametrize(("num", "expected"), [(0, 0), (1, 3), (255, 257), (256, 258), (257, 261), (4096, 4128)])
def test_size_is_one_byte_a_value_and_two_a_block(num, expected):
    assert INT8.nbytes(num) == expected


def test_error_on_normal_data_is_below_the_target(back_end):
    values = normal(1 << 14)
    error = np.linalg.norm(decode(encode(values), values.size) - values) / np.linalg.norm(values)
    assert error < 0.0071


def test_qnt_01_zero_blocks_stay_exact_zeros_and_change_no_other_block(back_end):
    zeros = np.zeros(BLOCK, np.float32)
    assert not decode(encode(zeros), BLOCK).any()
    values = normal(3 * BLOCK)
    values[BLOCK : 2 * BLOCK] = 0
    decoded = decode(encode(values), values.size)
    assert not decoded[BLOCK : 2 * BLOCK].any()
    assert np.array_equal(decoded[:BLOCK], decode(encode(values[:BLOCK]), BLOCK))
    assert np.isfinite(decoded).all()
    assert np.isfinite(scales(encode(values), values.size)).all()


def test_qnt_02_a_tiny_block_keeps_its_own_scale(back_end):
    values = normal(3 * BLOCK)
    values[BLOCK : 2 * BLOCK] = normal(BLOCK, seed=1, std=3e-31)
    data = encode(values)
    tiny, scale = values[BLOCK : 2 * BLOCK], scales(data, values.size)[1]
    assert 0 < scale < 1e-31
    assert np.abs(decode(data, values.size)[BLOCK : 2 * BLOCK] - tiny).max() <= scale * 0.5001


def test_qnt_02_a_block_below_the_smallest_scale_decodes_to_zero(back_end):
    data = encode(normal(BLOCK, std=1e-40))
    assert not data.any()
    INT8.check(data, BLOCK)


@pytest.mark.parametrize("zero_block", [0, 1, 2])
def test_qnt_03_zero_block_first_middle_or_last_and_partial(back_end, zero_block):
    values = normal(2 * BLOCK + 10)
    values[zero_block * BLOCK : (zero_block + 1) * BLOCK] = 0
    data = encode(values)
    assert [scale == 0 for scale in scales(data, values.size)] == [i == zero_block for i in range(3)]
    INT8.check(data, values.size)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x.T,
        lambda x: x[:, ::3],
        lambda x: x[::-1, ::-1],
        lambda x: np.broadcast_to(x[:, :1], (64, 128)),
    ],
    ids=["rows", "transposed", "columns", "reversed", "expanded"],
)
def test_qnt_04_strided_input_equals_its_contiguous_copy(back_end, view):
    strided = view(normal(64 * 128).reshape(64, 128))
    assert not strided.flags.c_contiguous
    assert np.array_equal(encode(strided), encode(np.ascontiguousarray(strided)))


def test_qnt_04_strided_output_is_written_in_its_own_order(back_end):
    values = normal(32 * 64)
    data, wide = encode(values), np.full((64, 64), 7, np.float32)
    INT8.decode(data, wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), decode(data, values.size))
    assert (wide.T[1::2] == 7).all()
    INT8.accumulate(data, 1.0, wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), 2 * decode(data, values.size))
    INT8.accumulate_many([data, data, data], [1.0, 1.0, 1.0], wide.T[::2])
    assert np.array_equal(wide.T[::2].reshape(-1), 3 * decode(data, values.size))


def test_unaligned_values_and_data_are_handled(back_end):
    values = normal(300)
    room = np.zeros(4 * 300 + 1, np.uint8)
    unaligned = room[1:].view(np.float32)
    unaligned[:] = values
    data = np.zeros(INT8.nbytes(300) + 1, np.uint8)
    INT8.encode(unaligned, data[1:])
    assert np.array_equal(data[1:], encode(values))
    INT8.decode(data[1:], unaligned)
    assert np.array_equal(unaligned, decode(encode(values), 300))
    out = np.empty(300, np.float32)
    INT8.accumulate_many([data[1:]], [1.0], out)
    assert np.array_equal(out, unaligned)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_, np.dtype(">f4")])
def test_qnt_05_another_dtype_is_a_type_error_that_names_it(dtype):
    values = np.ones(4, dtype)
    with pytest.raises(TypeError, match=str(np.dtype(dtype))):
        INT8.encode(values, np.empty(INT8.nbytes(4), np.uint8))
    with pytest.raises(TypeError, match=str(np.dtype(dtype))):
        INT8.decode(np.zeros(INT8.nbytes(4), np.uint8), values)


def test_qnt_05_a_bfloat16_tensor_is_a_type_error_that_names_it():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="bfloat16"):
        INT8.encode(torch.ones(4, dtype=torch.bfloat16), np.empty(INT8.nbytes(4), np.uint8))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5)])
def test_qnt_06_arrays_without_elements_pass(back_end, shape):
    values = np.empty(shape, np.float32)
    data = encode(values)
    assert data.size == 0
    INT8.check(data, 0)
    INT8.decode(data, values)
    INT8.accumulate_many([data, b""], [0.5, 0.5], values)


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_qnt_07_any_number_of_dimensions_keeps_its_shape(back_end, shape):
    values = normal(int(np.prod(shape))).reshape(shape)
    out = np.empty(shape, np.float32)
    INT8.accumulate_many([encode(values), encode(np.asarray(-values)), encode(values)], [1.0, 1.0, 1.0], out)
    assert out.shape == shape
    assert np.abs(out - values).max() <= np.abs(values).max() / 127


@pytest.mark.parametrize(
    "codes", [[120.0, 100.0], [127.0] * 64, [-127.0] * 64, [127.0, -127.0] * 32], ids=["two", "top", "bottom", "both"]
)
def test_qnt_08_sums_of_codes_do_not_wrap(back_end, codes):
    contributions = [np.array([code, 127.0], np.float32) for code in codes]
    assert abs(mean_of(contributions)[0] - np.mean(codes)) <= 1


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 255, 256, 515, 599])
def test_qnt_09_non_finite_input_is_an_error_that_names_the_first(back_end, bad, index):
    values = normal(600)
    values[index] = bad
    values[599] = np.nan
    with pytest.raises(NonFiniteError, match=f"value {index} of 600"):
        encode(values)


@pytest.mark.parametrize("num", [1, 7, 255, 256, 257])
@pytest.mark.parametrize("num_peers", range(1, 8))
def test_qnt_11_every_size_and_group_gives_the_mean(back_end, num, num_peers):
    contributions = [normal(num, seed) for seed in range(num_peers)]
    exact = np.mean(contributions, axis=0, dtype=np.float64)
    half_step = max(np.abs(c).max() for c in contributions) / 127 / 2
    assert np.abs(mean_of(contributions) - exact).max() <= 1.01 * half_step


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_qnt_13_known_integers_have_their_hand_computed_mean(back_end, num_ranks):
    # Rank r holds 127 and r; the scale is 1, so that codes are exact.
    contributions = [np.array([127, rank], np.float32) for rank in range(num_ranks)]
    mean = mean_of(contributions, [1.0] * num_ranks) / np.float32(num_ranks)
    assert mean.tolist() == [127.0, {2: 0.5, 3: 1.0, 4: 1.5}[num_ranks]]


def test_weights_are_applied_in_the_order_given(back_end):
    values = [normal(700, seed) for seed in range(3)]
    weights, datas = [0.2, 0.5, 0.3], [encode(v) for v in values]
    expected = np.zeros(700, np.float32)
    for data, weight in zip(datas, weights, strict=True):
        INT8.accumulate(data, weight, expected)
    assert mean_of(values, weights).tobytes() == expected.tobytes()


def test_nothing_to_accumulate_gives_zeros(back_end):
    out = np.full(300, 5, np.float32)
    INT8.accumulate_many([], [], out)
    assert not out.any()


@pytest.mark.parametrize("bits", [0x0001, 0x007F, 0x7C02, 0x7F80, 0x7FC0, 0x8000, 0xBF80, 0xFF80])
def test_check_refuses_a_scale_that_no_encoder_writes(back_end, bits):
    data = encode(np.ones(600, np.float32))
    data[2:4] = [bits & 0xFF, bits >> 8]
    with pytest.raises(InvalidEncoding, match="byte 2: a scale"):
        INT8.check(data, 600)


@pytest.mark.parametrize("index", [0, 300, 599])
def test_check_refuses_the_code_minus_128(back_end, index):
    data = encode(np.ones(600, np.float32))
    data[6 + index] = 0x80
    with pytest.raises(InvalidEncoding, match=f"byte {6 + index}: a code"):
        INT8.check(data, 600)


def test_check_refuses_codes_in_a_zero_block(back_end):
    data = encode(np.zeros(600, np.float32))
    data[6 + 599] = 1
    with pytest.raises(InvalidEncoding, match=f"byte {6 + 599}: a code"):
        INT8.check(data, 600)


@pytest.mark.parametrize("bits", [0x0080, 0x7C01])
def test_check_accepts_the_extreme_scales_and_they_decode_finitely(back_end, bits):
    data = np.array([bits & 0xFF, bits >> 8, 127, 129], np.uint8)
    INT8.check(data, 2)
    assert np.isfinite(decode(data, 2)).all()


@pytest.mark.parametrize("num_bytes", [0, 604, 607])
def test_a_wrong_length_is_refused_everywhere(num_bytes):
    data, out = np.zeros(num_bytes, np.uint8), np.zeros(600, np.float32)
    for refused in (
        lambda: INT8.check(data, 600),
        lambda: INT8.decode(data, out),
        lambda: INT8.accumulate(data, 1.0, out),
        lambda: INT8.accumulate_many([data], [1.0], out),
    ):
        with pytest.raises(InvalidEncoding, match=f"{num_bytes} bytes long, expected 606"):
            refused()


def test_output_of_a_wrong_length_or_read_only_is_refused():
    with pytest.raises(ValueError, match="606 writable bytes"):
        INT8.encode(np.zeros(600, np.float32), np.zeros(605, np.uint8))
    with pytest.raises(ValueError, match="writable"):
        INT8.encode(np.zeros(600, np.float32), np.frombuffer(bytes(606), np.uint8))
    frozen = np.zeros(600, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        INT8.decode(np.zeros(606, np.uint8), frozen)
    with pytest.raises(ValueError, match="read-only"):
        INT8.accumulate(np.zeros(606, np.uint8), 1.0, frozen)


@pytest.mark.parametrize("weights", [[], [1.0, 1.0], [float("nan")], [float("inf")], [1e39]])
def test_weights_must_be_finite_and_match_the_contributions(weights):
    with pytest.raises(ValueError, match="expected 1 finite float32 weights"):
        INT8.accumulate_many([np.zeros(606, np.uint8)], weights, np.zeros(600, np.float32))


def test_bytes_and_memoryviews_are_read_like_arrays(back_end):
    values = normal(300)
    data = encode(values)
    for other in (data.tobytes(), memoryview(data), bytearray(data)):
        INT8.check(other, 300)
        assert np.array_equal(decode(other, 300), decode(data, 300))


def test_an_unknown_codec_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"unknown codec 'int3': known are .*float32, .*int8, .*topk64"):
        codec("int3")
