"""The fixed grid on which a flat vector is encoded, hashed, sent, checked and reduced, and the mean over it.

A flat float32 vector is cut into chunks of ``chunk_elements``; each chunk is encoded on its own and the encodings are
concatenated. Trainers encode on this grid, the exchange reduces on it, replicas apply on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from .codec import Codec

    FlatValues = NDArray[np.float32] | Tensor
    """A flat vector on the CPU, or on a GPU."""


@dataclass(frozen=True)
class ChunkGrid:
    """Where each chunk lies, in elements of the flat vector and in bytes of its encoding.

    Raises ValueError for an empty vector or chunk. Indices outside the grid raise IndexError.
    """

    num_elements: int
    chunk_elements: int
    codec: Codec

    def __post_init__(self) -> None:
        if self.num_elements < 1 or self.chunk_elements < 1:
            raise ValueError(f"a grid of {self.num_elements} elements in chunks of {self.chunk_elements} is empty")

    @cached_property
    def num_chunks(self) -> int:
        """Number of chunks, the shorter last one included."""
        return -(-self.num_elements // self.chunk_elements)

    @cached_property
    def total_encoded(self) -> int:
        """Bytes of the whole encoded vector."""
        return self.encoded_range(self.num_chunks - 1).stop

    @cached_property
    def _full_chunk_bytes(self) -> int:
        return self.codec.nbytes(self.chunk_elements)

    def elements(self, chunk: int) -> slice:
        """Elements of the flat vector in ``chunk``; only the last chunk may be shorter."""
        if not 0 <= chunk < self.num_chunks:
            raise IndexError(f"chunk {chunk} is outside the grid of {self.num_chunks}")
        start = chunk * self.chunk_elements
        return slice(start, min(start + self.chunk_elements, self.num_elements))

    def chunk_length(self, chunk: int) -> int:
        """Number of elements in ``chunk``."""
        elements = self.elements(chunk)
        return elements.stop - elements.start

    def encoded_range(self, chunk: int) -> slice:
        """Bytes of ``chunk`` in the encoded vector."""
        start = chunk * self._full_chunk_bytes
        return slice(start, start + self.encoded_bytes(chunk))

    def encoded_bytes(self, chunk: int) -> int:
        """Length of ``chunk``'s encoding."""
        return self.codec.nbytes(self.chunk_length(chunk))

    def encode(self, values: FlatValues, out: NDArray[np.uint8]) -> None:
        """Encode all chunks of ``values`` (num_elements,) into ``out`` (total_encoded,).

        Raises the codec's NonFiniteError on NaN or infinity; ``out`` is then partly written and must not be used.
        """
        for chunk in range(self.num_chunks):
            self.encode_chunk(chunk, values, out)

    def encode_chunk(self, chunk: int, values: FlatValues, out: NDArray[np.uint8]) -> None:
        """As `encode`, one chunk. Values on a GPU are encoded there, with the same bits, before they are copied."""
        part, data = values[self.elements(chunk)], out[self.encoded_range(chunk)]
        if isinstance(part, np.ndarray):
            self.codec.encode(part, data)
        else:
            self.codec.encode_tensor(part, data)

    def decode(self, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Inverse of `encode`, up to the codec's error."""
        for chunk in range(self.num_chunks):
            self.codec.decode(data[self.encoded_range(chunk)], out[self.elements(chunk)])


def normalised_weights(tokens: Sequence[int]) -> list[float]:
    """Weights of contributions by their tokens: float32(tokens_i / sum). A lone contribution weighs exactly 1.

    Raises ValueError if nothing was contributed.
    """
    total = sum(tokens)
    if total <= 0 or min(tokens) < 0:
        raise ValueError(f"no mean of contributions with tokens {list(tokens)}")
    return [float(np.float32(count / total)) for count in tokens]


def mean_of(
    contributions: Sequence[NDArray[np.uint8]],  # each (total_encoded,), in plan order
    tokens: Sequence[int],
    grid: ChunkGrid,
    out: NDArray[np.uint8],  # (total_encoded,)
) -> None:
    """The encoded, token-weighted mean of encoded contributions: what span owners compute, in one place.

    Chunk by chunk: accumulate in the given order from +0.0 with `normalised_weights`, encode once.
    """
    weights = normalised_weights(tokens)
    scratch = np.empty(min(grid.chunk_elements, grid.num_elements), np.float32)
    for chunk in range(grid.num_chunks):
        encoded = grid.encoded_range(chunk)
        total = scratch[: grid.chunk_length(chunk)]
        grid.codec.accumulate_many([data[encoded] for data in contributions], weights, total)
        grid.codec.encode(total, out[encoded])
