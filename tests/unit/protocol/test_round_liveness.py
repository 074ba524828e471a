"""A fair schedule commits, wherever one death strikes; each failure mode costs what it may and no more (L1-L4)."""

from __future__ import annotations

import itertools

import pytest

from atoll.protocol.messages import Commit, PlanMessage, Prepare, Promise, Proposal, Ready, SpanDone, Vote
from atoll.protocol.round_machine import Action, Persist, Send, StartExchange
from atoll.protocol.simulator import Node, World, world_genesis

MOMENTS = {
    "announcing": Ready,
    "planning": PlanMessage,
    "starting its exchange": StartExchange,
    "reporting a span": SpanDone,
    "proposing": Proposal,
    "writing down": Persist,
    "voting": Vote,
    "committing": Commit,
}


def is_moment(action: Action, kind: type) -> bool:
    return isinstance(action, kind) or (isinstance(action, Send) and isinstance(action.message, kind))


def everybody_contributes(world: World) -> None:
    for peer in world.nodes:
        world.contribute(peer)


def crash_at(world: World, kind: type, number: int, *, after: bool) -> list[Node]:
    """Crash whoever is about to perform (``after``: has just performed) the ``number``-th such action."""
    crashed: list[Node] = []
    counter = itertools.count()

    def crash(node: Node, action: Action) -> None:
        if not crashed and is_moment(action, kind) and next(counter) == number:
            crashed.append(node)
            if after:
                world.perform(node, action)
            world.crash(node.peer)

    world.on_action = crash
    return crashed


BY_LEADER = {"planning", "proposing", "committing"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("moment", "number"),
    [(moment, number) for moment in MOMENTS for number in ((0,) if moment in BY_LEADER else (0, 1, 3))],
)
def test_the_others_commit_when_one_of_four_dies(moment, number, after):
    world = World(world_genesis(4), seed=number)
    crashed = crash_at(world, MOMENTS[moment], number, after=after)
    everybody_contributes(world)
    # One dead peer costs at most its detection, a lost attempt and its repair (L1).
    timing = world.genesis.timing
    within_s = timing.attempt_timeout_s + 2 * timing.heartbeat_timeout_s + timing.progress_timeout_s
    everybody = world.nodes.values()
    assert world.run(within_s, until=lambda: all(node.disk.commits for node in everybody if node not in crashed))
    assert crashed
    world.start(crashed[0].peer)
    assert world.run(10, until=lambda: all(len(node.disk.commits) == 1 for node in everybody))
    world.run(2)
    everybody_contributes(world)
    assert world.run(within_s, until=lambda: all(len(node.disk.commits) == 2 for node in everybody))
    members = [member.peer for member in crashed[0].disk.commits[1].record.plan.members]
    assert crashed[0].peer in members
    assert not world.rejected


@pytest.mark.parametrize("number", range(6))
def test_a_new_leader_may_die_too(number):
    world = World(world_genesis(5), seed=number)
    first = next(iter(world.nodes.values())).state.rules.order[0]
    world.crash(first)
    crash_at(world, [Prepare, Promise, PlanMessage, Proposal, Vote, Commit][number], 0, after=False)
    everybody_contributes(world)
    world.run(60)
    survivors = [node for node in world.nodes.values() if node.is_up]
    if len(survivors) < 4:
        assert not any(node.disk.commits for node in survivors)  # five members tolerate one: no quorum is left
        world.start(first)
        world.run(2)
        everybody_contributes(world)
        world.run(60, until=lambda: all(node.disk.commits for node in survivors))
    assert all(node.disk.commits for node in survivors)


def test_with_everybody_ready_a_round_closes_at_once():
    world = World(world_genesis(4))
    everybody_contributes(world)
    assert world.run(2, until=lambda: all(node.disk.commits for node in world.nodes.values()))


def test_str_01_a_straggler_is_waited_for_until_the_grace_is_over_and_no_longer():
    world = World(world_genesis(4))
    peers = list(world.nodes)
    for peer in peers[:3]:
        world.contribute(peer)
    assert not world.run(9, until=lambda: bool(world.decided))
    assert world.run(4, until=lambda: all(node.disk.commits for node in world.nodes.values()))
    assert len(world.nodes[peers[0]].disk.commits[0].record.plan.members) == 3


def test_str_04_a_dead_peer_is_not_waited_for():
    world = World(world_genesis(4))
    world.run(3)
    world.crash(next(iter(world.nodes)))
    world.run(6)
    everybody_contributes(world)
    assert world.run(2, until=lambda: sum(len(node.disk.commits) for node in world.nodes.values()) == 3)


