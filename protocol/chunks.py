"""Spans on the chunk grid, chunk digests, and what a member commits to.

Every length that the exchange and state sync expect comes from the grid and the plan, never from a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from ..kernels.chunk_grid import ChunkGrid as ChunkGrid
from .commitments import DIGEST_BYTES as DIGEST_BYTES
from .commitments import Leaf, Tree
from .record import Span
from .spans import cover
from .transport import Buffer
from .values import Digest


def span_chunks(grid: ChunkGrid, span: Span) -> range:
    """Chunks of ``span``; raises ValueError if it leaves the grid."""
    end = span.first_chunk + span.num_chunks
    if end > grid.num_chunks:
        raise ValueError(f"span of chunks {span.first_chunk}..{end - 1} leaves the grid of {grid.num_chunks}")
    return range(span.first_chunk, end)


def span_range(grid: ChunkGrid, span: Span) -> slice:
    """Bytes of ``span`` in the encoded vector."""
    chunks = span_chunks(grid, span)
    return slice(grid.encoded_range(chunks[0]).start, grid.encoded_range(chunks[-1]).stop)


def covers(grid: ChunkGrid, spans: Sequence[Span]) -> bool:
    """Whether ``spans`` are in order and cover every chunk exactly once."""
    return cover(spans, grid.num_chunks)


def leaf_of(grid: ChunkGrid, chunk: int, encoded: Buffer) -> Leaf:
    """Digest and squared norm of one encoded chunk. Raises ValueError if no encoder can have written it.

    Releases the GIL for large chunks.
    """
    return Leaf(chunk_digest(encoded), grid.codec.squared_norm(encoded, grid.chunk_length(chunk)))


def chunk_digest(encoded: Buffer) -> bytes:
    """BLAKE3 of one encoded chunk, 32 bytes. Releases the GIL for large chunks."""
    return blake3(encoded).digest()


def tree_of(grid: ChunkGrid, encoded: Buffer, chunks: range | None = None) -> Tree:
    """The tree over ``chunks`` (all by default) whose encodings ``encoded`` is, concatenated.

    Raises ValueError if ``encoded`` has another length, or holds what no encoder writes.
    """
    chunks = range(grid.num_chunks) if chunks is None else chunks
    start, stop = grid.encoded_range(chunks[0]).start, grid.encoded_range(chunks[-1]).stop
    view = memoryview(encoded).cast("B")
    if len(view) != stop - start:
        raise ValueError(f"encoded vector has {len(view)} bytes instead of {stop - start}")
    ranges = ((chunk, grid.encoded_range(chunk)) for chunk in chunks)
    return Tree([leaf_of(grid, chunk, view[part.start - start : part.stop - start]) for chunk, part in ranges])


def span_digest(grid: ChunkGrid, span: Span, encoded: Buffer) -> Digest:
    """`SpanResult.digest`: root over the chunks of a span's encoded mean."""
    return tree_of(grid, encoded, span_chunks(grid, span)).root.digest


@dataclass(frozen=True)
class Contribution:
    """An encoded pseudo-gradient, ready to be sent. ``encoded`` must not change until its round is decided."""

    round: int
    """Number of the commit that it is meant for."""
    tokens: int
    encoded: memoryview
    """Encoded chunks of the grid, concatenated."""
    tree: Tree
    """Over all chunks; its root is what is committed to."""
    num_inner_steps: int = 0
    tokens_per_s: float = 0.0
    inner_state: str = ""
    """See `Member.inner_state`."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.tree.leaves

    @property
    def commitment(self) -> Digest:
        return self.tree.root.digest

    @property
    def squared_norm(self) -> float:
        """Of the decoded values, as every owner can check for its span."""
        return self.tree.root.squared_norm

    @classmethod
    def of(
        cls,
        grid: ChunkGrid,
        encoded: Buffer,
        *,
        round_number: int,
        tokens: int,
        num_inner_steps: int = 0,
        tokens_per_s: float = 0.0,
        inner_state: str = "",
    ) -> Contribution:
        """Hash and measure ``encoded`` (run it off the event loop: about two seconds per 2 GB)."""
        view = memoryview(encoded).cast("B").toreadonly()
        return cls(round_number, tokens, view, tree_of(grid, view), num_inner_steps, tokens_per_s, inner_state)
