"""Drivers over the in-memory network: real messages, votes on disk, the real exchange; a stand-in for the model."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.protocol import decided
from atoll.protocol.amendments import RunRules
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.leader import permutation
from atoll.protocol.memory import MemoryNetwork, StallStream, Unreachable
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Aborted, Committed, RoundEvent
from atoll.protocol.round_driver import RoundDriver
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import Genesis, MembershipConfig, TimingConfig
from atoll.protocol.standing import Standing
from atoll.protocol.tickets import Ticket
from atoll.protocol.transport import Buffer
from atoll.protocol.wakeup import Signal

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
            ready_grace_s=1,
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
    def standing(self) -> Standing:
        return Standing.after(self.chain[-1]) if self.chain else Standing.of_genesis(self.genesis)

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        assert commit.record.plan.parent == self.standing.record_id
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
        self.changed = Signal()
        """Fired after every event and every message."""

    async def start(
        self,
        person: Identity,
        replica: MeanReplica | None = None,
        ticket: Ticket | None = None,
        **options: object,
    ) -> Node:
        replica = replica or MeanReplica(self.genesis)
        node = Node(None, replica)  # type: ignore[arg-type]

        def observe(event: RoundEvent) -> None:
            node.events.append(event)
            self.on_event(person.peer_id, event)
            self.changed.fire()

        transport = self.network.transport(person)
        setup = DriverSetup(
            identity=person,
            transport=transport,
            directory=self.network.directory(person),
            folder=self.folder / person.peer_id,
            replica=replica,
            grid=GRID,
            facts=NodeFacts(lease_samples=10, ticket=ticket),
            observer=observe,
            **{"book": RuleBook(RunRules(self.genesis)), **options},
        )
        node.driver = RoundDriver(setup)
        self.nodes[person.peer_id] = node
        await node.driver.start()
        handle = transport.message_handler

        async def handle_and_tell(remote: PeerId, raw: bytes) -> None:
            await handle(remote, raw)
            self.changed.fire()

        transport.on_message(handle_and_tell)
        return node

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                await self.changed.wait_for(0.1)  # not everything that a test waits for is told

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
    return Contribution.of(GRID, encoded, round_number=round_number, tokens=tokens)


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    people = PEOPLE[: getattr(request, "param", 3)]
    swarm = Swarm(tmp_path, genesis_of(people, allowed=tuple(p.peer_id for p in PEOPLE[len(people) :])))
    for person in people:
        await swarm.start(person)
    yield swarm
    await swarm.close()


async def test_three_nodes_commit_rounds_with_equal_states(swarm):
    for number in range(1, 4):
        outcomes = await asyncio.gather(*(swarm.contribute(person, i) for i, person in enumerate(PEOPLE[:3], 1)))
        assert all(outcome.counted for outcome in outcomes)
        assert len({outcome.state_hash for outcome in outcomes}) == 1
        assert {node.replica.head_round for node in swarm.nodes.values()} == {number}
        np.testing.assert_allclose(swarm.nodes[PEOPLE[0].peer_id].replica.mean, 2.0, rtol=1e-6)


async def contribute_all(swarm: Swarm, people: list[Identity]) -> list[Committed | Aborted]:
    return await asyncio.gather(*(swarm.contribute(person, 1.0) for person in people))


@pytest.mark.parametrize("swarm", [1, 2, 5], indirect=True)
async def test_swarms_of_other_sizes_commit(swarm):
    people = PEOPLE[: len(swarm.nodes)]
    outcomes = await contribute_all(swarm, people)
    assert all(outcome.counted for outcome in outcomes)
    assert len({outcome.state_hash for outcome in outcomes}) == 1


@pytest.mark.parametrize("swarm", [4], indirect=True)
@pytest.mark.parametrize(
    "point",
    ["round.plan_sent", "round.proposed", "exchange.sending", "exchange.reducing", "round.voted", "round.applied"],
)
async def test_the_others_commit_when_a_node_dies_and_it_comes_back(swarm, point):
    people = PEOPLE[:4]
    victims: list[PeerId] = []

    def kill(peer: PeerId, event: RoundEvent) -> None:
        if event.point == point and not victims:
            victims.append(peer)
            swarm.network.kill(peer)

    swarm.on_event = kill
    calls = {person.peer_id: asyncio.create_task(swarm.contribute(person, 1.0)) for person in people}
    await swarm.until(lambda: bool(victims))
    others = [person for person in people if person.peer_id != victims[0]]
    victim = next(person for person in people if person.peer_id == victims[0])
    outcomes = await asyncio.gather(*(calls[person.peer_id] for person in others))
    assert len({outcome.state_hash for outcome in outcomes}) == 1
    replica = await swarm.kill(victim)
    await swarm.start(victim, replica)
    await swarm.until(lambda: {node.driver.round for node in swarm.nodes.values()} == {2})
    assert len({node.replica.state_hash for node in swarm.nodes.values()}) == 1
    assert all(outcome.counted for outcome in await contribute_all(swarm, others))
    await swarm.until(lambda: swarm.nodes[victim.peer_id].driver.round == 3)
    assert all(outcome.counted for outcome in await contribute_all(swarm, people))


async def test_a_joiner_catches_up_by_results_and_counts_from_the_next_round(swarm):
    for _ in range(2):
        await contribute_all(swarm, PEOPLE[:3])
    joiner = PEOPLE[3]
    node = await swarm.start(joiner)
    await swarm.until(lambda: node.driver.round == 3)
    assert node.replica.state_hash == swarm.nodes[PEOPLE[0].peer_id].replica.state_hash
    others = [swarm.nodes[person.peer_id].driver for person in PEOPLE[:3]]
    await swarm.until(lambda: all(driver.peers[joiner.peer_id].heartbeat.round == 2 for driver in others))
    await contribute_all(swarm, PEOPLE[:3])
    await swarm.until(lambda: joiner.peer_id in node.driver.roster)
    assert all(outcome.counted for outcome in await contribute_all(swarm, PEOPLE[:4]))


async def test_a_node_that_is_far_behind_asks_for_a_snapshot(swarm):
    for number in range(6):  # results that differ: equal ones could be served for rounds that are forgotten
        await asyncio.gather(*(swarm.contribute(person, float(number)) for person in PEOPLE[:3]))
    donor = swarm.nodes[PEOPLE[0].peer_id].replica
    replica = MeanReplica(swarm.genesis)
    node = await swarm.start(PEOPLE[3], replica, sync=lambda: install(replica, donor))
    await swarm.until(lambda: "state.syncing" in node.points())
    await swarm.until(lambda: node.driver.round == 7)
    assert replica.state_hash == donor.state_hash


async def install(replica: MeanReplica, donor: MeanReplica) -> None:
    replica.chain, replica.state_hash = list(donor.chain), donor.state_hash


async def test_chn_03_a_joiner_that_loads_for_rounds_on_end_holds_up_nobody_and_then_counts(swarm):
    for number in range(6):
        await asyncio.gather(*(swarm.contribute(person, float(number)) for person in PEOPLE[:3]))
    donor, loaded = swarm.nodes[PEOPLE[0].peer_id].replica, asyncio.Event()
    replica, joiner = MeanReplica(swarm.genesis), PEOPLE[3]

    async def load_slowly() -> None:
        await loaded.wait()
        await install(replica, donor)

    node = await swarm.start(joiner, replica, sync=load_slowly)
    await swarm.until(lambda: "state.syncing" in node.points())
    for number in range(2):
        outcomes = await asyncio.gather(*(swarm.contribute(person, float(number)) for person in PEOPLE[:3]))
        for outcome in outcomes:
            assert outcome.counted
            assert len(outcome.commit.record.plan.members) == 3
    assert replica.head_round == 0
    loaded.set()
    await swarm.until(lambda: node.driver.round == 9)
    assert replica.state_hash == donor.state_hash
    others = [swarm.nodes[person.peer_id].driver for person in PEOPLE[:3]]
    await swarm.until(lambda: all(driver.peers[joiner.peer_id].heartbeat.round == 8 for driver in others))
    await contribute_all(swarm, PEOPLE[:3])
    await swarm.until(lambda: joiner.peer_id in node.driver.roster)
    assert all(outcome.counted for outcome in await contribute_all(swarm, PEOPLE[:4]))


async def test_str_03_a_member_that_saves_for_longer_than_its_heartbeats_limit_is_not_taken_for_dead(swarm):
    saver, saved = swarm.nodes[PEOPLE[2].peer_id], threading.Event()
    save = saver.replica.apply

    async def save_slowly(commit: Commit, mean: Buffer) -> str:
        await asyncio.to_thread(saved.wait)
        return await save(commit, mean)

    def num_heard() -> int:
        return sum(sender == PEOPLE[2].peer_id for sender, _, _ in swarm.network.messages)

    saver.replica.apply = save_slowly
    calls = [asyncio.create_task(swarm.contribute(person, 1.0)) for person in PEOPLE[:3]]
    try:
        await asyncio.gather(*calls[:2])
        begun_s, before = time.monotonic(), num_heard()
        limit_s = 2 * swarm.genesis.timing.heartbeat_timeout_s
        await swarm.until(lambda: num_heard() > before + 10 and time.monotonic() > begun_s + limit_s)
        assert calls[2].done() is False
    finally:
        saved.set()
    assert (await calls[2]).counted


async def test_a_contribution_that_comes_too_late_learns_what_was_committed_instead(swarm):
    first, second, third = PEOPLE[:3]
    late = asyncio.create_task(swarm.until(lambda: swarm.nodes[third.peer_id].driver.round == 2))
    await asyncio.gather(swarm.contribute(first, 1.0), swarm.contribute(second, 1.0))  # after the grace
    await late
    outcome = await swarm.nodes[third.peer_id].driver.contribute(contribution_of(1, 1.0, 100))
    assert isinstance(outcome, Committed)
    assert not outcome.counted


async def test_messages_in_anothers_name_and_replays_are_rejected_and_said(swarm):
    await contribute_all(swarm, PEOPLE[:3])
    first, second, third = (person.peer_id for person in PEOPLE[:3])
    heartbeat = next(raw for sender, receiver, raw in swarm.network.messages if (sender, receiver) == (second, first))
    node = swarm.nodes[first]
    await node.driver._incoming.take(second, heartbeat)
    await node.driver._incoming.take(third, heartbeat)
    rejected = [event.fields for event in node.events if event.point == "peer.rejected"]
    assert [(fields["peer"], fields["rule"]) for fields in rejected] == [(second, "message"), (third, "sender")]


async def test_avg_06_without_a_quorum_the_contribution_is_withdrawn_with_a_reason(swarm):
    await contribute_all(swarm, PEOPLE[:3])
    for person in PEOPLE[1:3]:
        await swarm.kill(person)
    outcome = await swarm.contribute(PEOPLE[0], 1.0)
    assert outcome == Aborted("no quorum: 1 of 3 members are alive")
    assert swarm.nodes[PEOPLE[0].peer_id].replica.head_round == 1


async def test_a_leader_with_a_full_disk_says_so_and_never_leads_or_votes(swarm, monkeypatch):
    roster = swarm.genesis.membership.roster
    leader = permutation(swarm.genesis.run_id, 0, 0, 1, roster)[0]
    node = swarm.nodes[leader]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.driver._votes, "save", full)
    others = [person for person in PEOPLE[:3] if person.peer_id != leader]
    calls = [asyncio.create_task(swarm.contribute(person, 1.0)) for person in PEOPLE[:3]]
    await swarm.until(lambda: "votes.unwritable" in node.points())
    outcomes = await asyncio.gather(*calls)
    assert {outcome.commit.record.plan.leader for outcome in outcomes} <= {person.peer_id for person in others}
    for outcome in outcomes:
        voters = [bytes.fromhex(vote) for vote in outcome.commit.votes]
        assert not any(leader.encode() in vote for vote in voters)


@pytest.mark.parametrize("swarm", [1], indirect=True)
async def test_what_a_full_disk_held_up_happens_once_there_is_space_again(swarm, monkeypatch):
    """Alone, so that nobody else can bring the round to its end; said once, however often it is tried."""
    monkeypatch.setattr(decided, "_DISK_RETRY_S", 0.05)
    node = swarm.nodes[PEOPLE[0].peer_id]
    save, failures = node.driver._votes.save, iter(range(3))

    def full_at_first(*arguments: object) -> None:
        if next(failures, None) is not None:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(node.driver._votes, "save", full_at_first)
    outcome = await asyncio.wait_for(swarm.contribute(PEOPLE[0], 1.0), 20)
    assert isinstance(outcome, Committed)
    assert node.points().count("votes.unwritable") == 1
    assert next(failures, None) is None


async def test_a_replica_that_fails_is_heard_of_by_whoever_waits(swarm):
    node = swarm.nodes[PEOPLE[0].peer_id]

    async def broken(_commit: Commit, _mean: Buffer) -> str:
        raise RuntimeError("the outer step failed")

    node.replica.apply = broken
    calls = [asyncio.create_task(swarm.contribute(person, 1.0)) for person in PEOPLE[:3]]
    with pytest.raises(RuntimeError, match="outer step"):
        await calls[0]
    assert node.driver.failed.exception() is not None
    await asyncio.gather(*calls[1:])


async def test_leaving_is_told_and_the_others_do_not_wait(swarm):
    await contribute_all(swarm, PEOPLE[:3])
    gone = swarm.nodes.pop(PEOPLE[2].peer_id)
    await gone.driver.leave()
    heartbeats = lambda: swarm.nodes[PEOPLE[0].peer_id].driver.peers[PEOPLE[2].peer_id].heartbeat  # noqa: E731
    await swarm.until(lambda: heartbeats().phase == "leaving")
    outcomes = await asyncio.wait_for(contribute_all(swarm, PEOPLE[:2]), 2)
    assert all(outcome.counted for outcome in outcomes)
    assert PEOPLE[2].peer_id not in outcomes[0].commit.record.plan.next_roster


async def test_a_diverged_replica_is_noticed_by_its_node(swarm):
    node = swarm.nodes[PEOPLE[0].peer_id]
    await contribute_all(swarm, PEOPLE[:3])
    honest = node.replica.apply

    async def flip_a_bit(commit: Commit, mean: Buffer) -> str:
        await honest(commit, mean)
        node.replica.state_hash = hashlib.sha256(b"damaged").hexdigest()
        return node.replica.state_hash

    node.replica.apply = flip_a_bit
    await contribute_all(swarm, PEOPLE[:3])
    await swarm.until(lambda: "state.disagrees" in node.points())


async def test_a_diverged_replica_is_replaced_where_there_is_a_way(swarm):
    """AVG-02."""
    donor = swarm.nodes[PEOPLE[0].peer_id].replica
    await swarm.kill(PEOPLE[2])
    replica = MeanReplica(swarm.genesis)
    node = await swarm.start(PEOPLE[2], replica, sync=lambda: install(replica, donor))
    honest = replica.apply

    async def flip_a_bit(commit: Commit, mean: Buffer) -> str:
        await honest(commit, mean)
        replica.state_hash = hashlib.sha256(b"damaged").hexdigest()
        return replica.state_hash

    replica.apply = flip_a_bit
    await contribute_all(swarm, PEOPLE[:3])
    await swarm.until(lambda: "state.syncing" in node.points() and replica.state_hash == donor.state_hash)
    replica.apply = honest
    assert all(outcome.counted for outcome in await contribute_all(swarm, PEOPLE[:3]))


async def test_a_member_that_loses_a_result_on_its_way_gets_it_from_another(swarm):
    first, second, _ = (person.peer_id for person in PEOPLE[:3])
    swarm.network.inject(StallStream(sender=second, receiver=first, protocol="span", after_bytes=200))
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert "exchange.lost" in swarm.nodes[first].points()
    assert len({outcome.state_hash for outcome in outcomes}) == 1


async def test_two_members_that_cannot_reach_each_other_still_commit_with_all_others(swarm):
    await contribute_all(swarm, PEOPLE[:3])
    first, second, _ = (person.peer_id for person in PEOPLE[:3])
    swarm.network.inject(Unreachable(sender=first, receiver=second), Unreachable(sender=second, receiver=first))
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert len({outcome.state_hash for outcome in outcomes}) == 1
