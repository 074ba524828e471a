"""What a pair sends each other: a pseudo-gradient and weights, on one chunk grid, each with its commitment."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...kernels.chunk_grid import ChunkGrid
from ...kernels.codec import codec
from ..chunks import Contribution, leaf_of, tree_of
from ..commitments import Leaf, Tree
from ..transport import Buffer
from .wire import Commitment, Terms

WEIGHTS_CODEC = "float32"
"""Of weights: what a pair agrees on is finer than a codec's error, and half of its traffic at most could be saved."""


class Grids(NamedTuple):
    """The same chunks, encoded by the run's codec for pseudo-gradients and by `WEIGHTS_CODEC` for weights."""

    delta: ChunkGrid
    weights: ChunkGrid

    @classmethod
    def of(cls, grid: ChunkGrid) -> Grids:
        return cls(grid, ChunkGrid(grid.num_elements, grid.chunk_elements, codec(WEIGHTS_CODEC)))


@dataclass(frozen=True)
class Vectors:
    """Ours, ready to be sent. Neither buffer changes until the round is over."""

    terms: Terms
    delta: memoryview
    delta_tree: Tree
    weights: memoryview
    weights_tree: Tree

    @classmethod
    def of(cls, contribution: Contribution, weights: Buffer, grids: Grids, lineage: int) -> Vectors:
        """Hash and measure the weights; blocking. ``weights``: float32, as they are in memory."""
        view = memoryview(weights).cast("B").toreadonly()
        tree = tree_of(grids.weights, view)
        terms = Terms(
            lineage=lineage,
            round=contribution.round,
            tokens=contribution.tokens,
            num_inner_steps=contribution.num_inner_steps,
            tokens_per_s=contribution.tokens_per_s,
            delta=Commitment.of(contribution.tree.root),
            weights=Commitment.of(tree.root),
        )
        return cls(terms, contribution.encoded, contribution.tree, view, tree)


class Inbox:
    """Where a partner's vectors arrive: a nameless file, so that large models do not need the memory twice.

    Raises OSError if the disk does not have the space, before anything arrives.
    """

    def __init__(self, grids: Grids, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        size = grids.delta.total_encoded + grids.weights.total_encoded
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self._memory = mmap.mmap(file.fileno(), size)
        every = np.frombuffer(self._memory, np.uint8)
        self.delta = every[: grids.delta.total_encoded]
        self.weights = every[grids.delta.total_encoded :]


def check_chunk(grid: ChunkGrid, chunk: int, encoded: Buffer, leaf: Leaf) -> None:
    """Raise ValueError unless ``encoded`` is what ``leaf`` commits to, and finite. Blocking."""
    grid.codec.check(encoded, grid.chunk_length(chunk))
    if leaf_of(grid, chunk, encoded) != leaf:
        raise ValueError(f"chunk {chunk} is not the one that was committed to")


def squared_distance(own: Buffer, other: Buffer) -> float:
    """Σ (own − other)² of two float32 buffers, in float64. Blocking."""
    difference = np.frombuffer(own, np.float32).astype(np.float64)
    difference -= np.frombuffer(other, np.float32)
    return float(np.dot(difference, difference))
