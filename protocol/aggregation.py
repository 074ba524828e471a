"""A chunk of the mean, as its owner computes it and as anybody who holds the contributions can compute it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels.aggregation import LeftOut, aggregate
from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import Bytes, Float32Array
from .transport import Buffer


@dataclass(frozen=True)
class ChunkMean:
    """One reduced chunk."""

    encoded: Bytes
    values: Float32Array
    """Before they were encoded."""
    left_out: tuple[LeftOut, ...]
    """Contributions, by their place among the data, that the rule took no notice of."""


def reduce_chunk(
    grid: ChunkGrid, chunk: int, datas: Sequence[Buffer], weights: Sequence[float], rule: str = "mean"
) -> ChunkMean:
    """Aggregate valid encodings of ``chunk`` in plan order under ``rule`` (`TrustConfig.aggregation`), and encode once.

    ``weights`` are those of `weights.weights`, one per contribution. CPU-bound, deterministic, releases the GIL.
    """
    values = np.empty(grid.chunk_length(chunk), np.float32)
    left_out = aggregate(rule, grid.codec, datas, weights, values)
    encoded = np.empty(grid.encoded_bytes(chunk), np.uint8)
    grid.codec.encode(values, encoded)
    return ChunkMean(encoded, values, left_out)
