"""Gossip drivers on one in-memory network, with real swaps, NoLoCo's step, and a small problem in place of a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll.kernels.codec import codec
from atoll.protocol.amendments import RunRules
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.gossip.account import Swapped
from atoll.protocol.gossip.driver import GossipDriver
from atoll.protocol.gossip.replica import Used
from atoll.protocol.gossip.vectors import Grids
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity
from atoll.protocol.lag import Sync
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Outcome, RoundEvent
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import ExchangeConfig, Genesis, GossipConfig, MembershipConfig, TimingConfig
from atoll.protocol.standing import Standing
from atoll.protocol.transport import Buffer
from atoll.training.outer import OuterSettings
from atoll.training.pairs import PairParts, apply_pair

NUM_ELEMENTS = 3 * 4096 + 17
GRID = ChunkGrid(NUM_ELEMENTS, 4096, codec("int8"))
GRIDS = Grids.of(GRID)
PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 9)]
NOLOCO = OuterSettings(lr=0.7, beta=0.5, consensus=0.7)


def genesis_of(people: list[Identity], gossip: GossipConfig | None = None, **changes: object) -> Genesis:
    timing = {
        "heartbeat_interval_s": 0.05,
        "heartbeat_timeout_s": 0.6,
        "drop_after_s": 30,
        "ready_grace_s": 1.0,
        "progress_timeout_s": 0.4,
        "attempt_timeout_s": 3,
        "quorum_timeout_s": 20,
    }
    roster = tuple(person.peer_id for person in people)
    return Genesis(
        name="gossip",
        protocol_version=1,
        initial_state=hashlib.sha256(b"0").hexdigest(),
        operators=roster[:1],
        model={},
        exchange=ExchangeConfig(topology="gossip"),
        timing=TimingConfig(**timing),  # type: ignore[arg-type]
        gossip=gossip or GossipConfig(),
        **{"membership": MembershipConfig(roster=roster), **changes},  # type: ignore[arg-type]
    )


class SmallReplica:
    """Weights and momentum of one peer, without a disk."""

    def __init__(self, genesis: Genesis) -> None:
        self.values = np.zeros(NUM_ELEMENTS, np.float32)
        self.momentum = np.zeros(NUM_ELEMENTS, np.float32)
        self.standing = Standing.of_genesis(genesis)
        self.used: list[Used | None] = []

    @property
    def head_round(self) -> int:
        return self.standing.round

    @property
    def state_hash(self) -> str:
        return hashlib.sha256(self.values.tobytes()).hexdigest()

    def weights(self) -> Buffer:
        return self.values.data

    def take_over(self, other: SmallReplica) -> None:
        self.values[:], self.momentum[:], self.standing = other.values, other.momentum, other.standing

    async def step(self, account: Commit, delta: Buffer, partner: Used | None) -> str:
        parts = None
        if partner is not None:
            theirs = (np.frombuffer(bytes(each), np.uint8) for each in (partner.delta, partner.weights))
            parts = PairParts(*theirs, partner.delta_factor, partner.pull_factor)
        apply_pair(self.values, self.momentum, np.frombuffer(delta, np.uint8), parts, GRIDS, NOLOCO)
        self.standing = Standing.after(account)
        self.used.append(partner)
        return self.state_hash

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        raise NotImplementedError

    def commits(self, first: int, count: int) -> list[Commit]:
        return []

    async def begin_lineage(self) -> None:
        raise NotImplementedError


@dataclass
class Node:
    driver: GossipDriver
    replica: SmallReplica
    events: list[RoundEvent] = field(default_factory=list)

    def points(self, point: str) -> list[RoundEvent]:
        return [event for event in self.events if event.point == point]

    async def contribute(self, delta: np.ndarray, tokens: int = 100) -> Outcome:
        """Offer ``delta`` to the present round."""
        encoded = np.empty(GRID.total_encoded, np.uint8)
        GRID.encode(np.asarray(delta, np.float32), encoded)
        number = self.replica.head_round + 1
        return await self.driver.contribute(Contribution.of(GRID, encoded.data, round_number=number, tokens=tokens))

    async def swapped(self, delta: np.ndarray, tokens: int = 100) -> Swapped:
        """As `contribute`; the round must end."""
        outcome = await self.contribute(delta, tokens)
        assert isinstance(outcome, Swapped), outcome
        return outcome


class Lab:
    """Peers by number: `PEOPLE[number]`."""

    def __init__(self, folder: Path, genesis: Genesis) -> None:
        self.network = MemoryNetwork(progress_timeout_s=0.4)
        self.folder, self.genesis = folder, genesis
        self.nodes: dict[int, Node] = {}

    async def start(
        self, *numbers: int, replica: Callable[[Genesis], SmallReplica] = SmallReplica, sync: Sync | None = None
    ) -> list[Node]:
        for number in numbers:
            person = PEOPLE[number]
            node = Node(None, replica(self.genesis))  # type: ignore[arg-type]
            setup = DriverSetup(
                identity=person,
                book=RuleBook(RunRules(self.genesis)),
                transport=self.network.transport(person),
                directory=self.network.directory(person),
                folder=self.folder / person.peer_id,
                replica=node.replica,
                grid=GRID,
                facts=NodeFacts(lease_samples=10),
                observer=node.events.append,
                sync=sync,
            )
            node.driver = GossipDriver(setup, node.replica)
            self.nodes[number] = node
            await node.driver.start()
        return [self.nodes[number] for number in numbers]

    def load_weights(self, number: int) -> Sync:
        """What `joining` does, without transfers: the node takes over the state of the peer in the middle."""

        async def load() -> None:
            states = sorted((node.replica for node in self.nodes.values()), key=lambda replica: replica.head_round)
            self.nodes[number].replica.take_over(states[len(states) // 2])

        return load

    async def meet(self) -> None:
        """Wait until all have heard from all."""
        while any(node.driver.num_alive < len(self.nodes) for node in self.nodes.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.driver.close()
        await self.network.close()
