"""A swarm meets the troubles of ordinary machines, one after another, and loses nothing by them.

Nearly all tests share it. Each begins when all of its nodes take part and leaves them training, so that it passes alone
and in any order.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from atoll.training.checkpoint import CheckpointStore

from .lab import Event, Node, eventually, hashes_by_round, journalled_commits, rounds, run_atoll, swarm

pytestmark = pytest.mark.e2e

HEARTBEAT_TIMEOUT_S = 3.0
SETTINGS = (
    "inner.num_steps=4",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    f"timing.heartbeat_timeout_s={HEARTBEAT_TIMEOUT_S}",
    "timing.progress_timeout_s=5.0",
    "timing.ready_grace_s=20.0",
    "timing.attempt_timeout_s=30.0",
)
NAN_ROUND = 3
DEADLINE_S = 90


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Three nodes, started; the second one's disk holds a single checkpoint."""
    with swarm(tmp_path_factory.mktemp("troubles"), 3, num_rounds=0, settings=SETTINGS) as nodes:
        full = nodes[1].folder / "state"
        full.mkdir()
        is_mounted = (
            can_mount()
            and not subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(full)], capture_output=True
            ).returncode
        )
        try:
            start(nodes)
            yield nodes
        finally:
            for node in nodes:
                if node.process is not None:
                    node.stop()
            if is_mounted:
                subprocess.run(["umount", str(full)], check=True)


def start(nodes: list[Node], **variables_of_the_last: str) -> None:
    first, *others, last = nodes
    first.start()
    first.wait_for("its network", is_past_its_start, 60)  # the others' seed: it tells them who they are
    for node in others:
        node.start()
    last.start(**variables_of_the_last)


def is_past_its_start(events: list[Event]) -> bool:
    return any(event["event"] == "state" and event["state"] != "starting" for event in events)


def head(nodes: list[Node]) -> int:
    return max((event["round"] for node in nodes for event in rounds(node.events)), default=0)


def counted_after(round_number: int) -> Callable[[list[Event]], Event | None]:
    return lambda events: next((e for e in rounds(events) if e["counted"] and e["round"] > round_number), None)


def all_count_again(nodes: list[Node], after_round: int | None = None) -> None:
    """Every node has a counted round after that one (default: the newest that any of them has now)."""
    after_round = head(nodes) if after_round is None else after_round
    for node in nodes:
        node.wait_for(f"a counted round after {after_round}", counted_after(after_round), DEADLINE_S)
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"


def num_said(node: Node, text: str) -> int:
    return (node.folder / "stderr.log").read_text().count(text)


def warnings(node: Node) -> list[str]:
    return [event["text"] for event in node.events if event["event"] == "warning"]


def test_a_nan_is_withheld_and_said_and_the_next_contribution_counts(tmp_path: Path) -> None:
    """A swarm of its own: nobody has met other troubles, and no round begins without the one that computes the NaN."""
    with swarm(tmp_path, 3, num_rounds=0, settings=(*SETTINGS, "membership.min_peers=3")) as nodes:
        start(nodes, ATOLL_NAN_AT=str(NAN_ROUND))
        victim, text = nodes[2], f"pseudo-gradient of round {NAN_ROUND}"
        victim.wait_for("the warning", lambda events: [e for e in events if e.get("text", "").startswith(text)], 90)
        alert = next(alert for alert in victim.ask("status")["alerts"] if alert["code"] == "withheld")
        assert "training goes on" in alert["text"]
        all_count_again(nodes, NAN_ROUND)
        for node in nodes[:2]:
            assert all(event["counted"] for event in rounds(node.events))
            assert node.ask("status")["alerts"] == [], node.name


def test_a_node_whose_contributions_are_never_finite_stops_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    """CHN-07."""
    with swarm(tmp_path, 3, num_rounds=0, settings=SETTINGS) as nodes:
        start(nodes, ATOLL_NAN_AT="-1")
        victim, others = nodes[2], nodes[:2]
        assert victim.wait_for_exit(DEADLINE_S) == 1
        assert "contribution failed 5 times: pseudo-gradient of round" in victim.log_tail()
        all_count_again(others)
        for node in others:
            assert all(event["counted"] for event in rounds(node.events))


