"""What this node gives to joiners: its commits, and a copy of its state that does not change while it is downloaded.

An archivist, and whoever else still has it, also gives the state that the present lineage begins with, from its disk.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..protocol.messages import Commit
from ..protocol.state_sync import SnapshotLeaves, SnapshotManifest
from ..protocol.transport import Buffer
from .gossip_replica import GossipReplica
from .replica import Replica, StateCopy

_NUM_COPIES = 2
"""A download of the state before last can end while the newest one is copied."""
_IDLE_S = 300.0
"""An old state of which nobody has asked for so long is in memory no longer."""


class Donor:
    """`protocol.state_sync.StateSource` over a replica. A copy is made when somebody asks, once per round."""

    def __init__(
        self,
        replica: Replica | GossipReplica,
        attests: Callable[[int], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``attests``: hexadecimal `Attest` envelopes that are known for a round."""
        self._replica, self._attests, self._clock = replica, attests, clock
        self._start: SnapshotLeaves | None = None
        """The state that the present lineage begins with."""
        self._asked_s = 0.0
        """When somebody last asked for a part of it."""
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

    def archived(self, record: str) -> SnapshotManifest | None:
        """Reads the whole state once, however many ask for it; any other record than the lineage's first is refused."""
        with self._lock:
            if self._start is None or self._start.manifest.record != record:
                copy = self._replica.starting_copy(record)
                self._start = None if copy is None else _leaves_of(copy)
            self._asked_s = self._clock()
            return None if self._start is None else self._start.manifest

    def read_leaf(self, digest: str) -> Buffer | None:
        with self._lock:
            copies = list(self._copies.values())
            self._drop_idle_start()
            start = self._start
        found = next((data for copy in reversed(copies) if (data := copy.read(digest)) is not None), None)
        if found is None and start is not None and (found := start.read(digest)) is not None:
            self._asked_s = self._clock()
        return found

    def _drop_idle_start(self) -> None:
        if self._start is not None and self._clock() - self._asked_s > _IDLE_S:
            self._start = None

    def _newest(self) -> SnapshotLeaves:
        self._drop_idle_start()
        if self._replica.standing.record_id not in self._copies:
            copy = self._replica.copy()
            self._copies[copy.record_id] = _leaves_of(copy)
            while len(self._copies) > _NUM_COPIES:
                self._copies.popitem(last=False)
        return next(reversed(self._copies.values()))


def _leaves_of(copy: StateCopy) -> SnapshotLeaves:
    manifest = SnapshotManifest(
        round=copy.round,
        record=copy.record_id,
        context=copy.context.hex(),
        num_bytes=len(copy.data),
        leaves=tuple(leaf.hex() for leaf in copy.leaves),
    )
    return SnapshotLeaves(manifest, [copy.data])
