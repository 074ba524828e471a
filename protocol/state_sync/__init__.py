"""How a joiner gets the swarm's state, and how others give it: verified, from several donors, resumable.

`StateSync` (client), `StateServer` (donor), `Chain` (what may be believed), `SnapshotLeaves` (a donor's memory).
The way from the snapshot's round to the head is by results: `catch_up`.
"""

from __future__ import annotations

from .catch_up import StateMismatch, catch_up
from .chain import Chain, InvalidChain, RulesMissing, check_commit
from .client import StateSync, StateUnavailable, SyncedState, SyncProgress
from .pacing import Pacer
from .planning import Certifier, Uncertified
from .server import StateServer, StateSource
from .snapshot import PartialSnapshot, SnapshotLeaves, SnapshotManifest

__all__ = [
    "Certifier",
    "Chain",
    "InvalidChain",
    "Pacer",
    "PartialSnapshot",
    "RulesMissing",
    "SnapshotLeaves",
    "SnapshotManifest",
    "StateMismatch",
    "StateServer",
    "StateSource",
    "StateSync",
    "StateUnavailable",
    "SyncProgress",
    "SyncedState",
    "Uncertified",
    "catch_up",
    "check_commit",
]
