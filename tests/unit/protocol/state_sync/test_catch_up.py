"""A node that is some rounds behind applies what it missed, and notices when its own state is another."""

from __future__ import annotations

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.result_transfer import ResultsUnavailable
from atoll.protocol.state_sync import Pacer, StateMismatch, catch_up

PEER = Identity.from_seed(bytes(32)).peer_id


class Fetcher:
    """Gives the mean of every round up to ``num_kept``."""

    def __init__(self, num_kept=9):
        self.num_kept = num_kept

    async def fetch(self, record, peers):
        assert peers == [PEER]
        if record.plan.round > self.num_kept:
            raise ResultsUnavailable(record, {0: {PEER: "does not have it"}})
        self.encoded = memoryview(str(record.plan.round).encode())
        return self


class Node:
    """Applies commits; its state after round r is what the history says, but for ``wrong_after``."""

    def __init__(self, commits, wrong_after=None):
        self.applied = []
        self.hashes = {commit.record.plan.round - 1: commit.record.plan.parent_state for commit in commits}
        self.wrong_after = wrong_after

    async def __call__(self, commit, mean):
        number = commit.record.plan.round
        assert bytes(mean) == str(number).encode()
        self.applied.append(number)
        return "0" * 64 if number == self.wrong_after else self.hashes.get(number, "end")


async def test_missed_rounds_are_applied_in_order(make_history):
    commits = make_history(5)
    node = Node(commits)
    assert await catch_up(commits[2:], Fetcher(), lambda: [PEER], node, node.hashes[2]) == "end"
    assert node.applied == [3, 4, 5]


async def test_a_state_that_the_swarm_does_not_name_is_never_built_upon(make_history):
    commits = make_history(5)
    node = Node(commits, wrong_after=3)
    with pytest.raises(StateMismatch, match="after round 3"):
        await catch_up(commits[2:], Fetcher(), lambda: [PEER], node, node.hashes[2])
    assert node.applied == [3]


async def test_a_mean_that_nobody_keeps_ends_the_way_there(make_history):
    commits = make_history(4)
    node = Node(commits)
    with pytest.raises(ResultsUnavailable, match="round 3"):
        await catch_up(commits, Fetcher(num_kept=2), lambda: [PEER], node, node.hashes[0])
    assert node.applied == [1, 2]


async def test_a_donor_serves_at_its_limit_and_no_faster():
    waited = []

    async def sleep(duration_s):
        waited.append(duration_s)

    pacer = Pacer(bytes_per_s=100.0, now=lambda: 5.0, sleep=sleep)
    for _ in range(3):
        await pacer.spend(50)
    assert waited == [0.5, 1.0]
    pacer.bytes_per_s = None
    await pacer.spend(10**9)
    assert len(waited) == 2
