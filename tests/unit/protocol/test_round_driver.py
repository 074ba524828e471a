"""Drivers over the in-memory network: real messages, votes on disk, the real exchange; a stand-in for the model."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.protocol.chunks import ChunkGrid, Contribution, commitment
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Aborted, Committed, RoundEvent
from atoll.protocol.rounds import NodeFacts, RoundDriver
from atoll.protocol.spec import Genesis, MembershipConfig, TimingConfig
from atoll.protocol.transport import Buffer

NUM_ELEMENTS = 3 * 256 + 17
GRID = ChunkGrid(NUM_ELEMENTS, 256, codec("float32"))
PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 7)]


def genesis_of(people: list[Identity], **membership: object) -> Genesis:
    roster = tuple(person.peer_id for person in people)
    return Genesis(
        name="drivers",
        protocol_version=1,
        initial_state=hashlib.sha256(b"0").hexdigest(),
        operators=roster[:1],
        model={},
        timing=TimingConfig(
            heartbeat_interval_s=0.05,
            heartbeat_timeout_s=0.4,
            drop_after_s=30,
            ready_grace_s=3,
            progress_timeout_s=0.5,
            attempt_timeout_s=4,
            quorum_timeout_s=20,
        ),
        membership=MembershipConfig(roster=roster, **membership),  # type: ignore[arg-type]
    )


class MeanReplica:
    """A model that keeps the sum of all means; its state hash covers the bytes of every mean so far."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self.chain: list[Commit] = []
        self.state_hash = genesis.initial_state
        self.mean = np.zeros(NUM_ELEMENTS, np.float32)

    @property
    def head_round(self) -> int:
        return len(self.chain)

    @property
    def head_record_id(self) -> str:
        return self.chain[-1].record.content_id() if self.chain else self.genesis.run_id

    @property
    def data_cursor(self) -> int:
        return self.chain[-1].record.plan.data_cursor if self.chain else 0

    @property
    def roster(self) -> tuple[PeerId, ...]:
        return self.chain[-1].record.plan.next_roster if self.chain else self.genesis.membership.roster

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        assert commit.record.plan.parent == self.head_record_id
        self.chain.append(commit)
        self.mean = np.frombuffer(bytes(mean), np.float32)
        self.state_hash = hashlib.sha256(self.state_hash.encode() + bytes(mean)).hexdigest()
        return self.state_hash

    def commits(self, first: int, count: int) -> list[Commit]:
        return self.chain[max(first, 1) - 1 : first - 1 + count] if first >= 1 else []


@dataclass
class Node:
    driver: RoundDriver
    replica: MeanReplica
    events: list[RoundEvent] = field(default_factory=list)

    def points(self) -> list[str]:
        return [event.point for event in self.events]


class Swarm:
    """Nodes on one in-memory network, each with a folder of its own."""

    def __init__(self, folder: Path, genesis: Genesis) -> None:
        self.network = MemoryNetwork(progress_timeout_s=0.5)
        self.genesis, self.folder = genesis, folder
        self.nodes: dict[PeerId, Node] = {}
        self.on_event = lambda _peer, _event: None

    async def start(self, person: Identity, replica: MeanReplica | None = None) -> Node:
        replica = replica or MeanReplica(self.genesis)
        node = Node(None, replica)  # type: ignore[arg-type]

        def observe(event: RoundEvent) -> None:
            node.events.append(event)
            self.on_event(person.peer_id, event)

        node.driver = RoundDriver(
            identity=person,
            genesis=self.genesis,
            transport=self.network.transport(person),
            directory=self.network.directory(person),
            folder=self.folder / person.peer_id,
            replica=replica,
            grid=GRID,
            facts=NodeFacts(lease_samples=10),
            observer=observe,
        )
        self.nodes[person.peer_id] = node
        await node.driver.start()
        return node

    async def kill(self, person: Identity) -> MeanReplica:
        """End a node as a crash would; its folder and what its replica has saved stay."""
        node = self.nodes.pop(person.peer_id)
        self.network.kill(person.peer_id)
        await node.driver.close()
        return node.replica

    async def contribute(self, person: Identity, value: float, tokens: int = 100) -> Committed | Aborted:
        driver = self.nodes[person.peer_id].driver
        return await driver.contribute(contribution_of(driver.round, value, tokens))

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.driver.close()
        await self.network.close()


def contribution_of(round_number: int, value: float, tokens: int) -> Contribution:
    encoded = np.full(NUM_ELEMENTS, value, np.float32).tobytes()
    leaves = GRID.leaf_digests(encoded)
    return Contribution(round_number, tokens, memoryview(encoded), leaves, commitment(leaves))


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    people = PEOPLE[: getattr(request, "param", 3)]
    swarm = Swarm(tmp_path, genesis_of(people))
    for person in people:
        await swarm.start(person)
    yield swarm
    await swarm.close()


async def test_three_nodes_commit_rounds_with_equal_states(swarm):
    for number in range(1, 4):
        outcomes = await asyncio.gather(*(swarm.contribute(person, float(i)) for i, person in enumerate(PEOPLE[:3])))
        assert all(outcome.counted for outcome in outcomes)
        assert len({outcome.state_hash for outcome in outcomes}) == 1
        assert {node.replica.head_round for node in swarm.nodes.values()} == {number}
        np.testing.assert_allclose(swarm.nodes[PEOPLE[0].peer_id].replica.mean, 1.0, rtol=1e-6)
