"""What a trainer is told of a round: which samples, how many steps, and when to try again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.node.trainer_rounds import Terms, TrainerRounds, num_steps_of
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Aborted, Outcome
from atoll.protocol.record import Member, Plan, Record, Span
from atoll.protocol.standing import Standing
from atoll.training import reducer
from atoll.training.config import InnerConfig
from atoll.training.shared_buffers import SharedBuffers

GRID = ChunkGrid(4096, 4096, codec("float32"))
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 6)]
DIGEST = "ab" * 32


@dataclass
class Replica:
    """As much of a replica as leases and steps depend on."""

    head: Commit | None
    roster: list[PeerId] = field(default_factory=lambda: PEERS[:4])

    @property
    def standing(self) -> Standing:
        return Standing(0 if self.head is None else self.head.record.plan.round, DIGEST, tuple(self.roster))


def commit_of(speeds: list[float]) -> Commit:
    members = tuple(
        Member(peer=peer, tokens=100, commitment=DIGEST, tokens_per_s=speed)
        for peer, speed in zip(PEERS, speeds, strict=False)
    )
    plan = Plan(
        lineage=0,
        fragment=0,
        round=7,
        ballot=0,
        leader=PEERS[0],
        parent=DIGEST,
        parent_state=DIGEST,
        members=members,
        spans=(Span(first_chunk=0, num_chunks=1, owner=PEERS[0]),),
        roster=tuple(PEERS[:4]),
        next_roster=tuple(PEERS[:4]),
        data_cursor=0,
        rules=DIGEST,
        attempt_timeout_s=1.0,
    )
    return Commit(record=Record(plan=plan, results=()), ballot=0, votes=())


def steps(replica: Replica, me: PeerId, own: float = 0.0, **inner: object) -> int:
    return num_steps_of(replica, me, InnerConfig(num_steps=50, **inner), own)  # type: ignore[arg-type]


def test_steps_follow_the_speeds_of_the_last_plan():
    replica = Replica(commit_of([1.0, 2.0, 4.0, 6.0]))
    assert [steps(replica, peer) for peer in PEERS[:4]] == [15, 31, 62, 92]


def test_the_plans_word_counts_more_than_an_own_measurement_so_that_all_compute_with_the_same():
    assert steps(Replica(commit_of([1.0, 2.0, 4.0, 6.0])), PEERS[0], own=6.0) == 15


def test_who_was_not_in_the_last_plan_goes_by_what_it_has_measured_itself():
    replica = Replica(commit_of([4.0, 4.0, 4.0]))
    assert steps(replica, PEERS[3], own=1.0) == 15
    assert steps(replica, PEERS[3]) == 50
    assert steps(replica, PEERS[0]) == 50  # the others take it for one of them


@pytest.mark.parametrize(
    ("replica", "inner"), [(Replica(None), {}), (Replica(commit_of([1.0, 6.0])), {"adaptive_steps": False})]
)
def test_in_round_one_and_where_the_run_says_so_everybody_takes_the_same_steps(replica, inner):
    assert steps(replica, PEERS[0], own=1.0, **inner) == 50


# --- withdrawn contributions ------------------------------------------------------------------------------------------


class Withdrawing:
    """A driver that withdraws the first contributions, while ``num_peers`` grows by one at each."""

    def __init__(self, num_withdrawn: int) -> None:
        self.num_withdrawn, self.offered, self.num_peers = num_withdrawn, [], 1
        self.told = asyncio.Event()

    async def contribute(self, contribution: Contribution) -> Outcome:
        self.offered.append(contribution.commitment)
        self.num_peers += 1
        if len(self.offered) <= self.num_withdrawn:
            return Aborted("no quorum: 1 of 4 members are alive")
        await asyncio.Event().wait()
        raise AssertionError


async def told_after_withdrawals(num_withdrawn: int, may_train_on, until) -> tuple[Withdrawing, list[reducer.Event]]:
    buffers = SharedBuffers.create(GRID.num_elements, GRID.num_chunks, GRID.total_encoded)
    driver, told = Withdrawing(num_withdrawn), []

    async def tell(event: reducer.Event) -> None:
        told.append(event)

    rounds = TrainerRounds(
        me=PEERS[0],
        replica=StandingReplica(commit_of([1.0, 1.0, 1.0, 1.0])),
        buffers=buffers,
        grid=GRID,
        inner=InnerConfig(),
        terms=Terms,
        contribute=driver.contribute,
        tell=tell,
        on_warning=lambda text: pytest.fail(text),
        may_train_on=lambda: may_train_on(driver),
    )
    running = asyncio.create_task(rounds.run())
    rounds.open()
    rounds.on_report(reducer.Hello(pid=1, device="cpu", num_parameters=1, resumed_round=None))
    out = buffers.open_contribution()
    for chunk in range(GRID.num_chunks):
        GRID.encode_chunk(chunk, np.zeros(GRID.num_elements, np.float32), out)
        buffers.mark_complete(chunk)
    buffers.seal_contribution(8, 1)
    rounds.on_report(reducer.Ready(round=8, generation=1, num_tokens=10, num_steps=1, loss=1.0))
    async with asyncio.timeout(20):
        while not until(driver, told):  # noqa: ASYNC110 - two independent things
            await asyncio.sleep(0.01)
    rounds.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return driver, told


@dataclass
class StandingReplica(Replica):
    @property
    def head_round(self) -> int:
        return self.standing.round


def aborted(told: list[reducer.Event]) -> list[reducer.Event]:
    return [event for event in told if isinstance(event, reducer.Aborted)]


async def test_without_a_quorum_the_trainer_goes_on_provisionally():
    driver, told = await told_after_withdrawals(1, lambda _: True, lambda _, told: bool(aborted(told)))
    assert len(driver.offered) == 1
    assert aborted(told) == [reducer.Aborted(reason="no quorum: 1 of 4 members are alive", generation=2)]


async def test_below_the_specs_number_of_peers_the_trainer_waits_and_its_work_is_offered_again_unchanged():
    driver, _ = await told_after_withdrawals(
        3, lambda driver: driver.num_peers >= 4, lambda _, told: bool(aborted(told))
    )
    assert len(driver.offered) == 3
    assert len(set(driver.offered)) == 1
