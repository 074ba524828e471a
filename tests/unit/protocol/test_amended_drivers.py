"""Amendments in a running swarm: in force everywhere at one round, whoever hears of them when; lineages; recovery."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from atoll.protocol import round_loop
from atoll.protocol.amendments import Amendment, RunRules
from atoll.protocol.changes import Ban, Change, Finish, LearningRate, Pause, Resume, Rollback, Timing, Upgrade
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import Unreachable
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Aborted, Committed
from atoll.protocol.round_driver import RoundDriver
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import Genesis, RecoveryConfig
from atoll.protocol.standing import Standing
from atoll.protocol.transport import Buffer

from .test_round_driver import PEOPLE, MeanReplica, Node, Swarm, contribute_all, genesis_of

OPERATOR = PEOPLE[0]
LR = 0.7


class AmendedReplica(MeanReplica):
    """Goes by the rules that each commit names, and can go back to every state that it had."""

    def __init__(self, book: RuleBook) -> None:
        super().__init__(book.rules.genesis)
        self.book = book
        self.lrs: list[float] = []
        self.states = {0: self.state_hash}

    @property
    def standing(self) -> Standing:
        return self.book.rules.standing(self.chain[-1] if self.chain else None)

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        await super().apply(commit, mean)
        self.lrs.append(float(self.book.rules.of_plan(commit.record.plan).outer["lr"]))
        text = f"{self.state_hash} {self.lrs[-1]}"
        self.state_hash = self.states[self.head_round] = hashlib.sha256(text.encode()).hexdigest()
        return self.state_hash

    async def begin_lineage(self) -> None:
        fork = self.book.rules.fork
        assert fork is not None
        del self.chain[fork.round :]
        del self.lrs[fork.round :]
        self.state_hash = self.states[self.head_round]


class AmendedSwarm(Swarm):
    """Nodes that share nothing but the network: each has a rule book of its own."""

    def __init__(self, folder: Path, genesis: Genesis) -> None:
        super().__init__(folder, genesis)
        self.books: dict[PeerId, RuleBook] = {}

    async def launch(self, person: Identity, known: Iterable[Amendment] = ()) -> Node:
        book = self.books[person.peer_id] = RuleBook(RunRules(self.genesis).extended(known))
        return await self.start(person, AmendedReplica(book), book=book)

    def next(self, change: Change, from_round: int, signer: Identity = OPERATOR) -> Amendment:
        longest = max((book.rules for book in self.books.values()), key=lambda rules: len(rules.amendments))
        return longest.next(change, from_round).signed(signer)

    def amend(self, change: Change, from_round: int, at: Identity = OPERATOR) -> Amendment:
        amendment = self.next(change, from_round)
        self.nodes[at.peer_id].driver.amend([amendment])
        return amendment

    async def known_by_all(self, number: int = 1) -> None:
        await self.until(lambda: all(book.num_amendments >= number for book in self.books.values()))

    def node(self, person: Identity) -> Node:
        return self.nodes[person.peer_id]

    def states(self) -> set[str]:
        return {node.replica.state_hash for node in self.nodes.values()}


def amended_genesis(people: list[Identity]) -> Genesis:
    genesis = genesis_of(people, allowed=tuple(person.peer_id for person in PEOPLE[len(people) :]))
    return genesis.model_copy(update={"outer": {"lr": LR}})


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    people = PEOPLE[: getattr(request, "param", 3)]
    swarm = AmendedSwarm(tmp_path, amended_genesis(people))
    for person in people:
        await swarm.launch(person)
    yield swarm
    await swarm.close()


async def rounds(swarm: AmendedSwarm, people: list[Identity], number: int) -> list[Committed | Aborted]:
    outcomes: list[Committed | Aborted] = []
    for _ in range(number):
        outcomes = await contribute_all(swarm, people)
        while all(isinstance(outcome, Aborted) for outcome in outcomes):  # a slow machine
            outcomes = await contribute_all(swarm, people)
        assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
    return outcomes


async def test_a_learning_rate_changes_at_the_named_round_on_every_node(swarm: AmendedSwarm):
    swarm.amend(LearningRate(outer=0.1), from_round=3)
    await swarm.known_by_all()
    await rounds(swarm, PEOPLE[:3], 4)
    await swarm.until(lambda: all(node.replica.head_round == 4 for node in swarm.nodes.values()))
    assert [node.replica.lrs for node in swarm.nodes.values()] == [[LR, LR, 0.1, 0.1]] * 3
    assert len(swarm.states()) == 1


async def test_an_amendment_that_comes_late_is_in_force_from_one_commit_on_for_everybody(swarm: AmendedSwarm):
    await rounds(swarm, PEOPLE[:3], 2)
    swarm.amend(LearningRate(outer=0.1), from_round=2)
    await swarm.known_by_all()
    await rounds(swarm, PEOPLE[:3], 2)
    joiner = await swarm.launch(PEOPLE[3])
    await swarm.until(lambda: joiner.replica.head_round == 4)
    assert [node.replica.lrs for node in swarm.nodes.values()] == [[LR, LR, 0.1, 0.1]] * 4
    assert len(swarm.states()) == 1


async def test_a_leader_with_stale_rules_gets_the_amendment_and_plans_anew(swarm: AmendedSwarm):
    """Whoever leads has not heard of it when all others have: its plan gets no vote, and the round goes by the new."""
    leader = swarm.node(OPERATOR).driver._loop._state.rules.order[0]
    others = [person for person in PEOPLE[:3] if person.peer_id != leader]
    amendment = swarm.next(LearningRate(outer=0.1), from_round=1)
    for person in others:
        swarm.node(person).driver.amend([amendment])
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert {outcome.commit.record.plan.rules for outcome in outcomes} == {swarm.books[leader].rules.at(1).rules_id}
    assert [node.replica.lrs for node in swarm.nodes.values()] == [[0.1]] * 3
    assert "peer.rejected" not in [point for node in swarm.nodes.values() for point in node.points()]


async def test_a_pause_holds_contributions_and_a_resume_lets_them_count(swarm: AmendedSwarm):
    await rounds(swarm, PEOPLE[:3], 1)
    swarm.amend(Pause(), from_round=2)
    await swarm.known_by_all(1)
    calls = [asyncio.create_task(swarm.contribute(person, 1.0)) for person in PEOPLE[:3]]
    done, _ = await asyncio.wait(calls, timeout=1.5)  # three rounds' time
    assert not done
    swarm.amend(Resume(), from_round=2)
    outcomes = await asyncio.gather(*calls)
    assert all(outcome.counted for outcome in outcomes)


@pytest.mark.parametrize("swarm", [4], indirect=True)
async def test_a_banned_member_is_out_at_once_and_stays_out(swarm: AmendedSwarm):
    await rounds(swarm, PEOPLE[:4], 1)
    banned = PEOPLE[3]
    swarm.amend(Ban(peers=(banned.peer_id,)), from_round=2)
    await swarm.until(lambda: all(swarm.books[person.peer_id].num_amendments for person in PEOPLE[:3]))
    outcomes = await rounds(swarm, PEOPLE[:3], 1)
    plan = outcomes[0].commit.record.plan
    assert banned.peer_id not in plan.next_roster
    assert banned.peer_id not in [member.peer for member in plan.members]
    outcomes = await rounds(swarm, PEOPLE[:3], 1)
    assert set(outcomes[0].commit.record.plan.next_roster) == {person.peer_id for person in PEOPLE[:3]}


async def test_the_last_round_and_time_limits_are_in_the_rules_that_the_driver_goes_by(swarm: AmendedSwarm):
    swarm.amend(Finish(), from_round=2)
    await swarm.known_by_all(1)
    swarm.amend(Timing(values={"progress_timeout_s": 0.25}), from_round=2)
    await swarm.known_by_all(2)
    await rounds(swarm, PEOPLE[:3], 1)
    driver = swarm.node(PEOPLE[1]).driver
    await swarm.until(lambda: driver.round == 2)
    assert driver.genesis.stop.num_rounds == 2
    assert driver._reduction.settings.contact_timeout_s == 0.25


async def test_a_node_that_does_not_speak_the_required_protocol_stops_before_the_round_with_its_state(swarm):
    """VER-01."""
    await rounds(swarm, PEOPLE[:3], 1)
    before = swarm.states()
    swarm.amend(Upgrade(protocol_version=2), from_round=2)
    await swarm.known_by_all(1)
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert {outcome.reason for outcome in outcomes} == {
        "the run has gone on to a protocol that this version does not speak"
    }
    assert all("rules.outdated" in node.points() for node in swarm.nodes.values())
    assert swarm.states() == before


def rollback(swarm: AmendedSwarm, number: int, people: list[Identity] = PEOPLE[:3]) -> Rollback:
    replica = swarm.node(OPERATOR).replica
    return Rollback(
        lineage=swarm.books[OPERATOR.peer_id].rules.lineage + 1,
        round=number,
        record=replica.chain[number - 1].record.content_id(),
        state_hash=replica.states[number],
        roster=tuple(person.peer_id for person in people),
    )


async def test_a_rollback_goes_on_from_the_named_round_in_a_new_lineage(swarm: AmendedSwarm):
    await rounds(swarm, PEOPLE[:3], 3)
    await swarm.until(lambda: all(node.replica.head_round == 3 for node in swarm.nodes.values()))
    forgotten = swarm.node(OPERATOR).replica.chain[2]
    swarm.amend(rollback(swarm, 1), from_round=2)
    await swarm.known_by_all()
    await swarm.until(lambda: all(node.driver.round == 2 for node in swarm.nodes.values()))
    outcomes = await rounds(swarm, PEOPLE[:3], 2)
    assert {outcome.commit.record.plan.lineage for outcome in outcomes} == {1}
    await swarm.until(lambda: all(node.replica.head_round == 3 for node in swarm.nodes.values()))
    assert len(swarm.states()) == 1
    assert swarm.node(OPERATOR).replica.chain[2] != forgotten


async def test_a_node_that_slept_through_a_rollback_follows_into_the_new_lineage(swarm: AmendedSwarm):
    await rounds(swarm, PEOPLE[:3], 2)
    sleeper = PEOPLE[2]
    ids = [person.peer_id for person in PEOPLE[:3]]
    cuts = [Unreachable(sender=a, receiver=b) for a in ids for b in ids if sleeper.peer_id in (a, b) and a != b]
    swarm.network.inject(*cuts)
    swarm.amend(rollback(swarm, 1), from_round=2)
    await swarm.until(lambda: all(swarm.node(person).driver.round == 2 for person in PEOPLE[:2]))
    await rounds(swarm, PEOPLE[:2], 1)
    swarm.network.heal()
    book = swarm.books[sleeper.peer_id]
    await swarm.until(lambda: book.rules.lineage == 1 and swarm.node(sleeper).replica.head_round == 2)
    assert len(swarm.states()) == 1
    outcomes = await rounds(swarm, PEOPLE[:3], 1)
    assert outcomes[0].commit.record.plan.lineage == 1


async def test_a_node_that_waits_for_decided_bytes_that_are_lost_follows_into_the_new_lineage(swarm, monkeypatch):
    await rounds(swarm, PEOPLE[:3], 1)
    await swarm.until(lambda: all(node.replica.head_round == 1 for node in swarm.nodes.values()))
    waiting, obtain = swarm.node(PEOPLE[2]), round_loop.obtain

    async def lost(reduction: object, *arguments: Any) -> Any:
        if reduction is waiting.driver._reduction:
            return await asyncio.sleep(0.01)
        return await obtain(reduction, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(round_loop, "obtain", lost)
    await rounds(swarm, PEOPLE[:2], 1)
    await swarm.until(lambda: "results.unavailable" in waiting.points())
    swarm.amend(rollback(swarm, 1), from_round=2)
    await swarm.until(lambda: swarm.books[PEOPLE[2].peer_id].rules.lineage == 1)
    monkeypatch.undo()
    outcomes = await rounds(swarm, PEOPLE[:3], 1)
    assert [outcome.commit.record.plan.lineage for outcome in outcomes] == [1, 1, 1]
    assert len(swarm.states()) == 1


def delegated(people: list[Identity], delegates: list[Identity], threshold: int) -> Genesis:
    genesis = amended_genesis(people)
    recovery = RecoveryConfig(delegates=tuple(person.peer_id for person in delegates), threshold=threshold)
    timing = genesis.timing.model_copy(
        update={"attempt_timeout_s": 1.5, "ready_grace_s": 0.5, "quorum_timeout_s": 3.0, "drop_after_s": 0.9}
    )
    return genesis.model_copy(update={"recovery": recovery, "timing": timing})


async def swarm_of(folder: Path, genesis: Genesis, people: list[Identity]) -> AmendedSwarm:
    swarm = AmendedSwarm(folder, genesis)
    for person in people:
        await swarm.launch(person)
    return swarm


@pytest.mark.parametrize(("num_delegates", "threshold"), [(1, 1), (2, 2)])
async def test_delegates_begin_a_new_lineage_once_a_quorum_is_lost_for_good(tmp_path, num_delegates, threshold):
    people, survivors = PEOPLE[:5], PEOPLE[:2]
    swarm = await swarm_of(tmp_path, delegated(people, PEOPLE[:num_delegates], threshold), people)
    try:
        await rounds(swarm, people, 1)
        await swarm.until(lambda: all(node.replica.head_round == 1 for node in swarm.nodes.values()))
        dead = [await swarm.kill(person) for person in people[2:]]
        assert {replica.head_round for replica in dead} == {1}
        books = [swarm.books[person.peer_id] for person in survivors]
        await swarm.until(lambda: all(book.rules.lineage == 1 for book in books))
        assert "quorum.lost" in swarm.node(survivors[0]).points()
        outcomes = await rounds(swarm, survivors, 1)
        plan = outcomes[0].commit.record.plan
        assert (plan.lineage, plan.round, set(plan.roster)) == (1, 2, {person.peer_id for person in survivors})
        back = await swarm.launch(people[2])
        await swarm.until(lambda: back.replica.head_round == 2)
        assert len(swarm.states()) == 1
    finally:
        await swarm.close()


async def test_without_delegates_a_lost_quorum_is_said_and_nothing_else_happens(tmp_path: Path):
    people = PEOPLE[:3]
    swarm = await swarm_of(tmp_path, delegated(people, [], 1), people)
    try:
        await rounds(swarm, people, 1)
        for person in people[1:]:
            await swarm.kill(person)
        await swarm.until(lambda: "quorum.lost" in swarm.node(people[0]).points())
        assert swarm.books[people[0].peer_id].rules.lineage == 0
    finally:
        await swarm.close()


async def test_a_member_on_probation_trains_and_votes_before_it_counts(tmp_path: Path):
    founders, joiner = PEOPLE[:3], PEOPLE[3]
    genesis = amended_genesis(founders)
    trust = genesis.trust.model_copy(update={"probation_rounds": 2})
    swarm = await swarm_of(tmp_path, genesis.model_copy(update={"trust": trust}), founders)
    try:
        await rounds(swarm, founders, 1)
        node = await swarm.launch(joiner)
        others = [swarm.node(person).driver for person in founders]
        await swarm.until(lambda: all(is_level(driver, joiner, 1) for driver in others))
        admitted = (await rounds(swarm, founders, 1))[0].commit.record.plan
        assert [(n.peer, n.counts_from) for n in admitted.newcomers] == [(joiner.peer_id, 5)]
        await swarm.until(lambda: joiner.peer_id in node.driver.roster)
        plans = [(await rounds(swarm, PEOPLE[:4], 1))[0].commit.record.plan for _ in range(3)]
        assert all(joiner.peer_id in [member.peer for member in plan.members] for plan in plans)
        assert [len(plan.newcomers) for plan in plans] == [1, 1, 0]
    finally:
        await swarm.close()


def is_level(driver: RoundDriver, person: Identity, number: int) -> bool:
    known = driver.peers.get(person.peer_id)
    return known is not None and known.heartbeat is not None and known.heartbeat.round == number