def test_avg_04_a_round_without_tokens_is_not_planned():
    world = World(world_genesis(2))
    for peer in world.nodes:
        world.contribute(peer, tokens=0)
    world.run(60)
    assert not world.decided


def test_avg_05_a_lone_node_commits():
    world = World(world_genesis(1))
    everybody_contributes(world)
    assert world.run(1, until=lambda: bool(world.decided))


def test_avg_06_without_company_a_node_goes_on_training_and_tries_again():
    world = World(world_genesis(3, min_peers=2))
    peers = list(world.nodes)
    for peer in peers[1:]:
        world.crash(peer)
    world.contribute(peers[0])
    world.run(60)
    assert world.nodes[peers[0]].given_up == ["no quorum: 1 of 3 members are alive"]
    for peer in peers[1:]:
        world.start(peer)
    world.run(2)
    everybody_contributes(world)
    assert world.run(20, until=lambda: bool(world.nodes[peers[0]].disk.commits))


def test_chn_10_unreachable_members_contribute_but_never_own_or_lead():
    world = World(world_genesis(3))
    peers = list(world.nodes)
    for peer in peers[1:]:
        world.nodes[peer].reachable = False
    world.run(2)
    everybody_contributes(world)
    assert world.run(20, until=lambda: bool(world.nodes[peers[1]].disk.commits))
    plan = world.nodes[peers[1]].disk.commits[0].record.plan
    assert (plan.leader, {span.owner for span in plan.spans}) == (peers[0], {peers[0]})
    assert len(plan.members) == 3


def test_chn_10_without_any_reachable_member_the_reason_is_said_soon():
    world = World(world_genesis(3))
    for node in world.nodes.values():
        node.reachable = False
    world.run(2)
    everybody_contributes(world)
    world.run(7)
    assert all(node.given_up[0].startswith("no reachable reducer") for node in world.nodes.values())


def test_paused_members_vote_and_are_not_waited_for():
    world = World(world_genesis(3))
    peers = list(world.nodes)
    for peer in peers[1:]:
        world.nodes[peer].phase = "paused"
    world.run(2)
    world.contribute(peers[0])
    assert world.run(3, until=lambda: all(node.disk.commits for node in world.nodes.values()))


def test_a_joiner_is_admitted_by_a_commit_and_then_counts():
    world = World(world_genesis(2))
    joiner = world.genesis.membership.allowed[0]
    world.join(joiner)
    world.run(2)
    everybody_contributes(world)
    everybody = world.nodes.values()
    assert world.run(5, until=lambda: all(node.disk.commits for node in everybody))
    first = world.nodes[joiner].disk.commits[0].record.plan
    assert joiner not in {member.peer for member in first.members}
    assert joiner in first.next_roster
    world.run(2)
    everybody_contributes(world)
    assert world.run(5, until=lambda: all(len(node.disk.commits) == 2 for node in everybody))
    assert joiner in {member.peer for member in world.nodes[joiner].disk.commits[1].record.plan.members}
    assert not world.rejected


def test_a_stranger_is_never_admitted_to_a_listed_run():
    world = World(world_genesis(2))
    stranger = world_genesis(9).membership.roster[8]
    assert not world.genesis.membership.admits(stranger)
    world.join(stranger)
    world.run(2)
    for peer in world.genesis.membership.roster:
        world.contribute(peer)
    world.run(5)
    assert stranger not in world.nodes[world.genesis.membership.roster[0]].disk.commits[0].record.plan.next_roster


def test_members_silent_for_long_are_dropped_by_a_commit_and_come_back_by_another():
    world = World(world_genesis(4))
    gone = next(iter(world.nodes))
    world.crash(gone)
    others = [node for peer, node in world.nodes.items() if peer != gone]
    world.run(65)
    everybody_contributes(world)
    assert world.run(20, until=lambda: all(node.disk.commits for node in others))
    assert gone not in others[0].disk.commits[0].record.plan.next_roster
    world.start(gone)
    world.run(3)
    everybody_contributes(world)
    assert world.run(20, until=lambda: all(len(node.disk.commits) == 2 for node in others))
    assert gone in others[0].disk.commits[1].record.plan.next_roster


def test_leases_of_a_round_do_not_overlap_with_the_next():
    world = World(world_genesis(3))
    for number in (1, 2):
        everybody_contributes(world)
        world.run(
            20, until=lambda number=number: all(len(node.disk.commits) == number for node in world.nodes.values())
        )
    cursors = [commit.record.plan.data_cursor for commit in next(iter(world.nodes.values())).disk.commits]
    assert cursors == [30, 60]
