"""How a joiner gets the swarm's state, and how others give it: verified, from several donors, resumable.

`StateSync` (client), `StateServer` (donor), `Chain` (what may be believed), `SnapshotLeaves` (a donor's memory).
The way from the snapshot's round to the head is by results: `result_transfer`.
"""

from __future__ import annotations

from .chain import Chain, ChainHead, InvalidChain, check_commit, head_of
from .client import StateSync, StateUnavailable, SyncedState, SyncProgress
from .planning import Certifier, Uncertified
from .server import StateServer, StateSource
from .snapshot import PartialSnapshot, SnapshotLeaves, SnapshotManifest

__all__ = [
    "Certifier",
    "Chain",
    "ChainHead",
    "InvalidChain",
    "PartialSnapshot",
    "SnapshotLeaves",
    "SnapshotManifest",
    "StateServer",
    "StateSource",
    "StateSync",
    "StateUnavailable",
    "SyncProgress",
    "SyncedState",
    "Uncertified",
    "check_commit",
    "head_of",
]
