"""A gossip run of real processes: pairs swap, one node is killed, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import rounds, swarm

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


def test_of_four_nodes_one_is_killed_and_the_others_swap_on(tmp_path: Path) -> None:
    with swarm(tmp_path, 4, num_rounds=400, settings=SETTINGS) as nodes:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_for_round(2, 30)
        *founders, victim = nodes
        victim.kill()
        reached = max(event["round"] for node in founders for event in rounds(node.events))
        for node in founders:
            node.wait_for_round(reached + 4, 30)
        status = founders[0].ask("status")
        after = [event for node in founders for event in rounds(node.events) if event["round"] > reached + 1]
        losses = [event["loss"] for event in rounds(founders[0].events)]
    swaps = [event for event in after if event["partner"] is not None]
    assert {event["partner"] for event in swaps} <= {node.peer_id for node in founders}
    assert len(swaps) >= 2
    assert max(event["spread"] for event in swaps) < 0.5
    assert losses[-1] < losses[0] - 0.3
    assert status["agreement"]["is_exempt"] is True
    last = {rounds(node.events)[-1]["state_hash"] for node in founders}
    assert len(last) == len(founders)  # nobody claims otherwise
