"""S1 and S2 in the situations that break naive protocols; with a bug injected, the same situations find it."""

from __future__ import annotations

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Commit, Heartbeat
from atoll.protocol.round_machine import Phase, Rules
from atoll.protocol.simulator import Violation, World, world_genesis


class Half:
    """A wrong quorum: half of the roster is enough."""

    def __init__(self, roster: tuple[PeerId, ...]) -> None:
        self.roster = roster

    def reached(self, voters) -> bool:
        return 2 * len(set(self.roster).intersection(voters)) >= len(self.roster)


class HalfIsEnough(Rules):
    @property
    def quorum(self):
        return Half(self.roster)


def everybody_contributes(world: World) -> None:
    for peer in world.nodes:
        world.contribute(peer)


def commit_known_to_the_leader_only(**faults: object) -> World:
    """All have voted and the leader has decided; it vanishes before anybody hears, and all others restart."""
    world = World(world_genesis(3), **faults)
    world.passes = lambda _sender, _receiver, body: not isinstance(body, Commit)
    everybody_contributes(world)
    assert world.run(30, until=lambda: bool(world.decided))
    leader = next(peer for peer, node in world.nodes.items() if node.disk.commits)
    world.run(1)
    world.crash(leader)
    others = [peer for peer in world.nodes if peer != leader]
    for peer in others:
        world.crash(peer)
    world.passes = lambda _sender, _receiver, _body: True
    for peer in others:
        world.start(peer)
        world.contribute(peer, tokens=77)
    return world


def test_a_commit_that_nobody_heard_of_is_decided_again_by_those_who_voted():
    world = commit_known_to_the_leader_only()
    assert world.run(60, until=lambda: sum(len(node.disk.commits) for node in world.nodes.values()) == 3)
    assert not world.rejected


def test_members_that_forget_their_votes_are_found_out():
    world = commit_known_to_the_leader_only(amnesia=True)
    with pytest.raises(Violation, match="two records"):
        world.run(60)


def two_halves(**faults: object) -> tuple[World, list[list[PeerId]]]:
    world = World(world_genesis(4), **faults)
    order = next(iter(world.nodes.values())).state.rules.order
    halves = [order[:2], order[2:]]
    world.passes = lambda sender, receiver, _body: (sender in halves[0]) == (receiver in halves[0])
    everybody_contributes(world)
    return world, halves


def test_of_two_halves_exactly_one_goes_on():
    world, halves = two_halves()
    world.run(60)
    assert [[len(world.nodes[peer].disk.commits) for peer in half] for half in halves] == [[1, 1], [0, 0]]
    assert all("no quorum: 2 of 4 members" in world.nodes[peer].given_up[0] for peer in halves[1])


def test_a_quorum_of_half_the_roster_is_found_out():
    world, _ = two_halves(rules_type=HalfIsEnough)
    with pytest.raises(Violation, match="two records"):
        world.run(60)


def test_of_a_pair_the_tie_breaker_goes_on_alone_and_the_other_waits():
    world = World(world_genesis(2))
    first, second = next(iter(world.nodes.values())).state.rules.order
    world.passes = lambda sender, receiver, _body: sender == receiver
    everybody_contributes(world)
    world.run(40)
    assert len(world.nodes[first].disk.commits) == 1
    assert not world.nodes[second].disk.commits


def test_who_has_voted_neither_gives_up_nor_forgets_until_it_learns_the_outcome():
    world = World(world_genesis(3))
    everybody_contributes(world)
    node = world.nodes[next(iter(world.nodes.values())).state.rules.order[1]]
    world.passes = lambda _sender, _receiver, body: not isinstance(body, Commit)
    assert world.run(30, until=lambda: node.state.phase is Phase.IN_DOUBT)
    world.passes = lambda sender, receiver, _body: sender == receiver
    world.run(500)
    assert node.state.phase is Phase.IN_DOUBT
    assert not node.given_up
    world.passes = lambda _sender, _receiver, _body: True
    assert world.run(60, until=lambda: len(node.disk.commits) == 1)


def test_a_commit_is_learnt_from_anybody_who_has_it():
    """CHN-11: two are a round ahead of the third, which is level with them at once."""
    world = World(world_genesis(3))
    peers = list(world.nodes)
    world.passes = lambda _sender, receiver, body: receiver != peers[0] or isinstance(body, Heartbeat)
    everybody_contributes(world)
    world.run(60, until=lambda: all(world.nodes[peer].disk.commits for peer in peers[1:]))
    world.passes = lambda _sender, _receiver, _body: True
    assert world.run(5, until=lambda: len(world.nodes[peers[0]].disk.commits) == 1)
