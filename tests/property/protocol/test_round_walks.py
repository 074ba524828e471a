"""Rounds under random schedules: whatever is lost, doubled, reordered or crashed, S1 and S2 hold (the soup checks)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.protocol.simulator import Soup, soup_genesis

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


def walk(soup: Soup, steps: list[tuple[str, int]]) -> None:
    peers = list(soup.nodes)
    for peer in peers:
        soup.contribute(peer)
    for step, number in steps:
        peer = peers[number % len(peers)]
        match step:
            case "happen":
                soup.pick(number)
            case "wait":
                soup.now += number
            case "crash":
                soup.crash(peer)
            case "start" if not soup.nodes[peer].is_up:
                soup.start(peer)
            case "contribute":
                soup.contribute(peer)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(num_peers=st.integers(1, 5), seed=st.integers(0, 2**16), steps=STEPS)
def test_no_schedule_decides_two_records_or_applies_without_a_certificate(num_peers, seed, steps):
    soup = Soup(soup_genesis(num_peers), seed=seed, loss=0.1, duplication=0.2)
    walk(soup, steps)
    assert not soup.rejected


def chaos(soup: Soup, num_rounds: int, duration_s: float = 900.0) -> bool:
    """Crash, restart and contribute at random times, always leaving a quorum its chance in the end."""
    peers, random = list(soup.nodes), soup.random

    def disturb() -> None:
        peer = random.choice(peers)
        if not soup.nodes[peer].is_up:
            soup.start(peer)
        elif random.random() < 0.3:
            soup.crash(peer)
        soup.contribute(random.choice(peers))
        if soup.now < duration_s / 2:
            soup.later(disturb, random.uniform(0, 3))

    def calm() -> None:
        for peer in peers:
            if not soup.nodes[peer].is_up:
                soup.start(peer)
            soup.contribute(peer)
        soup.later(calm, 2.0)

    disturb()
    soup.later(calm, duration_s / 2 + 5)
    return soup.run(duration_s, until=lambda: all(len(node.disk.commits) >= num_rounds for node in soup.nodes.values()))


@pytest.mark.parametrize("seed", range(12))
def test_chaos_never_forks_and_ends_in_progress(seed):
    soup = Soup(soup_genesis(2 + seed % 4), seed=seed, loss=0.2, duplication=0.2, latency_s=(0.01, 3.0))
    assert chaos(soup, num_rounds=3), f"no progress with seed {seed}"
    assert not soup.rejected
