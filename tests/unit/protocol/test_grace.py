"""How long stragglers are waited for: by what recent rounds have shown, and by their own progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.budget import target_steps
from atoll.protocol.grace import Pace, can_make_it, justified_s, remaining_s
from atoll.protocol.messages import Heartbeat
from atoll.protocol.round_machine import grace_s
from atoll.protocol.simulator import World, digest, world_genesis

FLOOR_S, CEILING_S = 4.0, 30.0
PACES = st.builds(Pace, st.floats(0, 1e6), st.floats(0, 1e6))


def justified(*recent: Pace) -> float:
    return justified_s(recent, FLOOR_S, CEILING_S)


def test_before_anything_is_known_the_spec_decides():
    assert justified() == CEILING_S


def test_where_all_have_been_ready_together_a_straggler_is_waited_for_a_quarter_of_the_work():
    assert justified(*[Pace(40.0, 0.0)] * 8) == 10.0


def test_a_swarm_that_is_usually_apart_waits_as_long_as_it_usually_is():
    assert justified(*[Pace(40.0, 8.0)] * 8) == 1.5 * 8 + 10


def test_one_late_round_of_eight_is_no_reason_to_wait_in_the_next():
    assert justified(*[Pace(40.0, 0.0)] * 7, Pace(40.0, 25.0)) == 10.0


def test_nobody_is_waited_for_longer_than_the_work_took():
    assert justified(*[Pace(6.0, 20.0)] * 8) == 6.0


@given(st.lists(PACES, max_size=8))
def test_the_grace_stays_within_its_bounds(recent):
    assert FLOOR_S <= justified(*recent) <= CEILING_S


def heartbeat(**fields: object) -> Heartbeat:
    told = {"num_inner_steps": 10, "target_inner_steps": 50, "tokens": 1000, "tokens_per_s": 50.0, **fields}
    return Heartbeat.model_validate({"round": 6, "state_hash": digest("state"), "phase": "training", **told})


def test_a_members_progress_says_when_it_will_be_ready():
    assert remaining_s(heartbeat(), 100.0, 100.0, 7) == 80.0  # 40 steps of 100 tokens
    assert remaining_s(heartbeat(), 100.0, 130.0, 7) == 50.0
    assert remaining_s(heartbeat(), 100.0, 500.0, 7) == 0.0


@pytest.mark.parametrize(
    "fields",
    [{"target_inner_steps": 0}, {"num_inner_steps": 0}, {"tokens_per_s": 0.0}, {"round": 5}, {"phase": "ready"}],
    ids=str,
)
def test_who_says_nothing_of_this_round_has_the_benefit_of_the_doubt(fields):
    assert remaining_s(heartbeat(**fields), 0.0, 0.0, 7) is None
    assert remaining_s(None, 0.0, 0.0, 7) is None
    assert can_make_it(None, 0.1)


def test_a_prediction_may_be_a_fifth_too_long():
    assert can_make_it(12.0, 10.0)
    assert not can_make_it(13.0, 10.0)


# --- in the world -----------------------------------------------------------------------------------------------------


def slow_progress(world: World, fraction: float, remaining_s: float) -> dict[str, float]:
    """Heartbeat fields of somebody who has done ``fraction`` and needs ``remaining_s`` more."""
    done = round(100 * fraction)
    return {
        "num_inner_steps": done,
        "target_inner_steps": 100,
        "tokens": 10 * done,
        "tokens_per_s": 10 * (100 - done) / remaining_s,
    }


def all_contribute(world: World, but: tuple[str, ...] = ()) -> None:
    for peer in world.nodes:
        if peer not in but:
            world.contribute(peer)


def has_committed(world: World, number: int) -> bool:
    return all(len(node.disk.commits) >= number for node in world.nodes.values())


def members_of(world: World, number: int) -> set[str]:
    commit = next(iter(world.nodes.values())).disk.commits[number - 1]
    return {member.peer for member in commit.record.plan.members}


class Training:
    """A node of the world that trains at a speed of its own, by the steps that its budget allows, for ever."""

    def __init__(self, world: World, peer: str, speed: float) -> None:
        self.world, self.peer, self.speed = world, peer, speed
        self.node, self.round = world.nodes[peer], 0
        self.began_s, self.steps = 0.0, 0
        self.look()

    def look(self) -> None:
        """Every tenth of a second."""
        now = self.world.now
        if self.node.round != self.round:
            self.round, self.began_s, self.steps = self.node.round, now, self.budget()
        done = min(self.steps, int((now - self.began_s) * self.speed))
        fields = {"num_inner_steps": done, "target_inner_steps": self.steps}
        self.node.progress = {**fields, "tokens": done, "tokens_per_s": self.speed}
        if done == self.steps:
            self.world.contribute(self.peer, tokens=done, tokens_per_s=self.speed)
        self.world.later(self.look, 0.1)

    def budget(self) -> int:
        members = self.node.disk.commits[-1].record.plan.members if self.node.disk.commits else ()
        speeds = dict.fromkeys(self.world.nodes, 0.0) | {member.peer: member.tokens_per_s for member in members}
        speeds[self.peer] = speeds[self.peer] or (self.speed if members else 0.0)
        return target_steps(speeds, self.peer, num_steps=100, max_steps=400)


def test_speeds_of_one_two_four_and_six_reach_nine_tenths_of_their_sum():
    """By themselves: in the first round nothing is known, and the slow ones are left behind."""
    world = World(world_genesis(4))
    speeds = dict(zip(world.nodes, (1.0, 2.0, 4.0, 6.0), strict=True))
    for peer, speed in speeds.items():
        Training(world, peer, speed)
    assert world.run(400, until=lambda: has_committed(world, 2))
    began_s = world.now
    assert world.run(400, until=lambda: has_committed(world, 8))
    commits = world.nodes[next(iter(speeds))].disk.commits
    assert all(len(commit.record.plan.members) == 4 for commit in commits[2:8])
    num_tokens = sum(member.tokens for commit in commits[2:8] for member in commit.record.plan.members)
    assert num_tokens / (world.now - began_s) >= 0.90 * sum(speeds.values())
    assert len(commits[0].record.plan.members) < 4


def test_str_01_a_peer_five_times_slower_is_not_waited_for_and_four_fast_ones_close_at_once():
    world = World(world_genesis(4))
    slow = list(world.nodes)[3]
    world.run(10)
    world.nodes[slow].progress = slow_progress(world, 0.2, 40.0)
    world.run(2)
    all_contribute(world, but=(slow,))
    assert world.run(2, until=lambda: has_committed(world, 1))
    assert members_of(world, 1) == set(world.nodes) - {slow}
    world.nodes[slow].progress = {}
    world.run(5)  # by then everybody has heard of it again
    all_contribute(world)
    assert world.run(2, until=lambda: has_committed(world, 2))
    assert members_of(world, 2) == set(world.nodes)


def test_a_straggler_that_is_nearly_ready_is_waited_for():
    world = World(world_genesis(4))
    slow = list(world.nodes)[3]
    world.run(10)
    world.nodes[slow].progress = slow_progress(world, 0.8, 3.0)
    world.run(2)
    all_contribute(world, but=(slow,))
    assert not world.run(3, until=lambda: bool(world.decided))
    world.contribute(slow)
    assert world.run(2, until=lambda: has_committed(world, 1))
    assert members_of(world, 1) == set(world.nodes)


def punctual_rounds(world: World, count: int, work_s: float = 12.0) -> None:
    for number in range(1, count + 1):
        world.run(work_s)
        all_contribute(world)
        assert world.run(5, until=lambda number=number: has_committed(world, number))


def test_a_swarm_that_is_always_punctual_waits_less_than_the_spec_allows():
    world = World(world_genesis(4))
    punctual_rounds(world, 3)
    world.run(12)
    silent = list(world.nodes)[3]
    all_contribute(world, but=(silent,))
    began_s = world.now
    assert world.run(10, until=lambda: has_committed(world, 4))
    assert world.now - began_s < 5 < world.genesis.timing.ready_grace_s


def test_lateness_of_recent_rounds_justifies_waiting():
    world = World(world_genesis(4))
    late = list(world.nodes)[3]
    for number in range(1, 4):
        world.run(20)
        all_contribute(world, but=(late,))
        world.run(3.5)
        world.contribute(late)
        assert world.run(5, until=lambda number=number: has_committed(world, number))
        assert members_of(world, number) == set(world.nodes)
    graces = {grace_s(node.state) for node in world.nodes.values()}
    assert all(9 <= grace <= 10 for grace in graces)


def test_a_new_leader_waits_no_longer_than_the_one_that_died():
    world = World(world_genesis(5, fault_tolerance=0))
    punctual_rounds(world, 3)
    world.run(12)
    order = next(iter(world.nodes.values())).state.rules.order
    leader, silent = order[0], order[4]
    world.crash(leader)
    world.run(6)
    others = [node for peer, node in world.nodes.items() if peer not in (leader, silent)]
    for node in others:
        world.contribute(node.peer)
    before_s = world.now
    assert world.run(10, until=lambda: all(len(node.disk.commits) == 4 for node in others))
    assert 2 < world.now - before_s < 6
