"""The inner optimizer's state with which a round's steps begin, encoded: what a spot check recomputes the steps from.

It is private, unlike the anchor and the lease, and AdamW's moments weigh twice what the model does. A copy keeps int8
codes of m/√v, which is what the update goes by, and of the *fourth root* of v: int8 is linear within a block, and the
moments of seldom used parameters lie many powers of ten below those of their neighbours, while their updates are as
large. What other codes of 8 bits cost is measured in `benchmarks/spot_checks.py`.

Wire form: 20 bytes (magic, whether there are moments, first batch as uint32, steps done as uint64), then the codes. The
length follows from the model and that one flag. No torch here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import NonFiniteError, codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .config import InnerConfig

_HEADER = struct.Struct("<4sB3xIQ")
_MAGIC = b"atis"
_CODEC = codec("int8")
_CHUNK_ELEMENTS = 65_536
_LARGEST = 1e7
"""Of a fourth root: its fourth power is far from overflow."""
NUM_KEPT = 2
"""Copies on disk: the round that is trained, and the one that was decided last, which is still asked for."""


def sizes(num_elements: int) -> tuple[int, int]:
    """Bytes of a copy without and with moments, for a model of this many parameters."""
    return _HEADER.size, _HEADER.size + 2 * _grid(num_elements).total_encoded


def _grid(num_elements: int) -> ChunkGrid:
    return ChunkGrid(num_elements, _CHUNK_ELEMENTS, _CODEC)


@dataclass(frozen=True)
class InnerState:
    """Where the optimizer of one peer stands, and how much of its lease is used."""

    num_steps_done: int = 0
    """See `InnerLoop.num_steps_done`."""
    first_batch: int = 0
    """Batches of the lease that are used already."""
    moments: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, "NDArray[np.float32]"])
    """``exp_avg`` and ``exp_avg_sq``, (num_elements,) each; empty before the first step and for SGD."""

    def encode(self) -> bytes:
        """Raises NonFiniteError if a moment is not finite."""
        header = _HEADER.pack(_MAGIC, bool(self.moments), self.first_batch, self.num_steps_done)
        if not self.moments:
            return header
        root = np.sqrt(self.moments["exp_avg_sq"])
        ratio = np.divide(self.moments["exp_avg"], root, out=np.zeros_like(root), where=root > 0)
        parts = (ratio, np.sqrt(root))
        return header + b"".join(_encoded(part) for part in parts)

    @classmethod
    def decode(cls, data: bytes, num_elements: int, inner: InnerConfig) -> InnerState:
        """What somebody claims to begin with. Raises ValueError for what `encode` does not write.

        Moments that no sequence of gradients leads to are brought back to the nearest that one does (`_largest_ratio`),
        so that nobody can claim a momentum that outweighs every gradient to come.
        """
        num_steps_done, first_batch, first, second = _taken_apart(data, num_elements)
        if not first:
            return cls(num_steps_done, first_batch)
        limit = _largest_ratio(inner)
        ratio = np.clip(_decoded(first, num_elements), -limit, limit)
        root = np.square(np.clip(_decoded(second, num_elements), -_LARGEST, _LARGEST))
        return cls(num_steps_done, first_batch, {"exp_avg": ratio * root, "exp_avg_sq": np.square(root)})


def continuity(end: bytes, start: bytes, num_elements: int) -> float | None:
    """How well the copy ``start`` goes on from ``end``: the lower cosine of the two codes'.

    None for an optimizer that begins anew, as after a restart: nothing can be hidden in that. Raises ValueError for
    what `InnerState.encode` does not write. Needs no memory beside the copies.
    """
    (ended, _, *from_), (begun, _, *to) = _taken_apart(end, num_elements), _taken_apart(start, num_elements)
    if begun == 0 and not to[0]:
        return None
    if begun != ended or bool(from_[0]) != bool(to[0]):
        return 0.0
    grid = _grid(num_elements)
    return min(cosine(grid, *each) for each in zip(from_, to, strict=True)) if to[0] else 1.0


def cosine(grid: ChunkGrid, one: memoryview, other: memoryview) -> float:
    """Of the angle between two encoded vectors; 0 if one is all zero."""
    products = [0.0, 0.0, 0.0]
    for chunk in range(grid.num_chunks):
        x, y, length = one[grid.encoded_range(chunk)], other[grid.encoded_range(chunk)], grid.chunk_length(chunk)
        for index, (left, right) in enumerate(((x, y), (x, x), (y, y))):
            products[index] += grid.codec.dot(left, right, length)
    dot, *squares = products
    return dot / math.sqrt(squares[0]) / math.sqrt(squares[1]) if all(squares) else 0.0


def _taken_apart(data: bytes, num_elements: int) -> tuple[int, int, memoryview, memoryview]:
    """Steps done, first batch, and the codes of both moments, valid or empty. Raises ValueError."""
    short, long = sizes(num_elements)
    if len(data) not in (short, long):
        raise ValueError(f"{len(data)} bytes are no inner state of this model")
    magic, has_moments, first_batch, num_steps_done = _HEADER.unpack(data[:short])
    if (magic, has_moments, data[5:8]) != (_MAGIC, len(data) == long, bytes(3)):
        raise ValueError("not the header of an inner state")
    grid, codes = _grid(num_elements), memoryview(data)[short:]
    halves = codes[: len(codes) // 2], codes[len(codes) // 2 :]
    for half in halves if has_moments else ():
        for chunk in range(grid.num_chunks):
            _CODEC.check(half[grid.encoded_range(chunk)], grid.chunk_length(chunk))
    return num_steps_done, first_batch, *halves


def _encoded(values: NDArray[np.float32]) -> bytes:
    grid = _grid(values.size)
    out = np.empty(grid.total_encoded, np.uint8)
    grid.encode(np.ascontiguousarray(values, np.float32), out)
    return out.tobytes()


def _decoded(data: memoryview, num_elements: int) -> NDArray[np.float32]:
    values = np.empty(num_elements, np.float32)
    _grid(num_elements).decode(np.frombuffer(data, np.uint8), values)
    return values


def _largest_ratio(inner: InnerConfig) -> float:
    """C in |m| ≤ C·√v, which Cauchy–Schwarz gives for any gradients: m and v are weighted sums of g and g²."""
    beta1, beta2 = inner.betas
    if beta1**2 >= beta2:
        return _LARGEST
    return (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))


class InnerStates:
    """Copies on disk, one file a round; the daemon serves them while the trainer goes on. Files never change."""

    def __init__(self, folder: Path, on_warning: Callable[[str], None]) -> None:
        self._folder, self._on_warning = folder, on_warning

    def keep(self, round_number: int, state: InnerState) -> str:
        """Write the copy of a round; its digest, or "" if there is none to show (a full disk, a NaN), which is said."""
        try:
            data = state.encode()
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / "new.tmp"
            temporary.write_bytes(data)
            temporary.replace(self.path(round_number))
            self._prune(round_number)
        except (OSError, NonFiniteError) as error:
            self._on_warning(f"the inner optimizer's state of round {round_number} is not kept: {error}")
            return ""
        return blake3(data).hexdigest()

    def digest(self, round_number: int) -> str:
        """Of the copy that an earlier process has kept; "" if there is none."""
        try:
            return blake3(self.path(round_number).read_bytes()).hexdigest()
        except OSError:
            return ""

    def path(self, round_number: int) -> Path:
        """Where a round's copy lies, if it is there."""
        return self._folder / f"{round_number:012d}.state"

    def _prune(self, newest: int) -> None:
        for path in self._folder.glob("*.state"):
            if not newest - NUM_KEPT < int(path.stem) <= newest:
                path.unlink(missing_ok=True)
