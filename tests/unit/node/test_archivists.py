"""Archivists: what one keeps leads a whole run back, long after everybody else has forgotten it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.node.chain import Chain
from atoll.node.donor import _IDLE_S, Donor
from atoll.node.lineage_start import change_for
from atoll.node.replica import Replica, archive_of, checkpoint_store, initial_state_hash
from atoll.node.state_loading import StateLoader
from atoll.protocol.amendments import RunRules
from atoll.protocol.changes import Rollback
from atoll.protocol.chunks import Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.outcomes import Committed
from atoll.protocol.round_driver import RoundDriver
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import ArchiveConfig, Genesis, MembershipConfig, TimingConfig
from atoll.protocol.state_sync import StateServer
from atoll.training.config import OuterConfig
from atoll.training.shared_buffers import SharedBuffers

NUM_ELEMENTS = 3 * 256 + 17
GRID = ChunkGrid(NUM_ELEMENTS, 256, codec("float32"))
PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 4)]
ARCHIVIST = PEOPLE[0]
LEASE = 10


def zeros() -> np.ndarray:
    return np.zeros(NUM_ELEMENTS, np.float32)


def genesis_with(**archive: object) -> Genesis:
    roster = tuple(person.peer_id for person in PEOPLE)
    return Genesis(
        name="archivists",
        protocol_version=1,
        initial_state=initial_state_hash(zeros()),
        operators=roster[:1],
        model={},
        timing=TimingConfig(
            heartbeat_interval_s=0.05,
            heartbeat_timeout_s=0.4,
            drop_after_s=30,
            ready_grace_s=1,
            progress_timeout_s=0.5,
            attempt_timeout_s=4,
            quorum_timeout_s=20,
        ),
        membership=MembershipConfig(roster=roster),
        archive=ArchiveConfig(peers=(ARCHIVIST.peer_id,), every_rounds=2, **archive),  # type: ignore[arg-type]
    )


class Node:
    """A node without trainer: everything from its disk to its streams is the real thing."""

    def __init__(self, person: Identity, genesis: Genesis, network: MemoryNetwork, folder: Path) -> None:
        self.person, self.folder, self.book = person, folder, RuleBook(RunRules(genesis))
        self.replica = Replica(
            book=self.book,
            initial=zeros,
            buffers=SharedBuffers.create(GRID.num_elements, GRID.num_chunks, GRID.total_encoded),
            grid=GRID,
            outer_of=lambda _: OuterConfig(optimizer="sgd", lr=1.0, momentum=0.0),
            store=checkpoint_store(folder, 2, print, lambda _: None),
            chain=Chain(folder / "chain.jsonl"),
            archive=archive_of(genesis, person.peer_id, folder, GRID.num_elements, print),
        )
        self.loaded: list[int] = []
        setup = DriverSetup(
            identity=person,
            book=self.book,
            transport=network.transport(person),
            directory=network.directory(person),
            folder=folder / "rounds",
            replica=self.replica,
            grid=GRID,
            facts=NodeFacts(lease_samples=LEASE),
            sync=self.load,
            prove=lambda: self.loader().prove(),
        )
        self.driver = RoundDriver(setup)
        attests = self.driver.attestations
        self.donor = Donor(self.replica, lambda number: [raw.hex() for raw in attests(number).values()])
        StateServer(self.driver.transport, self.donor, self.driver.executor)

    def loader(self) -> StateLoader:
        return StateLoader(
            book=self.book,
            me=self.person.peer_id,
            transport=self.driver.transport,
            replica=self.replica,
            results=lambda: self.driver.results,
            donors=lambda: self.driver.ahead,
            folder=self.folder,
            grid=GRID,
            lease_samples=LEASE,
            on_progress=lambda progress: self.loaded.append(progress.round),
            on_misconduct=print,
        )

    async def load(self) -> None:
        try:
            await self.loader().load()
        except Exception as error:  # no donor yet: the driver asks again
            print("load:", error)

    async def contribute(self) -> Committed | object:
        value = np.full(NUM_ELEMENTS, float(self.driver.round), np.float32).tobytes()
        contribution = Contribution.of(GRID, value, round_number=self.driver.round, tokens=100)
        return await self.driver.contribute(contribution)


class Swarm:
    def __init__(self, folder: Path, genesis: Genesis) -> None:
        self.network = MemoryNetwork(progress_timeout_s=0.5)
        self.nodes = [Node(person, genesis, self.network, folder / person.peer_id) for person in PEOPLE]

    async def rounds(self, number: int) -> None:
        """Hold rounds until ``number`` is applied everywhere."""
        async with asyncio.timeout(60):
            while min(node.replica.head_round for node in self.nodes) < number:
                await asyncio.gather(*(node.contribute() for node in self.nodes))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is awaited happens in files and threads, too
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for node in self.nodes:
            await node.driver.close()
        await self.network.close()


@pytest.fixture
async def swarm(tmp_path: Path):
    swarm = Swarm(tmp_path, genesis_with())
    for node in swarm.nodes:
        await node.driver.start()
    yield swarm
    await swarm.close()


def roll_back(node: Node, number: int) -> Rollback:
    """As the operator's command does it in the folder of an ordinary node."""
    roster = tuple(person.peer_id for person in PEOPLE)
    change = change_for(node.folder, node.book.rules, number, roster, is_reset=False)
    node.driver.amend([node.book.rules.next(change, number + 1).signed(PEOPLE[0])])
    return change


