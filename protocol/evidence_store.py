"""Evidence on disk: whom this node will not work with any more survives its process. One file per accused peer.

A file holds the length of the header (4 bytes), the header, and the payload (`evidence`); it is complete or not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .chunks import ChunkGrid
from .durable import sync_folder
from .evidence import Evidence, FalseEvidence, assemble, decode_header, encode_header, encode_payload
from .identity import PeerId, public_key_of
from .quotas import EVIDENCE_KEPT

_SUFFIX = ".evidence"


class EvidenceStore:
    """The verified evidence of one node, in a folder of its own. Blocking: `save` and `load` off the event loop."""

    def __init__(self, folder: Path, grid: ChunkGrid) -> None:
        self._folder, self._grid = folder, grid
        folder.mkdir(parents=True, exist_ok=True)
        self.accused = {PeerId(path.stem) for path in folder.glob(f"*{_SUFFIX}") if _is_peer(path.stem)}

    def save(self, evidence: Evidence) -> None:
        """Make verified evidence durable; the first against a peer is kept. Raises OSError."""
        path = self._path(evidence.accused)
        if not path.exists():
            header, temporary = encode_header(evidence), path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                file.write(len(header).to_bytes(4, "little") + header + encode_payload(evidence))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(self._folder)
        self.accused.add(PeerId(evidence.accused))

    def prune(self, ejected: Sequence[PeerId]) -> None:
        """Of those whose ejection is committed, oldest first, keep the last: who is level asks for none of them."""
        for peer in ejected[:-EVIDENCE_KEPT]:
            if peer in self.accused:
                self._path(peer).unlink(missing_ok=True)
                self.accused.discard(peer)

    def load(self, accused: PeerId) -> Evidence | None:
        """What is held against a peer; None if there is nothing, or it is damaged."""
        try:
            data = self._path(accused).read_bytes()
            end = 4 + int.from_bytes(data[:4], "little")
            return assemble(decode_header(data[4:end]), memoryview(data)[end:], self._grid)
        except (OSError, FalseEvidence, ValueError):
            return None

    def _path(self, accused: str) -> Path:
        return self._folder / f"{accused}{_SUFFIX}"


def _is_peer(name: str) -> bool:
    try:
        return bool(public_key_of(name))
    except ValueError:
        return False
