"""What this node gives to joiners: its commits, and a copy of its state that does not change while it is downloaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..protocol.messages import Commit
from ..protocol.state_sync import SnapshotLeaves, SnapshotManifest
from ..protocol.transport import Buffer
from .replica import Replica

_NUM_COPIES = 2
"""A download of the state before last can end while the newest one is copied."""


class Donor:
    """`protocol.state_sync.StateSource` over a replica. A copy is made when somebody asks, once per round."""

    def __init__(self, replica: Replica, attests: Callable[[int], Sequence[str]]) -> None:
        """``attests``: hexadecimal `Attest` envelopes that are known for a round."""
        self._replica, self._attests = replica, attests
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, SnapshotLeaves] = OrderedDict()
        """By record: a round may be another one in another lineage."""

    @property
    def head_round(self) -> int:
        return self._replica.head_round

    def commits(self, first: int, count: int) -> Sequence[Commit]:
        return self._replica.commits(first, count)

    def manifest(self) -> SnapshotManifest | None:
        """None before the first commit: the genesis state needs no download."""
        if self._replica.head_round == 0:
            return None
        with self._lock:
            manifest = self._newest().manifest
        return manifest.model_copy(update={"attests": tuple(self._attests(manifest.round))})

    def read_leaf(self, digest: str) -> Buffer | None:
        with self._lock:
            copies = list(self._copies.values())
        return next((data for copy in reversed(copies) if (data := copy.read(digest)) is not None), None)

    def _newest(self) -> SnapshotLeaves:
        if self._replica.standing.record_id not in self._copies:
            copy = self._replica.copy()
            manifest = SnapshotManifest(
                round=copy.round,
                record=copy.record_id,
                context=copy.context.hex(),
                num_bytes=len(copy.data),
                leaves=tuple(leaf.hex() for leaf in copy.leaves),
            )
            self._copies[copy.record_id] = SnapshotLeaves(manifest, [copy.data])
            while len(self._copies) > _NUM_COPIES:
                self._copies.popitem(last=False)
        return next(reversed(self._copies.values()))
