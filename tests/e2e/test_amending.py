"""An operator changes a running run with ``atoll run amend``: real nodes, real training, equal states throughout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.node.chain import Chain
from atoll.protocol.messages import Commit

from .lab import Event, Node, rounds, run_atoll, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "inner.num_steps=10",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=4.0",
    "timing.progress_timeout_s=4.0",
)


def amend(node: Node, *words: str) -> Event:
    operator = node.folder.parent / "operator"
    folder = ("--folder", str(operator), "--node", str(node.folder), "--json")
    return json.loads(run_atoll("run", "amend", words[0], str(node.spec_path), *words[1:], *folder).stdout)


def test_pause_rollback_learning_rate_finish_and_resume_reach_every_node(tmp_path: Path) -> None:
    with swarm(tmp_path, 3, num_founders=3, num_rounds=0, settings=SETTINGS) as nodes:
        operator = nodes[0]
        for node in nodes:
            node.start()
        operator.wait_for_round(2, 90)

        # Rounds take a third of a second here, and a node looks for what was submitted once a second.
        from_round = max(event["round"] for event in rounds(operator.events)) + 8
        paused_round = amend(operator, "pause", "--from-round", str(from_round))["from_round"]
        for node in nodes:
            node.wait_for("the pause", paused, 60)
        assert {max(event["round"] for event in rounds(node.events)) for node in nodes} == {paused_round - 1}
        fork_round = paused_round - 2
        amend(operator, "rollback", "--to-round", str(fork_round))
        changed = amend(operator, "learning-rate", "--outer", "0.2", "--from-round", str(paused_round + 1))
        last = amend(operator, "finish", "--from-round", str(paused_round + 3))["from_round"]
        amend(operator, "resume")
        for node in nodes:
            node.wait_for_round(last, 120)
            assert went_back(node.events, fork_round + 1)
            assert node.wait_for_exit(60) == 0

        commits = {node.name: final_chain(node) for node in nodes}
        plans = [commit.record.plan for commit in commits[operator.name]]
        assert [plan.lineage for plan in plans] == [0] * fork_round + [1] * (last - fork_round)
        assert len({plans[number - 1].rules for number in (1, changed["from_round"], last)}) == 3
        assert len({json.dumps([c.record.content_id() for c in chain]) for chain in commits.values()}) == 1
        assert len({rounds(node.events)[-1]["state_hash"] for node in nodes}) == 1


def paused(events: list[Event]) -> bool:
    return any(event.get("reason") == "run_paused" for event in events)


def went_back(events: list[Event], number: int) -> bool:
    """Whether a round was applied a second time."""
    return [event["round"] for event in rounds(events)].count(number) > 1


def final_chain(node: Node) -> list[Commit]:
    """The node's chain as it is on disk in the end."""
    chain = Chain(node.folder / "chain.jsonl")
    return chain.read(1, len(chain))
