"""Partitions that come and go, links dead in one direction, and crashes at every persisted point, over many rounds.

The soup checks S1 and S2 at each vote and decision; here progress after the last fault is checked too. A long hunt:
``ATOLL_HUNT_SEEDS=2000 pytest tests/property/protocol/test_partitions_and_crashes.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Message
from atoll.protocol.round_machine import Action, Decide, Persist, Send, StartExchange
from atoll.protocol.simulator import Node, Soup, soup_genesis

NUM_SEEDS = int(os.environ.get("ATOLL_HUNT_SEEDS", "6"))
FAULTY_S, CALM_S = 400.0, 900.0


def keep_contributing(soup: Soup) -> None:
    for peer in soup.nodes:
        soup.contribute(peer)
    soup.later(lambda: keep_contributing(soup), 1.5)


def everybody_reaches(soup: Soup, num_rounds: int) -> Callable[[], bool]:
    return lambda: all(len(node.disk.commits) >= num_rounds for node in soup.nodes.values())


def most_rounds(soup: Soup) -> int:
    return max(len(node.disk.commits) for node in soup.nodes.values())


def assert_one_history(soup: Soup) -> None:
    histories = [[c.record.content_id() for c in node.disk.commits] for node in soup.nodes.values()]
    longest = max(histories, key=len)
    assert all(longest[: len(history)] == history for history in histories)


class Links:
    """Which links pass messages at present, in which direction."""

    def __init__(self, soup: Soup) -> None:
        self.soup = soup
        self.cut: set[tuple[PeerId, PeerId]] = set()
        soup.passes = self.passes

    def passes(self, sender: PeerId, receiver: PeerId, _body: Message) -> bool:
        return (sender, receiver) not in self.cut

    def split(self, *groups: list[PeerId]) -> None:
        sides = {peer: number for number, group in enumerate(groups) for peer in group}
        self.cut = {(a, b) for a in sides for b in sides if sides[a] != sides[b]}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (1, 1, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_a_partition_never_forks_and_heals(sizes, seed):
    soup = Soup(soup_genesis(4), seed=seed, latency_s=(0.01, 0.5))
    links, peers = Links(soup), list(soup.nodes)
    soup.random.shuffle(peers)
    keep_contributing(soup)
    soup.run(soup.random.uniform(0, 4))
    groups = [[peers.pop() for _ in range(size)] for size in sizes]
    links.split(*groups)
    soup.run(100)  # longer than drop_after_s: whoever is a quorum goes on without the others
    assert_one_history(soup)
    links.cut.clear()
    assert soup.run(CALM_S, until=everybody_reaches(soup, most_rounds(soup) + 3))
    assert_one_history(soup)


def disturb(soup: Soup, links: Links, until_s: float) -> None:
    """Something bad now, and again soon."""
    peers, random = list(soup.nodes), soup.random
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
            soup.crash(peer)
        case _ if not soup.nodes[peer].is_up:
            soup.start(peer)
        case _:
            pass
    if soup.now < until_s:
        soup.later(lambda: disturb(soup, links, until_s), random.uniform(0, 12))


def crash_sometimes(soup: Soup, until_s: float) -> None:
    """At the moments between what is durable and what is said: before or after an action that matters."""

    def on_action(node: Node, action: Action) -> None:
        matters = isinstance(action, Persist | Send | StartExchange | Decide)
        if soup.now < until_s and matters and soup.random.random() < 0.004:
            soup.later(lambda: soup.crash(node.peer), 0.0)
            soup.later(lambda: None if node.is_up else soup.start(node.peer), soup.random.uniform(0.1, 90))

    soup.on_action = on_action


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_no_mixture_of_faults_forks_and_calm_brings_progress(seed):
    soup = Soup(soup_genesis(2 + seed % 5), seed=seed, loss=0.1, duplication=0.2, latency_s=(0.01, 2.0))
    links = Links(soup)
    keep_contributing(soup)
    crash_sometimes(soup, FAULTY_S)
    disturb(soup, links, FAULTY_S)
    soup.run(FAULTY_S + 15)
    assert_one_history(soup)
    links.cut.clear()
    for peer, node in soup.nodes.items():
        if not node.is_up:
            soup.start(peer)
    goal = most_rounds(soup) + 2
    assert soup.run(CALM_S, until=everybody_reaches(soup, goal)), f"no progress with seed {seed}"
    assert_one_history(soup)


@pytest.mark.parametrize("num_dead", [1, 2])
def test_founders_that_never_come_cost_nothing_but_their_part(num_dead):
    soup = Soup(soup_genesis(5, fault_tolerance=0))
    for peer in list(soup.nodes)[:num_dead]:
        soup.crash(peer)
    keep_contributing(soup)
    alive = [node for node in soup.nodes.values() if node.is_up]
    assert soup.run(600, until=lambda: all(len(node.disk.commits) >= 3 for node in alive))


@pytest.mark.parametrize("num_behind", [1, 4, 5, 30])
def test_a_node_that_was_away_for_some_rounds_follows_and_counts(num_behind):
    soup = Soup(soup_genesis(4))
    away = list(soup.nodes)[1]
    keep_contributing(soup)
    assert soup.run(60, until=everybody_reaches(soup, 1))
    soup.crash(away)
    target = len(soup.nodes[away].disk.commits) + num_behind
    assert soup.run(4000, until=lambda: most_rounds(soup) >= target)
    soup.start(away)
    back = most_rounds(soup)
    assert soup.run(200, until=lambda: len(soup.nodes[away].disk.commits) > back)
    assert soup.run(200, until=lambda: counted(soup, away, back))


def counted(soup: Soup, peer: PeerId, after_round: int) -> bool:
    plans = [commit.record.plan for commit in soup.nodes[peer].disk.commits[after_round:]]
    return any(member.peer == peer for plan in plans for member in plan.members)
