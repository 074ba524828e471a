"""Rounds under random schedules: whatever is lost, doubled, reordered or crashed, S1 and S2 hold (the world checks)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.protocol.simulator import World, world_genesis

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("happen"), st.integers(0, 2**16)),
        st.tuples(st.just("wait"), st.integers(1, 25)),
        st.tuples(st.just("crash"), st.integers(0, 6)),
        st.tuples(st.just("start"), st.integers(0, 6)),
        st.tuples(st.just("contribute"), st.integers(0, 6)),
    ),
    min_size=20,
    max_size=250,
)


def walk(world: World, steps: list[tuple[str, int]]) -> None:
    peers = list(world.nodes)
    for peer in peers:
        world.contribute(peer)
    for step, number in steps:
        peer = peers[number % len(peers)]
        match step:
            case "happen":
                world.pick(number)
            case "wait":
                world.now += number
            case "crash":
                world.crash(peer)
            case "start" if not world.nodes[peer].is_up:
                world.start(peer)
            case "contribute":
                world.contribute(peer)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(num_peers=st.integers(1, 5), seed=st.integers(0, 2**16), steps=STEPS)
def test_no_schedule_decides_two_records_or_applies_without_a_certificate(num_peers, seed, steps):
    world = World(world_genesis(num_peers), seed=seed, loss=0.1, duplication=0.2)
    walk(world, steps)
    assert not world.rejected


def chaos(world: World, num_rounds: int, duration_s: float = 900.0) -> bool:
    """Crash, restart and contribute at random times, always leaving a quorum its chance in the end."""
    peers, random = list(world.nodes), world.random

    def disturb() -> None:
        peer = random.choice(peers)
        if not world.nodes[peer].is_up:
            world.start(peer)
        elif random.random() < 0.3:
            world.crash(peer)
        world.contribute(random.choice(peers))
        if world.now < duration_s / 2:
            world.later(disturb, random.uniform(0, 3))

    def calm() -> None:
        for peer in peers:
            if not world.nodes[peer].is_up:
                world.start(peer)
            world.contribute(peer)
        world.later(calm, 2.0)

    disturb()
    world.later(calm, duration_s / 2 + 5)
    return world.run(
        duration_s, until=lambda: all(len(node.disk.commits) >= num_rounds for node in world.nodes.values())
    )


@pytest.mark.parametrize("seed", range(12))
def test_chaos_never_forks_and_ends_in_progress(seed):
    world = World(world_genesis(2 + seed % 4), seed=seed, loss=0.2, duplication=0.2, latency_s=(0.01, 3.0))
    assert chaos(world, num_rounds=3), f"no progress with seed {seed}"
    assert not world.rejected
