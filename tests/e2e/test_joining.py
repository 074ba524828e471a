"""A newcomer loads verified state, counts soon, and nobody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import Event, Node, hashes_by_round, journalled_commits, rounds, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "inner.num_steps=20",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=4.0",
    "timing.progress_timeout_s=4.0",
)


def test_a_node_that_joins_at_round_five_counts_from_the_round_after_its_admission(tmp_path: Path) -> None:
    with swarm(tmp_path, 3, num_founders=2, num_rounds=0, settings=SETTINGS) as nodes:
        founders, joiner = nodes[:2], nodes[2]
        for node in founders:
            node.start()
        founders[0].wait_for_round(5, 90)
        joiner.start()
        first = joiner.wait_for("its first counted round", first_counted, 90)["round"]
        last = joiner.wait_for_round(first + 2, 60)["round"]
        for node in founders:
            node.wait_for_round(last, 60)

        assert first > 5
        assert admission_round(founders[0], joiner) == first - 1
        assert [event["round"] for event in rounds(joiner.events) if event["counted"]] == list(range(first, last + 1))
        assert all(event["counted"] for node in founders for event in rounds(node.events)), "a founder lost a round"
        for number, hashes in hashes_by_round(nodes).items():
            assert len(hashes) == 1, f"round {number}: {hashes}"


def first_counted(events: list[Event]) -> Event | None:
    return next((event for event in rounds(events) if event["counted"]), None)


def admission_round(node: Node, newcomer: Node) -> int:
    """The commit that took the newcomer into the roster, by a founder's journal."""
    commits = journalled_commits(node)
    return next(c.record.plan.round for c in commits if newcomer.peer_id in c.record.plan.next_roster)
