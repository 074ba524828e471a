"""Gossip rounds over a real model and real text: four peers in one process, and a fifth that joins in their midst."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.node.donor import Donor
from atoll.node.gossip_joining import GossipJoiner, context_of, state_bytes
from atoll.node.gossip_replica import GossipReplica
from atoll.node.run_spec import initial_state_hash
from atoll.node.work import GossipWork
from atoll.protocol.amendments import RunRules
from atoll.protocol.chunks import Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.gossip.account import Swapped
from atoll.protocol.gossip.driver import GossipDriver
from atoll.protocol.gossip.fetching import Fetch
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import ExchangeConfig, Genesis, MembershipConfig, TimingConfig
from atoll.protocol.state_sync import StateServer, StateUnavailable
from atoll.protocol.transport import RemoteProtocolError
from atoll.training.checkpoint import CheckpointStore
from atoll.training.config import DataConfig, InnerConfig, ModelConfig, OuterConfig, TrainingConfig
from atoll.training.data import TextData, load_text
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.shared_buffers import SharedBuffers

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 7)]
TRAINING = TrainingConfig(
    model=ModelConfig(dim=32, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=64, sequence_length=32),
    data=DataConfig(validation_batches=2),
    inner=InnerConfig(num_steps=8, batch_size=4, warmup_steps=8),
    outer=OuterConfig(optimizer="noloco", lr=0.7, momentum=0.5),
)
LAYOUT = FlatLayout.of(TRAINING.model)
GRID = ChunkGrid(LAYOUT.num_elements, 16_384, codec("int8"))


def genesis() -> Genesis:
    roster = tuple(person.peer_id for person in PEOPLE)
    return Genesis(
        name="gossip",
        protocol_version=1,
        initial_state=initial_state_hash(TRAINING),
        operators=roster[:1],
        model=TRAINING.model.model_dump(mode="json"),
        exchange=ExchangeConfig(topology="gossip", chunk_elements=16_384),
        membership=MembershipConfig(roster=roster),
        timing=TimingConfig(
            heartbeat_interval_s=0.1,
            heartbeat_timeout_s=5,
            ready_grace_s=5,
            progress_timeout_s=5,
            attempt_timeout_s=20,
        ),
    )


@dataclass
class Peer:
    """One peer: a driver, its own replica, and an inner loop that trains it."""

    driver: GossipDriver
    replica: GossipReplica
    loop: InnerLoop
    work: GossipWork
    outcomes: list[Swapped] = field(default_factory=list)
    used: list[range] = field(default_factory=list)

    async def round(self) -> Swapped:
        contribution = await asyncio.to_thread(self._train)
        outcome = await self.driver.contribute(contribution)
        assert isinstance(outcome, Swapped), outcome
        self.outcomes.append(outcome)
        return outcome

    def _train(self) -> Contribution:
        anchor = np.frombuffer(bytes(self.replica.weights()), np.float32)
        lease = self.work.lease()
        assert lease is not None
        self.loop.load(anchor)
        for step in range(TRAINING.inner.num_steps):
            indices = lease.batch(step, TRAINING.inner.batch_size)
            assert indices is not None
            self.used.append(indices)
            self.loop.step(self.loop.data.batch(indices))
        encoded = np.empty(GRID.total_encoded, np.uint8)
        GRID.encode(self.loop.pseudo_gradient(anchor), encoded)
        return Contribution.of(GRID, encoded.data, round_number=self.replica.head_round + 1, tokens=1024)

    def loss(self) -> float:
        return self.loop.evaluate(np.frombuffer(bytes(self.replica.weights()), np.float32)).loss


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder, self.genesis = folder, genesis()
        self.network = MemoryNetwork(progress_timeout_s=5)
        self.data = TextData.of(load_text("builtin:kjv")[:200_000], TRAINING.data, TRAINING.model.sequence_length)
        self.peers: list[Peer] = []

    def replica(self, name: str, book: RuleBook) -> GossipReplica:
        return GossipReplica(
            book=book,
            initial=lambda: initial_state(TRAINING.model),
            buffers=SharedBuffers.create(GRID.num_elements, GRID.num_chunks, GRID.total_encoded),
            grid=GRID,
            outer_of=lambda _: TRAINING.outer,
            store=CheckpointStore(self.folder / name / "state", "state"),
        )

    async def start(self, number: int) -> Peer:
        person, book = PEOPLE[number], RuleBook(RunRules(self.genesis))
        replica = self.replica(person.peer_id, book)
        replica.restore()
        setup = DriverSetup(
            identity=person,
            book=book,
            transport=self.network.transport(person),
            directory=self.network.directory(person),
            folder=self.folder / person.peer_id / "rounds",
            replica=replica,
            grid=GRID,
            facts=NodeFacts(lease_samples=TRAINING.inner.lease_samples),
        )
        driver = GossipDriver(setup, replica)
        await driver.start()
        StateServer(driver.transport, Donor(replica, lambda _: []), driver.executor)
        loop = InnerLoop(TRAINING, self.data, torch.device("cpu"))
        work = GossipWork(replica, person.peer_id, TRAINING.inner, self.genesis, dict)
        self.peers.append(Peer(driver, replica, loop, work))
        return self.peers[-1]

    def joiner(self, peer: Peer, rejected: list[RemoteProtocolError]) -> GossipJoiner:
        return GossipJoiner(
            me=peer.work.me,
            replica=peer.replica,
            genesis=lambda: self.genesis,
            fetch=Fetch(
                peer.driver.transport,
                peer.driver.executor,
                state_bytes(GRID.num_elements),
                context_of,
                peer.driver.announced,
            ),
            donors=lambda: peer.driver.donors,
            folder=self.folder / "joining",
            num_elements=GRID.num_elements,
            num_chunks=GRID.num_chunks,
            on_misconduct=rejected.append,
        )

    async def meet(self) -> None:
        while any(peer.driver.num_alive < len(self.peers) for peer in self.peers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def train(self, num_rounds: int) -> None:
        async def rounds(peer: Peer) -> None:
            for _ in range(num_rounds):
                await peer.round()

        await asyncio.gather(*(rounds(peer) for peer in self.peers))


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    torch.set_num_threads(1)
    made = Lab(tmp_path)
    yield made
    for peer in made.peers:
        await peer.driver.close()
    await made.network.close()


async def test_four_peers_learn_together_stay_near_each_other_and_use_no_sample_twice(lab: Lab):
    for number in range(4):
        await lab.start(number)
    await lab.meet()
    before = lab.peers[0].loss()
    await lab.train(6)
    losses = [peer.loss() for peer in lab.peers]
    assert max(losses) < before - 1.5
    assert max(losses) - min(losses) < 0.3
    spreads = [o.distance_in_rounds for peer in lab.peers for o in peer.outcomes if o.distance_in_rounds is not None]
    assert len(spreads) >= 12
    assert max(spreads) < lab.genesis.gossip.max_distance
    assert len({peer.replica.state_hash for peer in lab.peers}) > 1  # and nobody needs them to be equal
    indices = [index for peer in lab.peers for batch in peer.used for index in batch]
    assert len(indices) == len(set(indices))


async def test_a_pair_of_peers_learns_no_less_than_one_of_them_alone(lab: Lab):
    lone = await lab.start(0)
    for _ in range(4):
        await lone.round()
    assert all(outcome.partner is None for outcome in lone.outcomes)
    alone = lone.loss()
    await lone.driver.close()
    lab.peers.clear()
    for number in (1, 2):
        await lab.start(number)
    await lab.meet()
    await lab.train(4)
    assert min(peer.loss() for peer in lab.peers) < alone + 0.05
    for peer in lab.peers:
        assert any(outcome.partner for outcome in peer.outcomes)


async def test_a_joiner_begins_with_the_mean_of_those_that_do_not_lie(lab: Lab):
    for number in range(4):
        await lab.start(number)
    await lab.meet()
    await lab.train(4)
    liar = lab.peers[3].replica
    account = liar.head
    assert account is not None
    poison = np.frombuffer(bytes(liar.weights()), np.float32) + np.float32(3)
    await liar.begin_from(account, poison)
    late = await lab.start(4)
    await lab.meet()
    while len(late.driver.donors) < 4 or not late.driver.is_behind:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    rejected: list[RemoteProtocolError] = []
    joined = await lab.joiner(late, rejected).load()
    assert joined.left_out == (PEOPLE[3].peer_id,)
    assert set(joined.donors) == {person.peer_id for person in PEOPLE[:3]}
    honest = [np.frombuffer(bytes(peer.replica.weights()), np.float32) for peer in lab.peers[:3]]
    np.testing.assert_allclose(np.frombuffer(bytes(late.replica.weights()), np.float32), np.mean(honest, 0), rtol=1e-4)
    assert late.replica.head_round >= 4
    assert not late.driver.is_behind
    assert late.loss() < 0.2 + max(peer.loss() for peer in lab.peers[:3])
    assert not rejected
    assert not list((lab.folder / "joining").iterdir())


async def test_a_donor_whose_weights_are_not_finite_or_not_as_announced_is_left_out_by_name(lab: Lab):
    for number in range(3):
        await lab.start(number)
    await lab.meet()
    await lab.train(3)
    broken, changed = lab.peers[1].replica, lab.peers[2].replica
    assert broken.head is not None
    assert changed.head is not None
    values = np.frombuffer(bytes(broken.weights()), np.float32).copy()
    values[5] = np.nan
    await broken.begin_from(broken.head, values)
    late = await lab.start(4)
    await lab.meet()
    while len(late.driver.donors) < 3 or not late.driver.is_behind:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await changed.begin_from(changed.head, np.zeros(GRID.num_elements, np.float32))
    rejected: list[RemoteProtocolError] = []
    joiner = lab.joiner(late, rejected)
    said = {PEOPLE[2].peer_id: late.driver.announced(PEOPLE[2].peer_id)[:1]}  # before it had others
    fetch = replace(joiner.fetch, announced=lambda peer: said.get(peer, late.driver.announced(peer)))
    joiner = replace(joiner, fetch=fetch)
    with pytest.raises(StateUnavailable):
        await joiner.load()
    assert {error.rule for error in rejected} == {"weights", "announced"}
    assert late.replica.head_round == 0


async def test_a_node_goes_on_from_its_own_checkpoint(lab: Lab):
    peer = await lab.start(0)
    await peer.round()
    await peer.round()
    book = RuleBook(RunRules(lab.genesis))
    again = lab.replica(PEOPLE[0].peer_id, book)
    assert again.restore()
    assert again.head_round == 2
    assert again.state_hash == peer.replica.state_hash
    assert bytes(again.weights()) == bytes(peer.replica.weights())
    assert again.standing == peer.replica.standing
