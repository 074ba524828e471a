"""The state hash: BLAKE3 leaves of 1 MiB over the state's bytes, and one root over leaves and context.

State sync transfers and verifies the same leaves. A leaf digest is plain BLAKE3; the root uses BLAKE3's key-derivation
mode, so that no leaf can pass for a root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import Any, cast

from blake3 import blake3
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | mmap | NDArray[Any]
"""Whatever lends contiguous memory."""

LEAF_BYTES = 1 << 20
DIGEST_BYTES = 32
ROOT_CONTEXT = "atoll 2026 state root v1"


def leaf_digest(data: Buffer) -> bytes:
    """Digest (32 bytes) of one leaf."""
    return blake3(memoryview(cast("Any", data)).cast("B")).digest()


def leaf_digests(buffers: Sequence[Buffer]) -> list[bytes]:
    """Digests of the buffers' concatenation cut into leaves of `LEAF_BYTES`; the last may be shorter.

    Nothing is copied, and the GIL is released while hashing. Buffers must be contiguous; empty ones count for nothing.
    """
    return [_digest(pieces) for pieces in _leaves(buffers)]


def root(leaves: Sequence[bytes], context: bytes) -> str:
    """Hexadecimal root over the number of leaves, `context` (round, data cursor, …) and the leaf digests in order."""
    hasher = blake3(derive_key_context=ROOT_CONTEXT)
    hasher.update(len(leaves).to_bytes(8, "little") + len(context).to_bytes(8, "little") + context)
    for leaf in leaves:
        if len(leaf) != DIGEST_BYTES:
            raise ValueError(f"a leaf digest has {DIGEST_BYTES} bytes, not {len(leaf)}")
    hasher.update(b"".join(leaves))
    return hasher.hexdigest()


def _digest(pieces: list[memoryview]) -> bytes:
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def _leaves(buffers: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """The pieces that make up each leaf."""
    pieces: list[memoryview] = []
    room = LEAF_BYTES
    for view in (memoryview(cast("Any", buffer)) for buffer in buffers):
        rest = view.cast("B") if view.nbytes else memoryview(b"")
        while rest.nbytes:
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= piece.nbytes
            if room == 0:
                yield pieces
                pieces, room = [], LEAF_BYTES
    if pieces:
        yield pieces
