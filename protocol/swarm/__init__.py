"""The run's network over libp2p: `Swarm.start(SwarmSettings(...))`. The only package that imports hivemind."""

from __future__ import annotations

from .addresses import DirectPortInUse, PortInUse
from .libp2p_transport import usable_address
from .seeds import dial_seeds
from .settings import (
    DuplicateIdentity,
    Health,
    SeedCause,
    SeedResult,
    SwarmError,
    SwarmEvent,
    SwarmSettings,
)
from .swarm import Swarm

__all__ = [
    "DirectPortInUse",
    "DuplicateIdentity",
    "Health",
    "PortInUse",
    "SeedCause",
    "SeedResult",
    "Swarm",
    "SwarmError",
    "SwarmEvent",
    "SwarmSettings",
    "dial_seeds",
    "usable_address",
]
