"""The first heartbeat that was heard from each founder, on disk: what `recollection` answers with (S1)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .durable import replace_durably
from .envelope import Envelope, InvalidMessage
from .identity import PeerId
from .messages import MAX_MEMORY

_SUFFIX = ".heartbeat"


class FirstWords:
    """Of one node, in a folder of its own: a file per founder, written once, so that a restart forgets nobody.

    The files lie beside the votes, not beside the state: who restores an older state still knows whom it has heard.
    """

    def __init__(self, folder: Path, founders: tuple[PeerId, ...], run_id: str) -> None:
        self._folder, self._founders, self._run_id = folder, founders, run_id
        folder.mkdir(parents=True, exist_ok=True)
        read = {founder: self._read(founder) for founder in founders}
        self._words = {founder: raw for founder, raw in read.items() if raw is not None}

    def of(self, peer: PeerId) -> bytes | None:
        """The signed envelope, None if nothing was heard."""
        return self._words.get(peer)

    def note(self, peer: PeerId, raw: bytes) -> None:
        """A heartbeat has come. Waits for the disk, once per founder in the life of a folder."""
        if peer not in self._founders or peer in self._words or 2 * len(raw) > MAX_MEMORY:  # no honest one is longer
            return
        self._words[peer] = raw
        with suppress(OSError):  # a full disk is told by the votes, which cannot be given then
            replace_durably(self._path(peer), raw)

    def _path(self, peer: PeerId) -> Path:
        return self._folder / f"{peer}{_SUFFIX}"

    def _read(self, peer: PeerId) -> bytes | None:
        """None if there is no file, or one that the peer has not signed."""
        try:
            raw = self._path(peer).read_bytes()
            return raw if Envelope.open(raw, run_id=self._run_id).header.sender == peer else None
        except (OSError, InvalidMessage):
            return None
