"""What a snapshot is: one committed round's state in leaves of 1 MiB under the state hash, and the file it grows in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...kernels.hash_tree import LEAF_BYTES, leaf_digest, root
from ..durable import sync_folder
from ..transport import Buffer
from ..values import Count, Digest, Frozen, Round


class SnapshotManifest(Frozen):
    """A donor's description of a snapshot. Nothing in it is believed before `state_hash` is certified."""

    round: Round
    record: Digest
    """Content id of the record of the commit after which this is the state."""
    context: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=4096)]
    """What the state hash binds besides the bytes (round, data cursor), hexadecimal."""
    num_bytes: Annotated[Count, Field(ge=1)]
    leaves: Annotated[tuple[Digest, ...], Field(max_length=1 << 17)]
    attests: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=1024)] = ()
    """Hexadecimal envelopes of `messages.Attest`; may be too few while the next commit certifies the state anyway."""

    @property
    def state_hash(self) -> Digest:
        return root([bytes.fromhex(leaf) for leaf in self.leaves], bytes.fromhex(self.context))

    @property
    def is_well_formed(self) -> bool:
        return len(self.leaves) == -(-self.num_bytes // LEAF_BYTES)

    def leaf_range(self, leaf: int) -> slice:
        return slice(leaf * LEAF_BYTES, min((leaf + 1) * LEAF_BYTES, self.num_bytes))


class SnapshotLeaves:
    """A donor's leaves over memory that holds (or held) the snapshot, for example the anchor and the momentum.

    Every leaf is copied and hashed again before it leaves: if the memory has moved on to another round meanwhile, the
    leaf counts as gone. Keep an immutable copy where a download takes longer than a round.
    """

    def __init__(self, manifest: SnapshotManifest, buffers: Sequence[Buffer]) -> None:
        self.manifest = manifest
        self._views = [memoryview(buffer).cast("B") for buffer in buffers]
        self._leaf_of = {digest: index for index, digest in enumerate(manifest.leaves)}

    def read(self, digest: Digest) -> bytes | None:
        """The leaf's bytes, or None if it is not (or no longer) here. Blocking: hashes 1 MiB."""
        leaf = self._leaf_of.get(digest)
        if leaf is None:
            return None
        data = self._copy(self.manifest.leaf_range(leaf))
        return data if leaf_digest(data).hex() == digest else None

    def _copy(self, wanted: slice) -> bytes:
        """Bytes of the buffers' concatenation."""
        data, offset = bytearray(), 0
        for view in self._views:
            data += view[max(wanted.start - offset, 0) : max(wanted.stop - offset, 0)]
            offset += len(view)
        return bytes(data)


class PartialSnapshot:
    """The file that a download fills. It survives a restart, and what it holds is found again by hashing it.

    No index is kept: a leaf counts as here if the bytes at its place match the manifest, whichever snapshot or run of
    the program they came from. Blocking.
    """

    def __init__(self, path: Path, manifest: SnapshotManifest) -> None:
        self.path = path
        self.manifest = manifest
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            existing = os.fstat(self._descriptor).st_size
            self.missing = self._find_missing(existing)
            os.ftruncate(self._descriptor, manifest.num_bytes)
            os.posix_fallocate(self._descriptor, 0, manifest.num_bytes)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _find_missing(self, existing_bytes: int) -> set[int]:
        leaves = range(len(self.manifest.leaves))
        return {leaf for leaf in leaves if not self._is_here(leaf, existing_bytes)}

    def _is_here(self, leaf: int, existing_bytes: int) -> bool:
        wanted = self.manifest.leaf_range(leaf)
        if wanted.start >= existing_bytes:
            return False
        data = os.pread(self._descriptor, wanted.stop - wanted.start, wanted.start)
        return leaf_digest(data).hex() == self.manifest.leaves[leaf]

    def put(self, leaf: int, data: Buffer) -> bool:
        """Write a leaf; False (and nothing written) if its bytes are not the manifest's."""
        if leaf_digest(data).hex() != self.manifest.leaves[leaf]:
            return False
        written, start = 0, self.manifest.leaf_range(leaf).start
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], start + written)
        self.missing.discard(leaf)
        return True

    def finish(self) -> None:
        """Make a complete file durable. Raises ValueError if leaves are missing."""
        if self.missing:
            raise ValueError(f"{len(self.missing)} leaves are missing")
        os.fsync(self._descriptor)
        sync_folder(self.path.parent)

    def close(self) -> None:
        os.close(self._descriptor)
