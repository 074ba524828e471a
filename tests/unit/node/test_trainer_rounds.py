"""What a trainer is told of a round: which samples, how many steps, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from atoll.node.trainer_rounds import num_steps_of
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Commit, Member, Plan, Record, Span
from atoll.protocol.standing import Standing
from atoll.training.config import InnerConfig

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
