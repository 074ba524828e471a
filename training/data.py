"""Text as numbered samples: the sample with a global index is a pure function of (text, seed, index).

The text is cut by content: its last ``validation_fraction`` is held out, the rest is cut into non-overlapping windows.
Pass p over the data visits every window once, in an order keyed by (seed, p), so global index i is position ``i % n``
of pass ``i // n``. A peer never draws samples: it is given a `Lease`, a range of global indices that no other peer
gets. There is no reader state to save, and no number of readers to change: position is the lease and the steps done in
it.

The text is in memory and a batch takes microseconds to cut, so nothing is prefetched.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .config import DataConfig

CORPORA = Path(__file__).parent / "corpora"
VALIDATION_BATCH = 32
_MASK_64 = (1 << 64) - 1
_NUM_FEISTEL_ROUNDS = 4


class DataError(ValueError):
    """The text cannot be used; the message names the source and what to do."""


@dataclass(frozen=True)
class Lease:
    """Global sample indices [first, first + count) that one peer may use in one round."""

    first: int
    count: int

    def num_batches(self, batch_size: int) -> int:
        """Whole batches that it holds."""
        return self.count // batch_size

    def batch(self, step: int, batch_size: int) -> range | None:
        """Indices of the ``step``-th batch (from 0), None once the lease is used up."""
        start = step * batch_size
        if start + batch_size > self.count:
            return None
        return range(self.first + start, self.first + start + batch_size)


def load_text(source: str) -> NDArray[np.uint8]:
    """Bytes of ``builtin:NAME`` or ``file:PATH`` (plain, or xz by its suffix). Raises `DataError` in one line."""
    kind, _, name = source.partition(":")
    path = CORPORA / f"{name}.txt.xz" if kind == "builtin" else Path(name).expanduser()
    try:
        data = path.read_bytes()
        text = lzma.decompress(data) if path.suffix == ".xz" else data
    except FileNotFoundError:
        known = ", ".join(sorted(f"builtin:{p.name.split('.')[0]}" for p in CORPORA.glob("*.txt.xz")))
        raise DataError(f"data source {source!r}: {path} does not exist (built in: {known})") from None
    except (OSError, lzma.LZMAError) as error:
        raise DataError(f"data source {source!r}: {path} cannot be read: {error}") from error
    return np.frombuffer(text, np.uint8)


@dataclass(frozen=True)
class TextData:
    """A text's train and validation windows, each of ``sequence_length`` inputs and as many targets."""

    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    sequence_length: int
    seed: int

    @classmethod
    def of(cls, text: NDArray[np.uint8], config: DataConfig, sequence_length: int) -> Self:
        """Cut ``text``. Raises `DataError` if either part is shorter than one window."""
        num_validation = int(len(text) * config.validation_fraction)
        data = cls(text[: len(text) - num_validation], text[len(text) - num_validation :], sequence_length, config.seed)
        if data.num_windows < 1 or len(data.validation) <= sequence_length:
            raise DataError(
                f"data source {config.source!r}: {len(text)} bytes with {num_validation} held out are less than two "
                f"windows of {sequence_length + 1}; use a longer text or a shorter sequence_length"
            )
        return data

    @classmethod
    def load(cls, config: DataConfig, sequence_length: int) -> Self:
        """Read and cut the configured source."""
        return cls.of(load_text(config.source), config, sequence_length)

    @cached_property
    def num_windows(self) -> int:
        """Train windows, that is samples of one pass. The target of a window's last input is the next one's first."""
        return (len(self.train) - 1) // self.sequence_length

    def window_of(self, index: int) -> int:
        """Number of the train window that global sample ``index`` is."""
        data_pass, position = divmod(index, self.num_windows)
        return permuted(position, self.num_windows, _mix(self.seed ^ _mix(data_pass)))

    def sample(self, index: int) -> NDArray[np.uint8]:
        """(sequence_length + 1,) bytes of global sample ``index``: inputs and the last target."""
        start = self.window_of(index) * self.sequence_length
        return self.train[start : start + self.sequence_length + 1]

    def batch(self, indices: range) -> NDArray[np.uint8]:
        """(len(indices), sequence_length + 1): the samples one below another."""
        return np.stack([self.sample(index) for index in indices])

    def validation_batch(self, batch: int, num_batches: int) -> NDArray[np.uint8]:
        """(up to 32, sequence_length + 1): every ``num_batches``-th held-out window, beginning with window ``batch``.

        Windows are first thinned evenly to ``num_batches`` × 32, so that few batches still see all of the text.
        """
        num_windows = (len(self.validation) - 1) // self.sequence_length
        num_used = min(num_windows, num_batches * VALIDATION_BATCH)
        starts = [i * num_windows // num_used * self.sequence_length for i in range(batch, num_used, num_batches)]
        empty = np.empty((0, self.sequence_length + 1), np.uint8)
        return np.stack([self.validation[s : s + self.sequence_length + 1] for s in starts]) if starts else empty


def permuted(position: int, size: int, key: int) -> int:
    """Where ``position`` goes in the permutation of range(size) that ``key`` names.

    A balanced Feistel network over the next even power of two, walked until it lands inside (Black and Rogaway, 2002):
    integers only, constant memory, the same on every machine and in every version of every library.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        position = _feistel(position, half_bits, key)
        if position < size:
            return position


def _feistel(value: int, half_bits: int, key: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for feistel_round in range(_NUM_FEISTEL_ROUNDS):
        left, right = right, left ^ (_mix(key + (feistel_round << 56) + right) & mask)
    return left << half_bits | right


def _mix(value: int) -> int:
    """Splitmix64's output function (Steele, Lea, Flood 2014) of ``value`` plus its increment."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK_64
    return value ^ value >> 31
