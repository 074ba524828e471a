"""A gossip run of real processes: pairs swap, one is killed, the others go on, and a joiner begins in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import Node, rounds, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "exchange.topology=gossip",
    "inner.num_steps=10",
    "data.validation_batches=1",
    "model.dim=32",
    "model.num_layers=1",
    "model.hidden_dim=64",
    "model.sequence_length=32",
    "timing.heartbeat_interval_s=0.2",
    "timing.heartbeat_timeout_s=2",
    "timing.ready_grace_s=3",
)


def validation_losses(nodes: list[Node]) -> list[float]:
    return [e["validation_loss"] for node in nodes for e in node.events if e["event"] == "evaluation"]


def test_of_four_nodes_one_is_killed_the_others_swap_on_and_a_joiner_begins_in_the_middle(tmp_path: Path) -> None:
    with swarm(tmp_path, 5, num_rounds=400, num_founders=4, settings=SETTINGS) as nodes:
        *founders, late = nodes
        for node in founders:
            node.start()
        for node in founders:
            node.wait_for_round(3, 30)
        founders.pop().kill()
        reached = max(event["round"] for event in rounds(founders[0].events))
        late.start()
        for node in founders:
            node.wait_for_round(reached + 6, 30)
        first = late.wait_for_round(1, 30)
        status = founders[0].ask("status")
        swaps = [event for node in founders for event in rounds(node.events) if event["partner"] is not None]
        losses = [event["loss"] for event in rounds(founders[0].events)]
    assert first["round"] > 3  # and not round 1: it has begun with the others' weights
    assert len(swaps) > 6
    assert max(event["spread"] for event in swaps) < 0.5
    assert losses[-1] < losses[0] - 0.3
    assert status["agreement"]["is_exempt"] is True
    assert status["agreement"]["spread"] is not None
    hashes = {event["state_hash"] for node in founders for event in rounds(node.events) if event["round"] == reached}
    assert len(hashes) > 1  # nobody claims otherwise
