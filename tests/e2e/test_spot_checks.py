"""Real nodes that recompute each other's inner steps, each in a process of its own beside its trainer."""

from __future__ import annotations

import os

import pytest

from .lab import eventually, hashes_by_round, swarm

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("ATOLL_SPOT_CHECKS" not in os.environ, reason="takes a minute: set ATOLL_SPOT_CHECKS=1"),
]

SETTINGS = (
    "inner.num_steps=20",
    "data.validation_batches=1",
    "trust.spot_checks=1.0",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=6.0",
    "timing.progress_timeout_s=6.0",
    "timing.ready_grace_s=10.0",
    "timing.attempt_timeout_s=20.0",
)


def test_nodes_check_each_other_and_nobody_is_suspected(tmp_path):
    with swarm(tmp_path, 3, num_rounds=0, settings=SETTINGS) as nodes:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_for_round(1, 60)
            eventually("a check that passes", lambda node=node: node.points().count("spot.passed") >= 2, 90)
        for node in nodes:
            assert not {"spot.suspected", "spot.hidden", "spot.failed", "peer.rejected"} & set(node.points())
        assert all(len(hashes) == 1 for hashes in hashes_by_round(nodes).values())
    for node in nodes:
        left = [path for path in (node.folder / "rounds" / "spot-checks").iterdir() if path.suffix == ".part"]
        assert left == []
