"""What a simulated swarm is made of: genesis, nodes and their disks, and the error when a property fails."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from ..identity import Identity, PeerId
from ..messages import (
    Commit,
    SpanResult,
)
from ..round_machine import (
    Acceptor,
    RoundState,
)
from ..spec import Genesis, MembershipConfig, TimingConfig


class Violation(AssertionError):
    """A safety property does not hold."""


@dataclass
class Disk:
    """What survives a crash."""

    acceptors: dict[int, Acceptor] = field(default_factory=dict[int, Acceptor])
    held: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    commits: list[Commit] = field(default_factory=list[Commit])


@dataclass
class Node:
    """One member: its disk, and its round machine while it runs."""

    peer: PeerId
    disk: Disk = field(default_factory=Disk)
    state: RoundState | None = None
    arrived: dict[tuple[str, int], SpanResult] = field(default_factory=dict[tuple[str, int], SpanResult])
    given_up: list[str] = field(default_factory=list[str])
    """Reasons of the contributions that were withdrawn."""
    reachable: bool = True
    phase: str = "training"

    @property
    def is_up(self) -> bool:
        return self.state is not None

    @property
    def round(self) -> int:
        """The round it works on."""
        return len(self.disk.commits) + 1


@lru_cache(maxsize=128)
def _person(number: int) -> PeerId:
    return Identity.from_seed(bytes([number + 1]) * 32).peer_id


def soup_genesis(num_peers: int, **membership: int) -> Genesis:
    """A genesis with short times for ``num_peers`` members; further ones may join."""
    people = [_person(number) for number in range(num_peers + 4)]
    return Genesis(
        name="soup",
        protocol_version=1,
        initial_state="00" * 32,
        operators=(people[0],),
        model={},
        timing=TimingConfig(
            heartbeat_interval_s=1,
            heartbeat_timeout_s=5,
            drop_after_s=60,
            ready_grace_s=10,
            progress_timeout_s=4,
            attempt_timeout_s=20,
            quorum_timeout_s=200,
        ),
        membership=MembershipConfig.model_validate(
            {"roster": tuple(people[:num_peers]), "allowed": tuple(people[num_peers:]), **membership}
        ),
    )


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
