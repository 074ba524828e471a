"""`kill -9` at every stage of a round: the others commit, and the killed node comes back and counts."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from pathlib import Path

import pytest

from .lab import Node, hashes_by_round, rounds, swarm

pytestmark = pytest.mark.e2e

FAST_FAILOVER = (
    "inner.num_steps=3",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=3.0",
    "timing.progress_timeout_s=3.0",
    "timing.ready_grace_s=10.0",
    "timing.attempt_timeout_s=10.0",
    "timing.drop_after_s=60.0",
)
DEADLINE_S = 45  # attempt_timeout_s plus one repair and the margin of a loaded machine

KILL_POINTS = {
    "during its inner steps": "round.training:2",
    "while sending": "exchange.sending:2",
    "while it owns a span": "exchange.reducing:2",
    "after its vote": "round.voted:2",
    "after the commit": "round.committed:2",
    "while saving": "checkpoint.saving:2",
}


def assert_one_history(nodes: list[Node]) -> None:
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"


def counted_rounds(node: Node, since: int) -> list[int]:
    return [event["round"] for event in rounds(node.events[since:]) if event["counted"]]


@pytest.mark.parametrize("when", KILL_POINTS)
def test_the_others_go_on_without_a_killed_node_and_it_comes_back(tmp_path: Path, when: str) -> None:
    with swarm(tmp_path, 4, num_rounds=0, settings=FAST_FAILOVER) as nodes:
        victim, survivors = nodes[3], nodes[:3]
        _kill_and_recover(nodes, victim, survivors, KILL_POINTS[when])


@pytest.mark.parametrize("point", ["round.plan_sent:2", "round.proposed:2"])
def test_the_others_go_on_without_a_killed_leader(tmp_path: Path, point: str) -> None:
    """Every node carries the kill point, and only the leader of round 2 reaches it."""
    with swarm(tmp_path, 4, num_rounds=0, settings=FAST_FAILOVER) as nodes:
        for node in nodes:
            node.start(kill_at=point)
        nodes[0].wait_for_round(1, 60)
        victim = _wait_for_death(nodes)
        _check_recovery(victim, [node for node in nodes if node is not victim])


def _wait_for_death(nodes: list[Node]) -> Node:
    deadline_s = time.monotonic() + 60
    for node in itertools.cycle(nodes):
        assert node.process is not None
        assert time.monotonic() < deadline_s, "no leader reached the kill point"
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(0.1)
            return node
    raise AssertionError("unreachable")


def _kill_and_recover(nodes: list[Node], victim: Node, survivors: list[Node], point: str) -> None:
    for node in nodes:
        node.start(kill_at=point if node is victim else None)
    assert victim.wait_for_exit(90) == -9, "the kill point was not reached"
    _check_recovery(victim, survivors)


def _check_recovery(victim: Node, survivors: list[Node]) -> None:
    last = max((event["round"] for node in survivors for event in rounds(node.events)), default=0)
    for node in survivors:
        node.wait_for_round(last + 2, DEADLINE_S)
    num_events_before = len(victim.events)
    victim.start()
    back = victim.wait_for(
        "a counted round",
        lambda events: [e for e in rounds(events[num_events_before:]) if e["counted"]],
        DEADLINE_S,
    )[0]
    began_s = next(e["at_s"] for e in victim.events[num_events_before:] if e.get("state") == "training")
    head = max(e["round"] for node in survivors for e in rounds(node.events) if e["at_s"] <= began_s)
    assert back["round"] <= head + 2, "it counted later than two rounds after it had caught up"
    for node in survivors:
        node.wait_for_round(back["round"], DEADLINE_S)
    assert_one_history([victim, *survivors])
