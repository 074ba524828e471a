"""Initial weights: statistics, independence of keys, and that any shard materialises alone."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.kernels.initial import fill_normal, parameter_key


def filled(num, key=1, start=0, std=1.0):
    out = np.empty(num, np.float32)
    fill_normal(out, key, start, std)
    return out


def test_any_range_alone_has_the_bits_of_the_whole(back_end):
    whole = filled(1000, key=2**64 - 1)
    for start, stop in ((0, 1), (1, 300), (300, 301), (301, 1000)):
        assert filled(stop - start, key=2**64 - 1, start=start).tobytes() == whole[start:stop].tobytes()


def test_counters_beyond_32_and_64_bits_of_product_wrap_alike(back_end):
    far = filled(3, key=5, start=2**62 + 12345)
    assert far.tobytes() == np.concatenate([filled(1, key=5, start=2**62 + 12345 + i) for i in range(3)]).tobytes()


def test_values_are_bell_shaped():
    values = filled(200_000).astype(np.float64)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert abs(values).max() < 3.4642
    # Irwin–Hall of order 4 has kurtosis 3 − 6/(5·4) = 2.7.
    assert abs((values**4).mean() - 2.7) < 0.05


def test_values_of_two_parameters_are_uncorrelated():
    one, other = (filled(100_000, parameter_key(0, name)) for name in ("layers.0.weight", "layers.1.weight"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def test_the_key_depends_on_seed_and_name_and_is_fixed():
    keys = {parameter_key(seed, name) for seed in (0, 1, 10) for name in ("a", "b", "0a")}
    assert len(keys) == 9
    assert parameter_key(0, "tok_embeddings.weight") == 0x196C5E6729EA8B74


def test_a_zero_std_gives_zeros(back_end):
    assert not filled(300, std=0.0).any()


@pytest.mark.parametrize(
    ("key", "start", "std"), [(-1, 0, 1.0), (2**64, 0, 1.0), (0, -1, 1.0), (0, 0, -1.0), (0, 0, np.nan)]
)
def test_impossible_arguments_are_refused(key, start, std):
    with pytest.raises(ValueError, match="need a finite std"):
        filled(3, key, start, std)


def test_a_strided_or_foreign_output_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        fill_normal(np.empty(6, np.float32)[::2], 0, 0, 1.0)
    with pytest.raises(TypeError, match="float64"):
        fill_normal(np.empty(6), 0, 0, 1.0)
