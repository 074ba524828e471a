"""New lineages in simulated swarms: what was decided before one begins is never decided again (S1, S7)."""

from __future__ import annotations

import pytest

from atoll.protocol.changes import Rollback
from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Commit
from atoll.protocol.simulator.faults import FaultSchedule
from atoll.protocol.simulator.faulty import FaultySwarm
from atoll.protocol.simulator.nodes import Node, state_hash
from atoll.protocol.simulator.properties import SafetyChecks


def cut(*groups: list[PeerId]) -> set[tuple[PeerId, PeerId]]:
    sides = {peer: number for number, group in enumerate(groups) for peer in group}
    return {(a, b) for a in sides for b in sides if sides[a] != sides[b]}


def begin_lineage_at(swarm: FaultySwarm, node: Node) -> None:
    """The operators let the run go on from a node's own state."""
    standing = swarm.statutes.rules_of(node).standing(node.disk.commits[-1])
    fork = (standing.round, standing.record_id, state_hash(node.disk.commits), standing.roster)
    change = Rollback(**dict(zip(("lineage", "round", "record", "state_hash", "roster"), (1, *fork), strict=True)))
    assert swarm.statutes.issue(node.peer, change, standing.round + 1) is not None


def one_decides_alone(seed: int) -> tuple[FaultySwarm, Node]:
    """A swarm of four, each cut off from all others as soon as one of them has applied round 2."""
    swarm, first = FaultySwarm(FaultSchedule(seed=seed, num_peers=4)), list[Node]()
    SafetyChecks(swarm)

    def separate(node: Node, commit: Commit, _counted: bool) -> None:
        if commit.record.plan.round == 2 and not first:
            first.append(node)
            swarm.network.cut = cut(*([peer] for peer in swarm.people))

    swarm.ears.decision.append(separate)
    assert swarm.run(60, until=lambda: bool(first) and first[0].round == 3)
    return swarm, first[0]


@pytest.mark.parametrize("seed", range(4))
def test_what_a_lineage_begins_with_can_only_be_learnt(seed):
    """Its voters forget what they have said in the old lineage: a quorum of them could decide another record."""
    swarm, first = one_decides_alone(seed)
    begin_lineage_at(swarm, first)
    others = [node for node in swarm.nodes.values() if node is not first and node.round == 2]
    for node in others:
        swarm.statutes.learn(node, swarm.charter.rules.amendments)
    assert len(others) == 3
    swarm.network.cut = cut([first.peer], [node.peer for node in others])
    swarm.run(60)
    assert all(node.round == 2 for node in others)
    swarm.network.cut = set()
    assert swarm.run(60, until=lambda: all(len(node.disk.commits) >= 4 for node in swarm.nodes.values()))
    assert {node.disk.lineage for node in swarm.nodes.values()} == {1}
    assert len({node.disk.commits[1].record.content_id() for node in swarm.nodes.values()}) == 1
