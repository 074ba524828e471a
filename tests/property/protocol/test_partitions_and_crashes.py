"""Partitions that come and go, links dead in one direction, and crashes at every persisted point, over many rounds.

The world checks S1 and S2 at each vote and decision; here progress after the last fault is checked too. A long hunt:
``ATOLL_HUNT_SEEDS=2000 pytest tests/property/protocol/test_partitions_and_crashes.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Message
from atoll.protocol.round_machine import Action, Decide, Persist, Send, StartExchange
from atoll.protocol.simulator import Node, World, world_genesis

NUM_SEEDS = int(os.environ.get("ATOLL_HUNT_SEEDS", "6"))
FAULTY_S, CALM_S = 400.0, 900.0


def keep_contributing(world: World) -> None:
    for peer in world.nodes:
        world.contribute(peer)
    world.later(lambda: keep_contributing(world), 1.5)


def everybody_reaches(world: World, num_rounds: int) -> Callable[[], bool]:
    return lambda: all(len(node.disk.commits) >= num_rounds for node in world.nodes.values())


def most_rounds(world: World) -> int:
    return max(len(node.disk.commits) for node in world.nodes.values())


def assert_one_history(world: World) -> None:
    histories = [[c.record.content_id() for c in node.disk.commits] for node in world.nodes.values()]
    longest = max(histories, key=len)
    assert all(longest[: len(history)] == history for history in histories)


class Links:
    """Which links pass messages at present, in which direction."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[tuple[PeerId, PeerId]] = set()
        world.passes = self.passes

    def passes(self, sender: PeerId, receiver: PeerId, _body: Message) -> bool:
        return (sender, receiver) not in self.cut

    def split(self, *groups: list[PeerId]) -> None:
        sides = {peer: number for number, group in enumerate(groups) for peer in group}
        self.cut = {(a, b) for a in sides for b in sides if sides[a] != sides[b]}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (1, 1, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_a_partition_never_forks_and_heals(sizes, seed):
    world = World(world_genesis(4), seed=seed, latency_s=(0.01, 0.5))
    links, peers = Links(world), list(world.nodes)
    world.random.shuffle(peers)
    keep_contributing(world)
    world.run(world.random.uniform(0, 4))
    groups = [[peers.pop() for _ in range(size)] for size in sizes]
    links.split(*groups)
    world.run(100)  # longer than drop_after_s: whoever is a quorum goes on without the others
    assert_one_history(world)
    links.cut.clear()
    assert world.run(CALM_S, until=everybody_reaches(world, most_rounds(world) + 3))
    assert_one_history(world)


def disturb(world: World, links: Links, until_s: float) -> None:
    """Something bad now, and again soon."""
    peers, random = list(world.nodes), world.random
    peer = random.choice(peers)
    match random.randrange(6):
        case 0:
            random.shuffle(peers)
            place = random.randint(1, len(peers) - 1)
            links.split(peers[:place], peers[place:])
        case 1:
            links.cut |= {(peer, other) for other in peers if random.random() < 0.5}
        case 2:
            links.cut.clear()
        case 3:
            world.crash(peer)
        case _ if not world.nodes[peer].is_up:
            world.start(peer)
        case _:
            pass
    if world.now < until_s:
        world.later(lambda: disturb(world, links, until_s), random.uniform(0, 12))


def crash_sometimes(world: World, until_s: float) -> None:
    """At the moments between what is durable and what is said: before or after an action that matters."""

    def on_action(node: Node, action: Action) -> None:
        matters = isinstance(action, Persist | Send | StartExchange | Decide)
        if world.now < until_s and matters and world.random.random() < 0.004:
            world.later(lambda: world.crash(node.peer), 0.0)
            world.later(lambda: None if node.is_up else world.start(node.peer), world.random.uniform(0.1, 90))

    world.on_action = on_action


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_mixture_of_faults_forks_and_calm_brings_progress(seed):
    world = World(world_genesis(2 + seed % 5), seed=seed, loss=0.1, duplication=0.2, latency_s=(0.01, 2.0))
    links = Links(world)
    keep_contributing(world)
    crash_sometimes(world, FAULTY_S)
    disturb(world, links, FAULTY_S)
    world.run(FAULTY_S + 15)
    assert_one_history(world)
    links.cut.clear()
    for peer, node in world.nodes.items():
        if not node.is_up:
            world.start(peer)
    goal = most_rounds(world) + 2
    assert world.run(CALM_S, until=everybody_reaches(world, goal)), f"no progress with seed {seed}"
    assert_one_history(world)


@pytest.mark.parametrize("num_dead", [1, 2])
def test_founders_that_never_come_cost_nothing_but_their_part(num_dead):
    world = World(world_genesis(5, fault_tolerance=0))
    for peer in list(world.nodes)[:num_dead]:
        world.crash(peer)
    keep_contributing(world)
    alive = [node for node in world.nodes.values() if node.is_up]
    assert world.run(600, until=lambda: all(len(node.disk.commits) >= 3 for node in alive))


@pytest.mark.parametrize("num_behind", [1, 4, 5, 30])
def test_a_node_that_was_away_for_some_rounds_follows_and_counts(num_behind):
    world = World(world_genesis(4))
    away = list(world.nodes)[1]
    keep_contributing(world)
    assert world.run(60, until=everybody_reaches(world, 1))
    world.crash(away)
    target = len(world.nodes[away].disk.commits) + num_behind
    assert world.run(4000, until=lambda: most_rounds(world) >= target)
    world.start(away)
    back = most_rounds(world)
    assert world.run(200, until=lambda: len(world.nodes[away].disk.commits) > back)
    assert world.run(200, until=lambda: counted(world, away, back))


def counted(world: World, peer: PeerId, after_round: int) -> bool:
    plans = [commit.record.plan for commit in world.nodes[peer].disk.commits[after_round:]]
    return any(member.peer == peer for plan in plans for member in plan.members)
