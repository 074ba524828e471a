"""What a simulated swarm is made of: genesis, nodes and their disks, and the error when a property fails."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..amendments import RunRules
from ..grace import Pace
from ..identity import Identity, PeerId
from ..messages import Commit, Heartbeat
from ..round_machine import Acceptor, Event, PeerView, Phase, Received, RoundState
from ..spec import Genesis, MembershipConfig, TimingConfig
from ..values import NodePhase
from .behaviours import Behaviour


class Violation(AssertionError):
    """A safety property does not hold."""


@dataclass(frozen=True)
class Proof:
    """Stands for verified evidence against a peer."""

    accused: PeerId
    rules: str | None = None
    """`rules_id` that it is judged by; None: it speaks for itself."""
    round: int = 1


@dataclass
class Disk:
    """What survives a crash."""

    acceptors: dict[int, Acceptor] = field(default_factory=dict[int, Acceptor])
    """By round, of the present lineage."""
    held: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Plan id → digests of the span results that are durable."""
    commits: list[Commit] = field(default_factory=list[Commit])
    rules: RunRules | None = None
    """With the amendments that are known; None: the genesis."""
    lineage: int = 0
    """The present one, by these rules."""
    signed_resets: dict[int, str] = field(default_factory=dict[int, str])
    proofs: dict[PeerId, Proof] = field(default_factory=dict[PeerId, Proof])


@dataclass
class Node:
    """One member: its disk, and its round machine while it runs."""

    peer: PeerId
    disk: Disk = field(default_factory=Disk)
    state: RoundState | None = None
    given_up: list[str] = field(default_factory=list[str])
    """Reasons of the contributions that were withdrawn."""
    offered_tokens: int = 0
    """Of its last contribution."""
    reachable: bool = True
    abstains: bool = False
    """Whether it says that it may have forgotten what it has said."""
    phase: NodePhase = "training"
    """What its trainer does; while it trains, the machine's phase says more."""
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of its heartbeats."""
    paces: list[Pace] = field(default_factory=list[Pace])
    behaviour: Behaviour = field(default_factory=Behaviour)
    is_asleep: bool = False
    slept_since_s: float = 0.0
    inbox: list[Event] = field(default_factory=list[Event])
    """What came while it slept."""
    clock_offset_s: float = 0.0
    """How far its clock is from the world's: `RoundState` times are in its own."""
    early: dict[tuple[PeerId, str], Received] = field(default_factory=dict[tuple[PeerId, str], Received])
    """Messages for the round after the present one."""
    heard: dict[PeerId, PeerView] = field(default_factory=dict[PeerId, PeerView])
    """Heartbeats since the machine's last event that only say that their senders live: it gets them with the next."""
    greeted: dict[PeerId, Heartbeat] = field(default_factory=dict[PeerId, Heartbeat])
    """The last heartbeats that it has let in, in this round."""
    num_starts: int = 0
    started_s: float = 0.0
    up_s: float = 0.0
    """How long it has been up, before its last start."""
    heartbeat: Heartbeat | None = None
    """The last one that it has sent; the next is the same value if nothing has changed."""
    told: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it says, its state's hash apart."""

    @property
    def is_honest(self) -> bool:
        return type(self.behaviour) is Behaviour

    @property
    def is_up(self) -> bool:
        return self.state is not None

    def total_up_s(self, now: float) -> float:
        """How long it has been up, all its starts together."""
        return self.up_s + (now - self.started_s if self.is_up else 0.0)

    @property
    def is_running(self) -> bool:
        """Up and not suspended."""
        return self.state is not None and not self.is_asleep

    @property
    def round(self) -> int:
        """The round it works on."""
        return len(self.disk.commits) + 1

    @property
    def told_phase(self) -> NodePhase:
        """The phase that its heartbeats say."""
        if self.phase != "training" or self.state is None:
            return self.phase
        return _PHASES.get(self.state.phase, "training")


_PHASES: dict[Phase, NodePhase] = {
    Phase.READY: "ready",
    Phase.REDUCING: "exchanging",
    Phase.IN_DOUBT: "exchanging",
}


@lru_cache(maxsize=4096)
def identity_of(number: int) -> Identity:
    """Key of the simulated peer with this number, from 1 on: always the same one."""
    return Identity.from_seed(bytes([number]) * 32 if number < 256 else number.to_bytes(32, "big"))


def people(num_peers: int) -> list[PeerId]:
    """Peer ids of simulated nodes: always the same ones."""
    return [identity_of(number).peer_id for number in range(1, num_peers + 1)]


def world_genesis(num_peers: int, **membership: object) -> Genesis:
    """A genesis with short times for ``num_peers`` members; further ones may join."""
    peers = people(num_peers + 4)
    return Genesis(
        name="soup",
        protocol_version=1,
        initial_state="00" * 32,
        operators=(peers[0],),
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
            {"roster": tuple(peers[:num_peers]), "allowed": tuple(peers[num_peers:]), **membership}
        ),
    )


def digest(*parts: object) -> str:
    """A made-up digest that depends on ``parts`` alone."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def state_hash(commits: Sequence[Commit]) -> str:
    """Stands for the hash of the weights after ``commits``."""
    return digest(*(commit.record.content_id() for commit in commits[-1:]), len(commits))
