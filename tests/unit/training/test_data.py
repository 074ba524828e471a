from __future__ import annotations

import lzma

import numpy as np
import pytest
from blake3 import blake3

from atoll.training.config import DataConfig
from atoll.training.data import DataError, Lease, TextData, load_text

TEXT = np.arange(1000, dtype=np.uint16).astype(np.uint8)


def text_data(seed: int = 0, fraction: float = 0.1, text: np.ndarray = TEXT) -> TextData:
    return TextData.of(text, DataConfig(seed=seed, validation_fraction=fraction), sequence_length=10)


def test_the_bundled_corpus_is_the_king_james_bible():
    text = load_text("builtin:kjv")
    assert blake3(text.tobytes()).hexdigest().startswith("8582d2820aaba2ef")
    assert b"In the beginning God created the heaven and the earth." in text.tobytes()[:100]


def test_the_end_of_the_text_is_held_out():
    data = text_data()
    assert np.array_equal(data.train, TEXT[:900])
    assert np.array_equal(data.validation, TEXT[900:])


def test_a_sample_is_a_pure_function_of_seed_and_index():
    first, again, other = text_data(), text_data(), text_data(seed=1)
    assert all(np.array_equal(first.sample(i), again.sample(i)) for i in (5, 300, 10**12))
    assert any(first.window_of(i) != other.window_of(i) for i in range(10))


def test_each_pass_visits_every_window_once_in_its_own_order():
    data = text_data()
    n = data.num_windows
    passes = [[data.window_of(i) for i in range(p * n, (p + 1) * n)] for p in range(3)]
    assert all(sorted(one) == list(range(n)) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_windows_do_not_overlap_and_carry_their_last_target():
    data = text_data()
    inputs = sorted(tuple(data.sample(i)[:-1]) for i in range(data.num_windows))
    assert len(set(inputs)) == data.num_windows
    sample = data.sample(3)
    assert sample.shape == (11,)
    assert np.array_equal(np.diff(sample.astype(int)) % 256, np.ones(10))


def test_no_sample_of_a_pass_enters_two_leases_and_resuming_repeats_none():
    """DAT-01, DAT-02: peers with disjoint leases, one of which stops after two batches and resumes."""
    data, batch_size = text_data(), 4
    leases = [Lease(first, 16) for first in (0, 16, 32)]
    seen = [i for lease in leases for step in range(2) for i in lease.batch(step, batch_size) or ()]
    seen += [i for lease in leases for step in range(2, 4) for i in lease.batch(step, batch_size) or ()]
    windows = [data.window_of(i) for i in seen]
    assert sorted(seen) == list(range(48))
    assert len(set(windows)) == 48


def test_a_used_up_lease_gives_no_partial_batch():
    lease = Lease(100, 10)
    assert lease.batch(1, 4) == range(104, 108)
    assert lease.batch(2, 4) is None


def test_validation_batches_cover_the_held_out_text_evenly_and_never_repeat():
    data = text_data(fraction=0.5)
    batches = [data.validation_batch(b, 3) for b in range(3)]
    starts = [int(window[0]) for batch in batches for window in batch]
    assert len(set(starts)) == len(starts) == (len(data.validation) - 1) // 10
    assert data.validation_batch(0, 1).shape == (32, 11)


def test_a_missing_source_names_what_is_built_in():
    with pytest.raises(DataError, match=r"kjw.txt.xz does not exist \(built in: builtin:kjv\)"):
        load_text("builtin:kjw")


def test_a_damaged_source_is_one_clear_line(tmp_path):
    (tmp_path / "a.xz").write_bytes(b"not xz")
    with pytest.raises(DataError, match=r"a.xz cannot be read: Input format not supported"):
        load_text(f"file:{tmp_path / 'a.xz'}")


def test_a_compressed_file_reads_like_a_plain_one(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello")
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"hello"))
    assert np.array_equal(load_text(f"file:{tmp_path}/a.txt"), load_text(f"file:{tmp_path}/a.txt.xz"))


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(DataError, match=r"30 bytes with 3 held out are less than two windows of 11"):
        text_data(text=TEXT[:30])
