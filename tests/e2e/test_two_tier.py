"""A two-tier run of real processes: two delegates and two followers."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import Event, Node, eventually, hashes_by_round, journalled_commits, rounds, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "exchange.topology=two_tier",
    "exchange.group_size=3",
    "limits.max_peers=2",
    "inner.num_steps=20",
    "data.validation_batches=1",
    "model.dim=32",
    "model.num_layers=1",
    "model.hidden_dim=64",
    "model.sequence_length=32",
    "timing.heartbeat_interval_s=0.2",
    "timing.heartbeat_timeout_s=2",
    "timing.progress_timeout_s=2",
    "timing.ready_grace_s=3",
)


def counted(events: list[Event]) -> list[Event]:
    return [event for event in rounds(events) if event["counted"]]


def counted_rounds(node: Node) -> set[int]:
    return {event["round"] for event in counted(node.events)}


def has_delegate(group: Event) -> Event | None:
    return group if group["role"] == "follower" else None


def tokens_by_round(nodes: list[Node]) -> dict[int, int]:
    """What the nodes themselves say that they have given to each round; more than counted, if they have trained on."""
    tokens: dict[int, int] = {}
    for event in (event for node in nodes for event in counted(node.events)):
        tokens[event["round"]] = tokens.get(event["round"], 0) + event["tokens"]
    return tokens


def test_followers_count_through_their_delegates_and_everybody_has_the_same_state(tmp_path: Path) -> None:
    with swarm(tmp_path, 4, num_rounds=0, num_founders=2, settings=SETTINGS) as nodes:
        delegates, followers = nodes[:2], nodes[2:]
        for node in nodes:
            node.start()
        for node in followers:
            node.wait_for("three rounds that count", lambda events: len(counted(events)) >= 3, 30)
        last = max(event["round"] for event in rounds(delegates[0].events))
        for node in nodes:
            node.wait_for_round(last, 30)
        group = eventually("a group", lambda: has_delegate(followers[0].ask("status")["group"]), 10)
        commits = {commit.record.plan.round: commit for commit in journalled_commits(delegates[0])}
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"
    assert {node.peer_id for node in delegates} == set(commits[last].record.plan.roster)
    assert group["delegate"] in {node.peer_id for node in delegates}
    stated = {number: sum(m.tokens for m in commit.record.plan.members) for number, commit in commits.items()}
    own = tokens_by_round(nodes)
    complete = [number for number in own if sum(number in counted_rounds(node) for node in nodes) == len(nodes)]
    assert len([number for number in complete if own[number] == stated.get(number)]) >= 2
    assert all(own[number] >= stated[number] for number in own if 1 < number <= last)
