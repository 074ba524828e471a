"""The fixed grid on which encoded vectors are hashed, sent, checked and reduced, and what a member commits to.

A flat float32 vector is cut into chunks of `ChunkGrid.chunk_elements`; each chunk is encoded on its own and the
encodings are concatenated. Every length that the exchange and state sync expect comes from this grid and the plan,
never from a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from blake3 import blake3

from .messages import Digest, Span
from .transport import Buffer

if TYPE_CHECKING:
    from ..kernels.codec import Codec

DIGEST_BYTES = 32
_COMMITMENT_DOMAIN = b"atoll/commitment/1\0"


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
        self._check(chunk)
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

    def span_chunks(self, span: Span) -> range:
        """Chunks of ``span``; raises ValueError if it leaves the grid."""
        end = span.first_chunk + span.num_chunks
        if end > self.num_chunks:
            raise ValueError(f"span of chunks {span.first_chunk}..{end - 1} leaves the grid of {self.num_chunks}")
        return range(span.first_chunk, end)

    def span_range(self, span: Span) -> slice:
        """Bytes of ``span`` in the encoded vector."""
        chunks = self.span_chunks(span)
        return slice(self.encoded_range(chunks[0]).start, self.encoded_range(chunks[-1]).stop)

    def leaf_digests(self, encoded: Buffer) -> tuple[bytes, ...]:
        """BLAKE3 of every encoded chunk. Raises ValueError if ``encoded`` has another length than the grid's."""
        view = memoryview(encoded).cast("B")
        if len(view) != self.total_encoded:
            raise ValueError(f"encoded vector has {len(view)} bytes instead of {self.total_encoded}")
        return tuple(chunk_digest(view[self.encoded_range(chunk)]) for chunk in range(self.num_chunks))

    def covers(self, spans: Sequence[Span]) -> bool:
        """Whether ``spans`` are in order and cover every chunk exactly once."""
        next_chunk = 0
        for span in spans:
            if span.first_chunk != next_chunk:
                return False
            next_chunk += span.num_chunks
        return next_chunk == self.num_chunks

    def _check(self, chunk: int) -> None:
        if not 0 <= chunk < self.num_chunks:
            raise IndexError(f"chunk {chunk} is outside the grid of {self.num_chunks}")


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

    @classmethod
    def of(
        cls, grid: ChunkGrid, encoded: Buffer, *, round_number: int, tokens: int, num_inner_steps: int = 0
    ) -> Contribution:
        """Hash ``encoded`` (run it off the event loop: about a second per 2 GB)."""
        view = memoryview(encoded).cast("B").toreadonly()
        leaves = grid.leaf_digests(view)
        return cls(round_number, tokens, view, leaves, commitment(leaves), num_inner_steps)