async def test_a_run_goes_back_to_a_state_that_only_an_archivist_has(swarm: Swarm):
    await swarm.rounds(9)
    states = {node.replica.state_hash for node in swarm.nodes}
    assert len(states) == 1
    change = roll_back(swarm.nodes[1], 2)  # whose disk has rounds 8 and 9, and results of the last four
    await swarm.until(lambda: all(node.book.rules.lineage == 1 for node in swarm.nodes))
    await swarm.until(lambda: all(node.replica.head_round == 2 for node in swarm.nodes))
    assert {node.replica.state_hash for node in swarm.nodes} == {change.state_hash}
    assert all(set(node.loaded) == {2} for node in swarm.nodes[1:])  # from the archivist, for nobody else has it
    assert not swarm.nodes[0].loaded
    await swarm.rounds(4)
    assert len({node.replica.state_hash for node in swarm.nodes if node.replica.head_round == 4}) == 1
    assert [commit.record.plan.lineage for commit in swarm.nodes[1].replica.commits(1, 4)] == [0, 0, 1, 1]


async def test_an_archivist_gives_the_lineages_first_state_when_it_has_gone_on_itself(swarm: Swarm, tmp_path: Path):
    await swarm.rounds(7)
    archivist = swarm.nodes[0]
    change = roll_back(archivist, 2)
    await swarm.until(lambda: all(node.replica.head_round == 2 for node in swarm.nodes))
    await swarm.rounds(3)
    manifest = archivist.donor.archived(change.record)
    assert manifest is not None
    assert (manifest.round, manifest.state_hash) == (2, change.state_hash)
    assert all(archivist.donor.read_leaf(leaf) is not None for leaf in manifest.leaves)


async def test_no_other_old_state_is_read_from_disk_for_anybody_and_an_idle_one_leaves_memory(swarm: Swarm):
    await swarm.rounds(5)
    archivist, now = swarm.nodes[0], [0.0]
    donor = Donor(archivist.replica, lambda _: [], clock=lambda: now[0])
    old = [commit.record.content_id() for commit in archivist.replica.commits(1, 5)]
    assert [donor.archived(record) for record in old] == [None] * 5
    change = roll_back(archivist, 2)
    await swarm.until(lambda: all(node.replica.head_round == 2 for node in swarm.nodes))
    await swarm.rounds(3)
    assert [donor.archived(record) is not None for record in old] == [False, True, False, False, False]
    leaf = donor.archived(change.record).leaves[0]  # type: ignore[union-attr]
    now[0] = _IDLE_S + 1
    assert donor.read_leaf(leaf) is None


def test_an_archive_keeps_no_more_than_its_space(tmp_path: Path):
    state_bytes = 8 * NUM_ELEMENTS
    kept = {}
    for max_bytes in (1, 3 * state_bytes, 100 * state_bytes):
        archive = archive_of(genesis_with(max_bytes=max_bytes), ARCHIVIST.peer_id, tmp_path, NUM_ELEMENTS, print)
        assert archive is not None
        kept[max_bytes] = archive.store.keep
    assert list(kept.values()) == [1, 2, 8]
    assert archive_of(genesis_with(), PEOPLE[1].peer_id, tmp_path, NUM_ELEMENTS, print) is None


async def test_a_round_that_archivists_do_not_keep_is_no_place_to_go_back_to(swarm: Swarm):
    await swarm.rounds(5)
    with pytest.raises(Exception, match="not held here any more: round 3"):
        roll_back(swarm.nodes[1], 3)
