"""Vectors longer than what a back end works on at a time: all agree with the plainest compiled variant."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec
from atoll.kernels.formats import FORMATS, BlockFormat
from atoll.kernels.initial import fill_normal
from atoll.kernels.outer_step import nesterov_step
from atoll.kernels.vector.blocks import CACHE_ELEMENTS

INT8 = codec("int8")
NUM = 2 * CACHE_ELEMENTS + 300
SPOTS = [0, CACHE_ELEMENTS - 1, CACHE_ELEMENTS, NUM - 1]
QUICK = [choice for choice in choices() if choice != "reference"]
VALUES = np.random.default_rng(0).standard_normal(NUM).astype(np.float32)


@pytest.fixture(params=QUICK)
def quick(request):
    with using(load(request.param)):
        yield request.param


def everything():
    data, other = np.empty(INT8.nbytes(NUM), np.uint8), np.empty(INT8.nbytes(NUM), np.uint8)
    INT8.encode(VALUES, data)
    INT8.encode(VALUES[::-1], other)
    INT8.check(data, NUM)
    mean, decoded, filled = (np.empty(NUM, np.float32) for _ in range(3))
    INT8.accumulate_many([data, other], [0.3, 0.7], mean)
    INT8.decode(data, decoded)
    INT8.accumulate(other, 0.1, decoded)
    fill_normal(filled, 3, 5, 0.02)
    anchor, momentum = VALUES.copy(), VALUES[::-1].copy()
    nesterov_step(anchor, momentum, mean, 0.7, 0.9)
    return [array.tobytes() for array in (data, mean, decoded, filled, anchor, momentum)]


@pytest.fixture(scope="module")
def expected():
    with using(load("c-baseline" if "c-baseline" in QUICK else "numpy")):
        return everything()


def test_all_kernels_agree(quick, expected):
    assert everything() == expected


BLOCK_CODECS = [name for name, layout in FORMATS.items() if isinstance(layout, BlockFormat)]
VAST = np.resize(VALUES, (1 << 21) + 3 * 4096 + 77)  # from 2²¹ values on, the compiled kernels write past the cache


@pytest.mark.parametrize("name", BLOCK_CODECS)
def test_what_is_written_past_the_cache_is_the_same(name):
    results = []
    for choice in (choice for choice in QUICK if choice.startswith("c-")):
        with using(load(choice)):
            data, room = np.empty(codec(name).nbytes(VAST.size) + 5, np.uint8), np.empty(VAST.size + 3, np.float32)
            codec(name).encode(VAST, data[5:])
            codec(name).decode(data[5:], room[3:])
            decoded = room[3:].tobytes()
            codec(name).accumulate_many([data[5:]] * 3, [0.3, 0.2, 0.1], room[3:])
            results.append((data[5:].tobytes(), decoded, room[3:].tobytes()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", BLOCK_CODECS)
@pytest.mark.parametrize("spot", [0, 5000, 1_000_003, VAST.size - 1])
def test_a_non_finite_value_is_found_past_the_cache_too(name, spot):
    values = VAST.copy()
    values[spot] = np.nan
    with pytest.raises(NonFiniteError, match=f"value {spot} of {values.size}"):
        codec(name).encode(values, np.empty(codec(name).nbytes(values.size), np.uint8))


@pytest.mark.parametrize("spot", SPOTS)
def test_a_non_finite_value_is_found_anywhere(quick, spot):
    values = VALUES.copy()
    values[spot] = np.inf
    with pytest.raises(NonFiniteError, match=f"value {spot} of {NUM}"):
        INT8.encode(values, np.empty(INT8.nbytes(NUM), np.uint8))


@pytest.mark.parametrize("spot", SPOTS)
def test_a_forbidden_code_is_found_anywhere(quick, spot):
    data = np.zeros(INT8.nbytes(NUM), np.uint8)
    INT8.encode(VALUES, data)
    position = INT8.nbytes(NUM) - NUM + spot
    data[position] = 0x80
    with pytest.raises(InvalidEncoding, match=f"byte {position}: a code"):
        INT8.check(data, NUM)
