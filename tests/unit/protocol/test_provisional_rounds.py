"""Peers that hear from no quorum go on by themselves, say so, and come back with at most one carry (L5).

Real drivers on the in-memory network; a node's trainer is a counter of the work that it has done and not yet handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.messages import Provisional
from atoll.protocol.outcomes import Aborted, Committed, committed
from atoll.protocol.seclusion import Seclusion
from atoll.protocol.spec import Genesis

from .test_round_driver import PEOPLE, Swarm, contribution_of, genesis_of

FIVE = PEOPLE[:5]


def impatient(people: list[Identity]) -> Genesis:
    """Gives a round up after a second and a half without a quorum."""
    genesis = genesis_of(people, fault_tolerance=0)
    return genesis.amended({"timing": {**genesis.timing.model_dump(), "attempt_timeout_s": 1.5}})


@dataclass
class Worker:
    """Contributes for ever, as a trainer does: work that was withdrawn is part of the next contribution (S3), work
    that missed its commit is carried into exactly one more (S6)."""

    swarm: Swarm
    person: Identity
    tokens: int = 0
    """Of the present round's work."""
    carry: int = 0
    num_aborted: int = 0
    counted: int = 0
    lost: int = 0
    trained: int = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.tokens, self.trained = self.tokens + 100, self.trained + 100
            driver = self.swarm.nodes[self.person.peer_id].driver
            offered = self.tokens + self.carry
            number = driver.round
            outcome = await driver.contribute(contribution_of(number, 1.0, offered))
            self._note(outcome, offered)

    def _note(self, outcome: Committed | Aborted, offered: int) -> None:
        if isinstance(outcome, Aborted):
            self.num_aborted += 1
            return
        if outcome.counted:
            self.counted += offered
            self.carry = 0
        else:
            self.lost += self.carry
            self.carry = self.tokens
        self.tokens = 0


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    swarm = Swarm(tmp_path, impatient(FIVE))
    for person in FIVE:
        await swarm.start(person)
    yield swarm
    await swarm.close()


@pytest.fixture
async def workers(swarm: Swarm) -> AsyncIterator[list[Worker]]:
    workers = [Worker(swarm, person) for person in FIVE]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    yield workers
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def heads(swarm: Swarm, people: list[Identity]) -> set[int]:
    return {swarm.nodes[person.peer_id].replica.head_round for person in people}


def assert_counted_once(swarm: Swarm, workers: list[Worker]) -> None:
    """What the commits say that each member gave is what it thinks that it gave, and no more than it has trained."""
    chain = max((node.replica.chain for node in swarm.nodes.values()), key=len)
    for worker in workers:
        outcomes = (committed(commit, "", worker.person.peer_id) for commit in chain)
        given = sum(tokens_of(outcome, worker.person) for outcome in outcomes if outcome.counted)
        assert given - worker.counted in (0, worker.tokens + worker.carry)  # the last outcome may not be told yet
        assert worker.counted + worker.lost + worker.tokens + worker.carry == worker.trained


def tokens_of(outcome: Committed, person: Identity) -> int:
    return next(m.tokens for m in outcome.commit.record.plan.members if m.peer == person.peer_id)


async def test_a_minority_goes_on_provisionally_and_comes_back_with_at_most_one_carry(swarm, workers):
    minority, majority = FIVE[:2], FIVE[2:]
    await swarm.until(lambda: min(heads(swarm, FIVE)) >= 2)
    swarm.network.partition([p.peer_id for p in minority], [p.peer_id for p in majority])
    await swarm.until(lambda: all(worker.num_aborted for worker in workers[:2]))
    alone = [swarm.nodes[person.peer_id] for person in minority]
    for node in alone:
        assert (node.driver.provisional.num_alive, node.driver.provisional.num_needed) == (2, 3)
        assert "quorum.missing" in node.points()
    heard = swarm.nodes[minority[1].peer_id].driver.peers[minority[0].peer_id].heartbeat
    assert (heard.provisional.num_alive, heard.provisional.num_members) == (2, 5)
    cut_at = max(heads(swarm, minority))
    await swarm.until(lambda: min(heads(swarm, majority)) >= cut_at + 2)
    assert max(heads(swarm, minority)) == cut_at
    assert all(swarm.nodes[person.peer_id].driver.provisional is None for person in majority)
    swarm.network.heal()
    await swarm.until(lambda: all("quorum.found" in node.points() for node in alone))
    counted_before = [worker.counted for worker in workers[:2]]
    await swarm.until(lambda: all(w.counted > c for w, c in zip(workers[:2], counted_before, strict=True)))
    target = max(heads(swarm, FIVE)) + 1
    await swarm.until(lambda: min(heads(swarm, FIVE)) >= target)
    assert_counted_once(swarm, workers)


async def test_where_no_side_is_a_quorum_all_work_goes_into_the_round_once_they_meet_again(swarm, workers):
    await swarm.until(lambda: min(heads(swarm, FIVE)) >= 1)
    ids = [person.peer_id for person in FIVE]
    swarm.network.partition(ids[:2], ids[2:4], ids[4:])
    await swarm.until(lambda: all(worker.num_aborted >= 1 for worker in workers))
    head = max(heads(swarm, FIVE))
    assert all(node.driver.provisional is not None for node in swarm.nodes.values())
    swarm.network.heal()
    await swarm.until(lambda: min(heads(swarm, FIVE)) >= head + 2)
    assert all(node.driver.provisional is None for node in swarm.nodes.values())
    target = max(heads(swarm, FIVE))
    await swarm.until(lambda: min(heads(swarm, FIVE)) >= target)
    assert_counted_once(swarm, workers)


async def test_a_late_seed_is_waited_for_provisionally(tmp_path):
    swarm = Swarm(tmp_path, impatient(FIVE[:3]))
    try:
        first = await swarm.start(FIVE[0])
        worker = Worker(swarm, FIVE[0])
        task = asyncio.create_task(worker.run())
        await swarm.until(lambda: worker.num_aborted > 0)
        assert first.driver.provisional.num_alive == 1
        await swarm.start(FIVE[1])
        other = Worker(swarm, FIVE[1])
        other_task = asyncio.create_task(other.run())
        await swarm.until(lambda: first.replica.head_round >= 1 and worker.counted > 0)
        assert worker.counted >= 200  # two attempts' work in one round
        for running in (task, other_task):
            running.cancel()
        await asyncio.gather(task, other_task, return_exceptions=True)
    finally:
        await swarm.close()


def missing(lasted_s: float) -> Provisional:
    return Provisional(num_alive=2, num_needed=3, num_members=5, lasted_s=lasted_s)


def test_a_quorum_that_is_missing_is_said_once_then_to_the_operator_and_then_that_it_is_back():
    said: list[str] = []
    seclusion = Seclusion(600.0, lambda point, _fields: said.append(point))
    for provisional in (None, missing(0), missing(300), missing(600), missing(900), None, None, missing(1)):
        seclusion.note(provisional)
    assert said == ["quorum.missing", "quorum.lost", "quorum.found", "quorum.missing"]
