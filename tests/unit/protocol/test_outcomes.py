"""What a commit means for a member: whatever of its own is in the means counts, and is not carried as well."""

from __future__ import annotations

from atoll.protocol.outcomes import committed
from atoll.protocol.record import Plan
from atoll.protocol.simulator import World, world_genesis


def committed_round(num_peers: int = 3) -> tuple[World, list[str]]:
    world = World(world_genesis(num_peers))
    for peer in world.nodes:
        world.contribute(peer)
    assert world.run(10, until=lambda: all(node.disk.commits for node in world.nodes.values()))
    return world, list(world.nodes)


def plan_of(world: World, peer: str) -> Plan:
    return world.nodes[peer].disk.commits[0].record.plan


def test_a_member_that_is_in_the_means_counts_whatever_it_would_offer_now():
    """It may have restarted and encoded anew: carried as well, its samples would count twice (S6)."""
    world, peers = committed_round()
    commit = world.nodes[peers[0]].disk.commits[0]
    assert all(committed(commit, "", peer).counted for peer in peers)


def test_a_member_that_is_left_out_does_not_count():
    world, peers = committed_round()
    commit = world.nodes[peers[0]].disk.commits[0]
    place = [member.peer for member in plan_of(world, peers[0]).members].index(peers[1])
    results = tuple(
        result.model_copy(update={"included": tuple(flag and i != place for i, flag in enumerate(result.included))})
        for result in commit.record.results
    )
    without = commit.model_copy(update={"record": commit.record.model_copy(update={"results": results})})
    assert not committed(without, "", peers[1]).counted
    assert committed(without, "", peers[0]).counted


def test_who_is_no_member_does_not_count():
    world, peers = committed_round()
    outcome = committed(world.nodes[peers[0]].disk.commits[0], "", "stranger")
    assert (outcome.counted, len(outcome.included_spans)) == (False, len(plan_of(world, peers[0]).spans))


def test_a_withdrawn_contribution_is_told_and_never_planned_with():
    """Seen in a hunt: the leader planned with what its maker no longer sent, and everybody waited for it in vain."""
    world = World(world_genesis(4, min_peers=2))
    state = next(iter(world.nodes.values())).state
    assert state is not None
    peers = state.rules.order[::-1]  # the last two: the first has half a vote more, and they must be no quorum
    for peer in peers[2:]:
        world.crash(peer)
    world.contribute(peers[0])
    world.run(60)
    assert world.nodes[peers[0]].given_up
    state = world.nodes[peers[1]].state
    assert state is not None
    assert state.readies[peers[0]].tokens == 0
