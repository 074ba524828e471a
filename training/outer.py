"""The outer optimizer: its settings round by round, and the step itself on plain float32 vectors.

Nesterov as in DiLoCo (2311.08105, algorithm 1; the semantics of torch's SGD with ``nesterov=True``)::

    m' = beta * m + d          d: mean pseudo-gradient (points uphill), m: momentum, a: anchor
    a' = a - lr * (d + beta * m')

The arithmetic lives in `atoll.kernels`, so that every machine gets the same bits. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..kernels.outer_step import nesterov_step

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ..kernels.codec import Codec

    FlatValues = NDArray[np.float32] | Tensor
    """A float32 vector on the host, or a tensor on a GPU."""


class OuterSettings(NamedTuple):
    """What one outer step uses."""

    lr: float
    beta: float


class OuterConfig(BaseModel):
    """The outer method of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["nesterov", "sgd"] = "nesterov"
    lr: float = Field(default=0.7, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum after the warm-up; not used by ``sgd``."""
    momentum_warmup_rounds: int = Field(default=0, ge=0)
    """The momentum rises linearly from 0 in round 1 to `momentum` in this round (Pier, 2511.17849). 0: no warm-up."""

    def at(self, round: int) -> OuterSettings:  # noqa: A002 - the field's word
        """Settings of the outer step that ends ``round`` (the first round is 1). Pure; raises ValueError below 1."""
        if round < 1:
            raise ValueError(f"rounds are counted from 1, not {round}")
        if self.optimizer == "sgd":
            return OuterSettings(self.lr, 0.0)
        num_rises = self.momentum_warmup_rounds - 1
        if num_rises <= 0 or round > num_rises:
            return OuterSettings(self.lr, self.momentum)
        return OuterSettings(self.lr, self.momentum * (round - 1) / num_rises)


@dataclass(frozen=True)
class ChunkLayout:
    """The fixed grid on which a flat vector is encoded: chunks of ``chunk_elements``, encoded one by one, end to end.

    The last chunk may be shorter. Encoded chunk i lies at `encoded_range(i)` of the encoded vector.
    """

    num_elements: int
    chunk_elements: int
    codec: Codec

    @property
    def num_chunks(self) -> int:
        """Number of chunks, the shorter last one included."""
        return -(-self.num_elements // self.chunk_elements)

    def elements(self, chunk: int) -> slice:
        """Where ``chunk`` lies in the flat vector."""
        start = chunk * self.chunk_elements
        return slice(start, min(start + self.chunk_elements, self.num_elements))

    def encoded_range(self, chunk: int) -> slice:
        """Where ``chunk`` lies in the encoded vector, in bytes."""
        start = chunk * self.codec.nbytes(self.chunk_elements)
        elements = self.elements(chunk)
        return slice(start, start + self.codec.nbytes(elements.stop - elements.start))

    @property
    def encoded_bytes(self) -> int:
        """Length of the whole encoded vector."""
        return self.encoded_range(self.num_chunks - 1).stop

    def encode(self, values: FlatValues, out: NDArray[np.uint8]) -> None:
        """Encode all chunks of ``values`` (num_elements,) into ``out`` (encoded_bytes,).

        Raises the codec's NonFiniteError on NaN or infinity; ``out`` is then partly written and must not be used.
        """
        for chunk in range(self.num_chunks):
            self.encode_chunk(chunk, values, out)

    def encode_chunk(self, chunk: int, values: FlatValues, out: NDArray[np.uint8]) -> None:
        """As `encode`, one chunk. Values on a GPU are encoded there, with the same bits, before they are copied."""
        part, data = values[self.elements(chunk)], out[self.encoded_range(chunk)]
        if isinstance(part, np.ndarray):
            self.codec.encode(part, data)
        elif self.codec.name == "int8":
            from ..kernels import triton_int8

            data[:] = triton_int8.encode(part).cpu().numpy()
        else:
            self.codec.encode(part.cpu().numpy(), data)

    def decode(self, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Inverse of `encode`, up to the codec's error."""
        for chunk in range(self.num_chunks):
            self.codec.decode(data[self.encoded_range(chunk)], out[self.elements(chunk)])


def apply_mean(
    anchor: NDArray[np.float32],  # (num_elements,), changed in place
    momentum: NDArray[np.float32],  # (num_elements,), changed in place
    mean: NDArray[np.uint8],  # (encoded_bytes,): the encoded mean that everybody holds
    grid: ChunkLayout,
    settings: OuterSettings,
) -> None:
    """One outer step, chunk by chunk, from the encoded mean. Needs one chunk of scratch memory.

    Chunks are independent, so an interruption leaves a mixture: callers work on a copy or redo it from their last
    state.
    """
    scratch = np.empty(min(grid.chunk_elements, grid.num_elements), np.float32)
    for chunk in range(grid.num_chunks):
        part = grid.elements(chunk)
        values = scratch[: part.stop - part.start]
        grid.codec.decode(mean[grid.encoded_range(chunk)], values)
        nesterov_step(anchor[part], momentum[part], values, settings.lr, settings.beta)


def normalised_weights(tokens: Sequence[int]) -> list[float]:
    """Weights of contributions: float32(tokens_i / sum). Raises ValueError if nothing was contributed."""
    total = sum(tokens)
    if total <= 0 or min(tokens) < 0:
        raise ValueError(f"no mean of contributions with tokens {list(tokens)}")
    return [float(np.float32(count / total)) for count in tokens]


def mean_of(
    contributions: Sequence[NDArray[np.uint8]],  # each (encoded_bytes,), in plan order
    tokens: Sequence[int],
    grid: ChunkLayout,
    out: NDArray[np.uint8],  # (encoded_bytes,)
) -> None:
    """The encoded, token-weighted mean of encoded contributions: what span owners compute, in one place.

    Chunk by chunk: accumulate in the given order from +0.0 with `normalised_weights`, encode once.
    """
    weights = normalised_weights(tokens)
    scratch = np.empty(min(grid.chunk_elements, grid.num_elements), np.float32)
    for chunk in range(grid.num_chunks):
        part, encoded = grid.elements(chunk), grid.encoded_range(chunk)
        total = scratch[: part.stop - part.start]
        total.fill(0.0)
        for data, weight in zip(contributions, weights, strict=True):
            grid.codec.accumulate(data[encoded], weight, total)
        grid.codec.encode(total, out[encoded])
