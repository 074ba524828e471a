"""The simulated world: a seed replays a run, transfers take their time, faults do what they are called."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from atoll.protocol.round_machine import Phase
from atoll.protocol.simulator import BEHAVIOURS, Link, NetworkModel, Node, Violation, World, world_genesis

MEGABIT = 1e6


def everybody_contributes(world: World) -> None:
    for peer in world.nodes:
        world.contribute(peer)


def everybody_has(world: World, num_rounds: int):
    return lambda: all(len(node.disk.commits) >= num_rounds for node in world.nodes.values() if node.is_up)


def history(seed: int) -> str:
    """Everything that every node decided, in a run with all kinds of faults."""
    world = World(world_genesis(5), seed=seed, loss=0.1, duplication=0.1, latency_s=(0.01, 1.0), contribution_bytes=1e6)
    peers = list(world.nodes)
    world.set_link(peers[0], Link(MEGABIT, MEGABIT))

    def again() -> None:
        everybody_contributes(world)
        world.later(again, 3.0)

    again()
    world.at(10.0, world.sleep, peers[1])
    world.at(30.0, world.wake, peers[1])
    world.at(15.0, world.crash, peers[2])
    world.at(40.0, world.start, peers[2])
    world.at(50.0, world.partition, peers[:2], peers[2:])
    world.at(70.0, world.heal)
    world.run(150)
    facts = [(peer, [c.record.content_id() for c in node.disk.commits]) for peer, node in world.nodes.items()]
    return hashlib.sha256(repr((facts, world.num_events, world.now)).encode()).hexdigest()


def test_a_seed_replays_a_run_exactly_and_another_seed_does_not():
    assert history(1) == history(1) != history(2)


def test_a_run_does_not_depend_on_the_interpreters_hash_seed():
    folder = os.path.dirname(__file__)
    code = f"import sys; sys.path.insert(0, {folder!r}); import test_worlds; print(test_worlds.history(3))"
    said = set[str]()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        said.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 1


def test_an_exchange_takes_what_the_slowest_line_needs():
    """Four peers, 10 MB at 16 Mbit/s: 2 × 3/4 × 10 MB leave each, 7.5 s."""
    model = NetworkModel(latency_s=(0.01, 0.02), link=Link(16 * MEGABIT, 16 * MEGABIT))
    world = World(world_genesis(4), network=model, contribution_bytes=10e6, num_chunks=400)
    everybody_contributes(world)
    assert world.run(30, until=everybody_has(world, 1))
    assert 7.5 <= world.now < 9.0
    assert all(sent == pytest.approx(15e6, rel=0.01) for sent in world.network.sent_bytes.values())


def test_a_slow_contributor_is_no_stalled_one():
    """Its stream moves, so it is waited for, far beyond the time after which a stalled stream is given up."""
    world = World(world_genesis(3), contribution_bytes=3e6, num_chunks=300)
    slow = next(reversed(world.nodes))
    world.set_link(slow, Link(2 * MEGABIT, 100 * MEGABIT))
    everybody_contributes(world)
    assert world.run(60, until=everybody_has(world, 1))
    assert world.now > 2 * world.genesis.timing.progress_timeout_s
    record = next(iter(world.nodes.values())).disk.commits[0].record
    assert all(all(result.included) for result in record.results)


def test_a_member_cut_off_from_one_owner_is_left_out_of_its_span_only():
    world = World(world_genesis(4), contribution_bytes=4e6, network=NetworkModel(link=Link(8 * MEGABIT, 8 * MEGABIT)))
    everybody_contributes(world)
    world.run(1)
    state = next(iter(world.nodes.values())).state
    assert state is not None
    owner, member = state.rules.order[1:3]  # whoever leads must be heard by all
    world.network.cut = {(member, owner)}
    assert world.run(60, until=everybody_has(world, 1))
    record = world.nodes[owner].disk.commits[0].record
    left_out = [index for index, result in enumerate(record.results) if not all(result.included)]
    assert [record.plan.spans[index].owner for index in left_out] == [owner]


def test_a_suspended_node_holds_up_nobody_and_follows_when_it_wakes():
    world = World(world_genesis(4))
    sleeper = next(iter(world.nodes))
    world.run(2)
    world.sleep(sleeper)
    world.run(7)
    everybody_contributes(world)
    awake = [node for peer, node in world.nodes.items() if peer != sleeper]
    assert world.run(3, until=lambda: all(node.disk.commits for node in awake))
    world.wake(sleeper)
    assert world.run(5, until=everybody_has(world, 1))


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_by_an_hour_costs_no_round_and_no_safety(by_s):
    world = World(world_genesis(4))
    peer = next(iter(world.nodes))
    everybody_contributes(world)
    world.run(0.3)
    world.jump_clock(peer, by_s)
    others = [node for other, node in world.nodes.items() if other != peer]
    assert world.run(60, until=lambda: all(node.disk.commits for node in others))


def test_a_joiner_downloads_the_state_before_it_is_admitted():
    world = World(world_genesis(3), state_bytes=30e6, network=NetworkModel(link=Link(8 * MEGABIT, 8 * MEGABIT)))
    everybody_contributes(world)
    assert world.run(20, until=everybody_has(world, 1))
    joiner, came_s = world.genesis.membership.allowed[0], world.now
    world.join(joiner)
    assert world.run(120, until=lambda: world.nodes[joiner].is_up)
    assert world.now - came_s >= 20
    assert len(world.nodes[joiner].disk.commits) == 1


@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS.keys() - {"honest", "silent_owner"}))
@pytest.mark.parametrize("place", [0, 1])
def test_one_that_misbehaves_among_five_forks_nothing_and_stops_nothing(behaviour, place):
    world = World(world_genesis(5))
    order = next(iter(world.nodes.values())).state.rules.order
    world.nodes[order[place]].behaviour = BEHAVIOURS[behaviour]()

    def again() -> None:
        everybody_contributes(world)
        world.later(again, 2.0)

    again()
    honest = [node for node in world.nodes.values() if node.is_honest]
    assert world.run(600, until=lambda: all(len(node.disk.commits) >= 3 for node in honest))


def test_an_owner_that_votes_for_means_it_keeps_to_itself_delays_rounds_and_forks_nothing():
    """Its vote binds every leader whose promises it is among to a record that nobody else can vote for."""
    world = World(world_genesis(5))
    greedy = next(iter(world.nodes.values()))
    greedy.behaviour = BEHAVIOURS["silent_owner"]()
    everybody_contributes(world)
    assert not world.run(15, until=everybody_has(world, 1))
    world.run(100)
    assert len(world.decided) <= 1


def test_votes_without_durable_results_are_noticed():
    world = World(world_genesis(3))

    def forget(node: Node, _action: object) -> None:
        node.disk.held.clear()

    world.on_action = forget
    everybody_contributes(world)
    with pytest.raises(Violation, match="without holding the results"):
        world.run(30)


def test_nobody_contributes_twice_to_a_round():
    world = World(world_genesis(3))
    peer = next(iter(world.nodes))
    world.contribute(peer)
    ready = world.nodes[peer].state.ready
    world.contribute(peer, tokens=5)
    assert world.nodes[peer].state.ready is ready
    assert world.nodes[peer].state.phase is Phase.READY
