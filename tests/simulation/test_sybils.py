"""A hundred free identities in an open run: they move no mean while they are on probation, and are no quorum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.quorum import quorum_of
from atoll.protocol.record import Plan
from atoll.protocol.simulator import World, world_genesis
from atoll.protocol.simulator.nodes import people
from atoll.protocol.spec import Genesis, TrustConfig
from atoll.protocol.weights import weights

NUM_FOUNDERS, NUM_SYBILS, PROBATION_ROUNDS = 5, 100, 3
EVERYBODY = people(NUM_FOUNDERS + NUM_SYBILS)
FOUNDERS, SYBILS = EVERYBODY[:NUM_FOUNDERS], EVERYBODY[NUM_FOUNDERS:]


def genesis_with(**membership: object) -> Genesis:
    base = world_genesis(NUM_FOUNDERS, mode="open", allowed=(), **membership)
    return base.model_copy(update={"trust": TrustConfig(probation_rounds=PROBATION_ROUNDS)})


def swarm(genesis: Genesis, strangers: Sequence[PeerId] = SYBILS) -> World:
    """Founders who have held one round, after which strangers appear, all at once."""
    world = World(genesis, seed=5)
    hold_round(world)
    for peer in strangers:
        world.join(peer)
    world.run(3)
    hold_round(world)
    world.run(3)
    return world


def hold_round(world: World) -> None:
    """Everybody contributes, strangers a million times as many tokens as a founder."""
    number = len(world.nodes[FOUNDERS[0]].disk.commits) + 1
    for peer in world.nodes:
        world.contribute(peer, tokens=1000 if peer in FOUNDERS else 10**9)
    assert world.run(60, until=lambda: all(len(world.nodes[peer].disk.commits) >= number for peer in FOUNDERS))


def mean_of(plan: Plan, genesis: Genesis) -> np.ndarray:
    """What the round makes of contributions in which founders say 1 and strangers say -1000."""
    each = weights(plan, [True] * len(plan.members), genesis.trust, genesis.limits)
    values = [1.0 if member.peer in FOUNDERS else -1000.0 for member in plan.members]
    return np.dot(np.asarray(each), np.asarray(values))


def test_a_hundred_new_identities_do_not_move_the_mean_in_their_probation() -> None:
    genesis = genesis_with(witnesses=tuple(FOUNDERS))
    world = swarm(genesis)
    assert set(SYBILS) <= set(world.nodes[FOUNDERS[0]].disk.commits[-1].record.plan.next_roster)
    for _ in range(PROBATION_ROUNDS + 1):
        hold_round(world)
        world.run(3)
    plans = [commit.record.plan for commit in world.nodes[FOUNDERS[0]].disk.commits]
    crowded = [plan for plan in plans if len(plan.members) > NUM_FOUNDERS + NUM_SYBILS // 2]
    assert len(crowded) == PROBATION_ROUNDS + 1
    means = [mean_of(plan, genesis) for plan in crowded]
    assert means[:PROBATION_ROUNDS] == pytest.approx([1.0] * PROBATION_ROUNDS, abs=1e-12)
    assert means[-1] < -900  # and from then on they do: probation delays, invites and lists keep out


@pytest.mark.parametrize("has_witnesses", [True, False])
def test_strangers_decide_nothing_without_most_of_the_witnesses(has_witnesses: bool) -> None:
    some = SYBILS[:30]
    genesis = genesis_with(**({"witnesses": tuple(FOUNDERS)} if has_witnesses else {"accept_sybil_risk": True}))
    world = swarm(genesis, some)
    before = len(world.nodes[some[0]].disk.commits)
    world.partition(some, FOUNDERS)
    for peer in some:
        world.contribute(peer)
    has_decided = world.run(30, until=lambda: any(len(world.nodes[peer].disk.commits) > before for peer in some))
    assert has_decided != has_witnesses


def test_every_quorum_of_a_crowded_roster_has_most_of_the_witnesses() -> None:
    genesis = genesis_with(witnesses=tuple(FOUNDERS))
    quorum = quorum_of(genesis, tuple(EVERYBODY), 9)
    assert not quorum.reached([*SYBILS, *FOUNDERS[:2]])
    assert quorum.reached([*SYBILS, *FOUNDERS[:3]])
