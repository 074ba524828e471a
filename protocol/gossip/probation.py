"""Since which round each peer has been known here, so that a newcomer weighs nothing at first (``trust``).

Every node keeps its own account, on disk: a restart makes nobody new. Founders (the genesis' roster) are never new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from ..durable import sync_folder
from ..identity import PeerId
from ..peers import MAX_PEERS
from ..record import Newcomer

_MAX_FILE_BYTES = 128 * MAX_PEERS
"""A line of it has a peer's name and a number."""


class Probation:
    """``founders`` count from the start. A file that cannot be read counts as empty: then everybody is new once."""

    def __init__(self, path: Path, founders: Collection[PeerId], num_rounds: int) -> None:
        self._path, self._founders, self._num_rounds = path, frozenset(founders), num_rounds
        self._first: dict[PeerId, int] = _read(path)

    def meet(self, peers: Collection[PeerId], round_number: int) -> None:
        """These are heard from in a round. Blocking if one of them is new; a disk that is full forgets it later."""
        new = [peer for peer in peers if peer not in self._first and peer not in self._founders]
        if not new or not self._num_rounds:
            return
        for peer in new:
            if len(self._first) < MAX_PEERS:
                self._first[peer] = round_number
        self._write()

    def counts_from(self, peer: PeerId) -> int:
        """The round from which a peer's work counts here; 0 for founders, and where the run has no probation."""
        if peer in self._founders or not self._num_rounds:
            return 0
        first = self._first.get(peer)
        return 2**40 if first is None else first + self._num_rounds

    def newcomers(self, peers: Collection[PeerId], round_number: int) -> tuple[Newcomer, ...]:
        """Those of ``peers`` that do not count yet in ``round_number``."""
        return tuple(
            Newcomer(peer=peer, counts_from=self.counts_from(peer))
            for peer in peers
            if self.counts_from(peer) > round_number
        )

    def _write(self) -> None:
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._first))
            os.replace(temporary, self._path)
            sync_folder(self._path.parent)
        except OSError:
            return


def _read(path: Path) -> dict[PeerId, int]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    entries = cast("dict[str, Any]", found)
    sound = {peer: first for peer, first in entries.items() if isinstance(first, int) and 0 <= first <= 2**40}
    return {PeerId(peer): first for peer, first in list(sound.items())[:MAX_PEERS]}