def test_a_full_disk_keeps_the_old_checkpoint_and_is_said_once(nodes: list[Node]) -> None:
    victim = nodes[1]
    if not (victim.folder / "state").is_mount():
        pytest.skip("needs root, to mount a tiny disk")
    victim.wait_for("a save that fails", lambda _: warnings(victim), DEADLINE_S)
    all_count_again(nodes, head(nodes) + 2)  # and others that fail after it
    assert len(warnings(victim)) == 1, warnings(victim)
    assert "No space left" in warnings(victim)[0]
    assert "the previous one is kept" in warnings(victim)[0]
    assert victim.stop() == 0  # before its folder is looked at, or a save might be going on
    store = CheckpointStore(victim.folder / "state", "state")
    kept = store.load_latest()
    assert kept is not None
    assert kept.state["round"] < head(nodes)
    assert {path.suffix for path in store.folder.iterdir()} == {".json", ".safetensors"}
    # restarted, it goes on from the old one
    last = head(nodes)
    victim.start()
    all_count_again(nodes, last)
    assert any(f"resumed after round {kept.state['round']}" in line for line in victim.log_tail(200).splitlines())


def test_a_node_that_slept_says_so_catches_up_and_counts_again(nodes: list[Node]) -> None:
    sleeper, others = nodes[2], nodes[:2]
    all_count_again(nodes)  # it takes part: who sleeps before it has begun has nothing to catch up with
    assert sleeper.process is not None
    whole = [psutil.Process(sleeper.process.pid), *psutil.Process(sleeper.process.pid).children(recursive=True)]
    last, first_event, num_sleeps = head(nodes), len(sleeper.events), num_said(sleeper, "this machine slept for")
    for process in whole:
        process.suspend()
    slept_s = time.monotonic()
    for node in others:
        node.wait_for_round(last + 4, DEADLINE_S)
    eventually("it has slept long enough", lambda: time.monotonic() > slept_s + HEARTBEAT_TIMEOUT_S + 1, 10)
    for process in whole:
        process.resume()
    awake_at = head(others)
    all_count_again(nodes, awake_at)
    assert num_said(sleeper, "this machine slept for") == num_sleeps + 1
    numbers = [event["round"] for event in rounds(sleeper.events[first_event:])]
    # It may have skipped rounds by loading the swarm's state, but it never goes back or reports one twice.
    assert numbers == sorted(set(numbers))


def test_a_killed_node_delays_the_next_round_by_its_heartbeats_time_limit_and_soon_counts_again(
    nodes: list[Node],
) -> None:
    """CHN-06."""
    victim, others = nodes[2], nodes[:2]
    all_count_again(nodes)
    last = victim.wait_for_round(head(nodes) + 1, DEADLINE_S)["round"]
    victim.kill()
    killed_s = time.monotonic()
    for node in others:
        event = node.wait_for_round(last + 2, DEADLINE_S)
        assert event["at_s"] - killed_s < HEARTBEAT_TIMEOUT_S + 1 + SLACK_S
    peer_id, before = victim.peer_id, head(others)
    victim.start()
    all_count_again(nodes, before)
    number = victim.wait_for("a counted round", counted_after(before), DEADLINE_S)["round"]
    nodes[0].wait_for_round(number, DEADLINE_S)
    commits = {commit.record.plan.round: commit.record.plan for commit in journalled_commits(nodes[0])}
    assert peer_id in {member.peer for member in commits[number].members}


SLACK_S = 8.0
"""Two rounds of training and averaging on a loaded machine: far below ready_grace_s and attempt_timeout_s."""


def test_what_is_normal_reads_like_it(nodes: list[Node]) -> None:
    """IDN-02."""
    all_count_again(nodes)
    log = (nodes[2].folder / "stderr.log").read_text()
    line = next(line for line in log.splitlines() if "identity free, OK" in line)
    assert " INFO " in line
    assert "Traceback" not in log


def test_another_node_in_the_same_folder_is_refused_and_the_first_goes_on(nodes: list[Node]) -> None:
    node = nodes[0]
    refused = run_atoll("join", str(node.spec_path), "--folder", str(node.folder), "--yes", check=False)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert "another node runs in this folder" in refused.stderr
    all_count_again(nodes)


def test_a_node_of_another_run_is_told_so_within_seconds(nodes: list[Node], tmp_path: Path) -> None:
    """VER-04."""
    with swarm(tmp_path, 2, num_rounds=0, settings=(*SETTINGS, "data.seed=1")) as (_, stranger):
        stranger.start("--seed", nodes[0].address)
        started_s = stranger.wait_for("its start", lambda e: [x for x in e if x["event"] == "dashboard"], 60)[0]["at_s"]
        found = stranger.wait_for("reason", lambda e: [x for x in e if "wrong run" in str(x.get("sentence"))], 30)[0]
        assert found["at_s"] - started_s < 10 + SLACK_S
        assert "it serves another run" in stranger.log_tail(50)
    all_count_again(nodes)
