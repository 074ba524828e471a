"""Codecs that name the values they speak of: what they choose, how it is written, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.choices import from_leb128, leb128
from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec

from .every_codec import decode, encode, normal


def chosen(name, values):
    """Where the decoded values are not 0."""
    return np.flatnonzero(decode(name, encode(name, values), values.size)).tolist()


def test_the_layout_of_topk_is_places_of_12_bits_then_the_values(back_end):
    values = np.zeros(4096 + 3, np.float32)
    values[[5, 4095, 4096, 4098]] = 1.0, -2.0, 4.0, 8.0
    data = encode("topk2-float32", values)
    assert data[:6].tobytes() == bytes.fromhex("05f0ff002000")  # 0x005, 0xFFF, 0x000, 0x002
    assert data[6:].view("<f4").tolist() == [1.0, -2.0, 4.0, 8.0]


def test_the_layout_of_rows_is_two_lengths_then_gaps_then_the_values(back_end):
    values = np.zeros(16 * 300 + 2, np.float32)
    values[[16 * 2 + 1, 16 * 3, 16 * 300]] = 1.0, 2.0, 3.0
    data = encode("rows16-float32", values)
    assert data[:8].view("<u4").tolist() == [34, 4]
    assert data[8:12].tobytes() == bytes([2, 0, 0x80 | 296 & 0x7F, 296 >> 7])
    assert data[12 : 12 + 4 * 34].view("<f4").nonzero()[0].tolist() == [1, 16, 32]
    assert not data[12 + 4 * 34 :].any()


@pytest.mark.parametrize(
    ("num", "expected"), [(0, 0), (1, 2 + 4 + 1), (64, 96 + 4 + 16), (4096, 96 + 4 + 16), (65_536, 1536 + 16 + 256)]
)
def test_topk64_takes_14_and_an_eighth_bits_a_chosen_value(num, expected):
    assert codec("topk64").nbytes(num) == expected


def test_of_equal_magnitudes_the_first_are_chosen(back_end):
    values = np.where(np.arange(4096) % 2, np.float32(-1), np.float32(1))
    values[100] = 2
    assert chosen("topk7", values) == [0, 1, 2, 3, 4, 5, 100]


def test_the_chosen_are_the_largest_of_each_group(back_end):
    values = normal(2 * 4096 + 900)
    places = chosen("topk64", values)
    for first, last in ((0, 4096), (4096, 8192), (8192, 9092)):
        expected = first + np.argsort(-np.abs(values[first:last]), kind="stable")[:64]
        assert [place for place in places if first <= place < last] == sorted(expected.tolist())


def test_topk_keeps_more_of_a_vector_than_any_other_choice_of_as_many():
    values = normal(65_536)
    left = values - decode("topk64-int8", encode("topk64-int8", values), values.size)
    assert left @ left < 0.91 * (values @ values)
    assert np.count_nonzero(left == values) == 65_536 - 1024


def test_rows_without_a_value_take_no_room(back_end):
    table = np.zeros((1000, 256), np.float32)
    table[[3, 4, 900]] = normal(3 * 256).reshape(3, 256)
    data = encode("rows256", table)
    used = codec("rows256").used_bytes(data, table.size)
    assert used == 8 + 1 + 1 + 2 + 3 * (256 + 2)
    assert not data[used:].any()
    out = np.full_like(table, 7)
    codec("rows256").decode(data, out)
    assert np.flatnonzero(out.any(axis=1)).tolist() == [3, 4, 900]


def test_the_head_alone_tells_how_much_follows():
    table = np.zeros((1000, 256), np.float32)
    table[17] = 1
    rows, data = codec("rows256"), encode("rows256", table)
    assert rows.used_bytes(data[: rows.head_bytes], table.size) == rows.used_bytes(data, table.size)
    with pytest.raises(InvalidEncoding, match="values in"):
        rows.used_bytes(b"\xff" * 8, table.size)
    for name in ("int8", "topk64"):
        assert codec(name).used_bytes(b"", 1000) == codec(name).nbytes(1000)
        assert codec(name).head_bytes == 0


@pytest.mark.parametrize("num", [1, 255, 256, 257, 4096, 65_536, 65_537])
def test_a_table_all_of_whose_rows_changed_fits(num, back_end):
    data = encode("rows256", np.ones(num, np.float32))
    assert codec("rows256").used_bytes(data, num) == codec("rows256").nbytes(num)
    assert np.allclose(decode("rows256", data, num), 1, rtol=0.004)


def test_rows_add_to_their_own_places_only(back_end):
    first, second = np.zeros(2048, np.float32), np.zeros(2048, np.float32)
    first[:256], second[:512] = 1, 2
    out = np.full(2048, -0.0, np.float32)
    codec("rows256").accumulate(encode("rows256", first), 0.5, out)
    codec("rows256").accumulate(encode("rows256", second), 0.25, out)
    assert np.allclose(out[:256], 1, rtol=0.004)
    assert np.allclose(out[256:512], 0.5, rtol=0.004)
    assert np.signbit(out[512:]).all(), "what was not spoken of has changed"


def corrupt(data, place, byte):
    changed = data.copy()
    changed[place] = byte
    return changed


@pytest.mark.parametrize(
    ("place", "byte"),
    [(0, 7), (1, 0x0F), (3, 0xFF)],
    ids=["twice the same", "not ascending", "beyond the last"],
)
def test_places_that_no_encoder_writes_are_refused(place, byte):
    values = np.zeros(12, np.float32)
    values[[5, 7, 8]] = 1, 2, 3
    data = encode("topk3", values)
    codec("topk3").check(data, 12)
    with pytest.raises(InvalidEncoding, match="places of the 3 largest"):
        codec("topk3").check(corrupt(data, place, byte), 12)


def test_bits_after_the_last_place_are_refused():
    data = encode("topk3", np.arange(12, dtype=np.float32))
    with pytest.raises(InvalidEncoding, match="places of the 3 largest"):
        codec("topk3").check(corrupt(data, 4, data[4] | 0xF0), 12)


@pytest.mark.parametrize(
    ("place", "byte", "why"),
    [
        (0, 31, "instead of 31 values"),
        (2, 1, "values in"),
        (4, 3, "bytes of rows|does not end|rows instead"),
        (9, 0x80, "does not end"),
        (9, 200, "does not end"),
        (8, 60, "row 62 of 50"),
        (11, 0x80, "the chosen values"),
        (-1, 1, "after the end"),
    ],
)
def test_rows_that_no_encoder_writes_are_refused(place, byte, why):
    table = np.zeros((50, 16), np.float32)
    table[[3, 5]] = 1
    data = encode("rows16", table)
    codec("rows16").check(data, table.size)
    with pytest.raises(InvalidEncoding, match=why):
        codec("rows16").check(corrupt(data, place, byte), table.size)


def test_a_value_that_the_inner_codec_refuses_is_named_by_its_own_place(back_end):
    values = np.zeros(9000, np.float32)
    values[[50, 8000]] = 1.0, 1e6
    for name in ("topk3-float16", "rows16-float16"):
        with pytest.raises(NonFiniteError, match="value 8000 of 9000 is 1000000"):
            encode(name, values)


@pytest.mark.parametrize("numbers", [[], [0], [127, 128, 0, 16_383, 16_384], [2**21 - 1, 2**21, 2**28, 2**35 - 1]])
def test_leb128_is_its_own_inverse(numbers):
    data = leb128(np.array(numbers, np.int64))
    assert from_leb128(data).tolist() == numbers
    expected = sum(max(1, -(-number.bit_length() // 7)) for number in numbers)
    assert len(data) == expected


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\x80\x00", b"\xff\xff\xff\xff\xff\x01"])
def test_leb128_has_one_way_to_write_a_number(data):
    with pytest.raises(InvalidEncoding):
        from_leb128(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("name", ["rows100", "topk5000", "topk0", "rows", "topk64-int3", "topk64-rows256"])
def test_names_that_make_no_sense_are_refused(name):
    with pytest.raises(ValueError, match=r"unknown codec|divide 4096|can be kept"):
        codec(name)
