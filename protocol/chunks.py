"""Spans on the chunk grid, chunk digests, and what a member commits to.

Every length that the exchange and state sync expect comes from the grid and the plan, never from a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from ..kernels.chunk_grid import ChunkGrid as ChunkGrid
from .messages import Digest, Span
from .spans import cover
from .transport import Buffer

DIGEST_BYTES = 32
_COMMITMENT_DOMAIN = b"atoll/commitment/1\0"


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


def leaf_digests(grid: ChunkGrid, encoded: Buffer) -> tuple[bytes, ...]:
    """BLAKE3 of every encoded chunk. Raises ValueError if ``encoded`` has another length than the grid's."""
    view = memoryview(encoded).cast("B")
    if len(view) != grid.total_encoded:
        raise ValueError(f"encoded vector has {len(view)} bytes instead of {grid.total_encoded}")
    return tuple(chunk_digest(view[grid.encoded_range(chunk)]) for chunk in range(grid.num_chunks))


def chunk_digest(encoded: Buffer) -> bytes:
    """BLAKE3 of one encoded chunk, 32 bytes. Releases the GIL for large chunks."""
    return blake3(encoded).digest()


def span_digest(encoded: Buffer) -> Digest:
    """`SpanResult.digest`: BLAKE3 of a span's encoded mean."""
    return blake3(encoded).hexdigest()


def commitment(leaves: Sequence[bytes]) -> Digest:
    """Root over a contribution's chunk digests (`Member.commitment`); binds their number and order.

    All leaves travel to every span owner (32 bytes per chunk), so a flat hash does what a Merkle tree would.
    """
    hasher = blake3(_COMMITMENT_DOMAIN + len(leaves).to_bytes(8, "little"))
    for leaf in leaves:
        hasher.update(leaf)
    return hasher.hexdigest()


@dataclass(frozen=True)
class Contribution:
    """An encoded pseudo-gradient, ready to be sent. ``encoded`` must not change until its round is decided."""

    round: int
    """Number of the commit that it is meant for."""
    tokens: int
    encoded: memoryview
    """Encoded chunks of the grid, concatenated."""
    leaves: tuple[bytes, ...]
    commitment: Digest
    num_inner_steps: int = 0
    tokens_per_s: float = 0.0
    squared_norm: float = 0.0

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
    ) -> Contribution:
        """Hash ``encoded`` (run it off the event loop: about a second per 2 GB)."""
        view = memoryview(encoded).cast("B").toreadonly()
        leaves = leaf_digests(grid, view)
        return cls(round_number, tokens, view, leaves, commitment(leaves), num_inner_steps, tokens_per_s)
