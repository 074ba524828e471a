"""Faults of real networks and clocks: nobody diverges, nobody is left behind, and every node says what is the matter.

One swarm of four, of which one may misbehave, so that three commit a round and two never do; a fifth node joins late.
Each test begins when all four take part and leaves them so: it passes alone and in any order. `test_crashes` and
`test_troubles` have the faults of processes: SIGKILL, SIGSTOP, full disks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from .faults_lab import WallClock, compile_clock, cut, deafened, slowed, why_no_faults
from .lab import Event, Node, eventually, hashes_by_round, journalled_commits, rounds, swarm

pytestmark = pytest.mark.e2e

HEARTBEAT_TIMEOUT_S, PROGRESS_TIMEOUT_S, ATTEMPT_TIMEOUT_S = 3.0, 3.0, 6.0
NUM_STEPS = 4
SETTINGS = (
    f"inner.num_steps={NUM_STEPS}",
    "data.validation_batches=1",
    "membership.fault_tolerance=1",
    "timing.heartbeat_interval_s=0.5",
    f"timing.heartbeat_timeout_s={HEARTBEAT_TIMEOUT_S}",
    f"timing.progress_timeout_s={PROGRESS_TIMEOUT_S}",
    "timing.ready_grace_s=5.0",
    f"timing.attempt_timeout_s={ATTEMPT_TIMEOUT_S}",
)
TOKENS_PER_STEP = 512
LEASE_TOKENS = 4 * NUM_STEPS * TOKENS_PER_STEP
"""The most that a contribution has without a carry, which is at most as much again."""
DEADLINE_S = 60
SLACK_S = 8.0
"""Two rounds of training and averaging on a loaded machine."""


class Swarm:
    """Four started nodes, of which the second says everything twice, a node that joins late, and everybody's clock."""

    def __init__(self, nodes: list[Node], clocks: list[WallClock]) -> None:
        self.members, self.joiner = nodes[:4], nodes[4]
        self._clocks = dict(zip((node.name for node in nodes), clocks, strict=True))

    @property
    def repeater(self) -> Node:
        return self.members[1]

    def clock_of(self, node: Node) -> WallClock:
        return self._clocks[node.name]

    def start(self, node: Node) -> None:
        patch = "say_everything_twice" if node is self.repeater else None
        node.start(patch=patch, **self.clock_of(node).variables)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    if missing := why_no_faults():
        pytest.skip(f"NOT TESTED, faults of networks and clocks: {missing}")
    folder = tmp_path_factory.mktemp("faults")
    library = compile_clock(folder)
    with swarm(folder, 5, num_founders=4, num_rounds=0, settings=SETTINGS, isolate=True) as nodes:
        running = Swarm(nodes, [WallClock(node.folder, library) for node in nodes])
        for node in running.members:
            running.start(node)
        yield running


@pytest.fixture
def nodes(running: Swarm) -> list[Node]:
    """The four members, all of them counting, and no stream between any two of them stalled by an earlier fault."""
    began_s = time.monotonic()
    for node in running.members:
        node.wait_for("three rounds at full speed", lambda events: is_at_full_speed(events, began_s), DEADLINE_S)
    return running.members


def is_at_full_speed(events: list[Event], since_s: float) -> bool:
    """Whether the last three rounds counted and took less than a stall does."""
    recent = [event for event in rounds(events) if event["at_s"] > since_s][-3:]
    return len(recent) == 3 and all(event["counted"] and event["seconds"] < PROGRESS_TIMEOUT_S for event in recent)


# --- what is true after every fault -----------------------------------------------------------------------------------


def head(nodes: Iterable[Node]) -> int:
    return max((event["round"] for node in nodes for event in rounds(node.events)), default=0)


def first_counted(node: Node, after_round: int) -> Event:
    def found(events: list[Event]) -> Event | None:
        return next((e for e in rounds(events) if e["counted"] and e["round"] > after_round), None)

    return node.wait_for(f"a counted round after {after_round}", found, DEADLINE_S)


def all_count_again(nodes: list[Node]) -> list[Event]:
    """Every node's first counted round after the newest of now. No two have another state, and none goes back."""
    began_s, last = time.monotonic(), head(nodes)
    counted = [first_counted(node, last) for node in nodes]
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"
    for node in nodes:
        numbers = [event["round"] for event in rounds(node.events)]
        assert numbers == sorted(set(numbers)), node.name
    print(f"all count again within {time.monotonic() - began_s:.1f} s")
    return counted


def go_on(nodes: list[Node], *, within_s: float, num_rounds: int = 2) -> None:
    """All of these commit the round that is going on, and the next one, within that time."""
    began_s, last = time.monotonic(), head(nodes)
    ended_s = [node.wait_for_round(last + num_rounds, DEADLINE_S)["at_s"] for node in nodes]
    print(f"{num_rounds} rounds within {max(ended_s) - began_s:.1f} s, limit {within_s:.0f} s")
    assert max(ended_s) - began_s < within_s


def says(node: Node, since: int, *reasons: str | None) -> Event:
    """The first state with one of these reasons among the events after so many."""

    def found(events: list[Event]) -> Event | None:
        return next((e for e in events[since:] if e["event"] == "state" and e["reason"] in reasons), None)

    return node.wait_for(f"reason {reasons}", found, DEADLINE_S)


def num_said(node: Node, text: str) -> int:
    return (node.folder / "stderr.log").read_text().count(text)


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_partition_stops_the_smaller_side_alone_which_says_so_until_they_meet_again(nodes: list[Node]) -> None:
    *others, lonely = nodes
    last, since = head(nodes), len(lonely.events)
    with cut([lonely], others):
        go_on(others, within_s=HEARTBEAT_TIMEOUT_S + PROGRESS_TIMEOUT_S + SLACK_S)
        assert "train alone" in says(lonely, since, "alone")["sentence"]
        go_on(others, within_s=SLACK_S)
        assert head([lonely]) <= last + 1  # one that was all but decided when the wire was cut
        since, before = len(lonely.events), head(others)
    all_count_again(nodes)
    says(lonely, since, None)  # there is nothing to explain any more
    assert first_counted(lonely, before)["tokens"] <= LEASE_TOKENS, "work that missed more than one commit counted"


def test_two_halves_commit_nothing_say_why_and_go_on_together_with_all_their_work(nodes: list[Node]) -> None:
    some, others = nodes[:2], nodes[2:]
    sinces = [len(node.events) for node in nodes]
    with cut(some, others):
        for node, since in zip(nodes, sinces, strict=True):
            assert says(node, since, "provisional")["sentence"].startswith("2 of 4 members are here, 3 commit a round")
        last, sinces = head(nodes), [node.points().count("round.aborted") for node in nodes]
        for node, since in zip(nodes, sinces, strict=True):
            eventually("an attempt is given up", lambda: node.points().count("round.aborted") > since, DEADLINE_S)  # noqa: B023
        assert head(nodes) == last
        assert nodes[0].ask("status")["status"]["reason"] == "provisional"
    go_on(nodes, within_s=ATTEMPT_TIMEOUT_S + HEARTBEAT_TIMEOUT_S + SLACK_S, num_rounds=1)
    tokens = [first_counted(node, last)["tokens"] for node in nodes]
    assert max(tokens) <= 2 * LEASE_TOKENS  # one may have missed the last commit before the cut
    assert sum(tokens) > len(nodes) * NUM_STEPS * TOKENS_PER_STEP, "provisional work was lost"
    all_count_again(nodes)
    assert all(node.ask("status")["status"]["reason"] not in ("provisional", "alone") for node in nodes)


def test_a_member_that_is_heard_but_hears_nobody_delays_the_others_by_an_attempt_at_most(nodes: list[Node]) -> None:
    *others, deaf = nodes
    with deafened(deaf, others):
        go_on(others, within_s=ATTEMPT_TIMEOUT_S + HEARTBEAT_TIMEOUT_S + SLACK_S, num_rounds=3)
    all_count_again(nodes)


def test_a_slow_link_leaves_nobody_behind(nodes: list[Node]) -> None:
    with slowed(nodes[3], kbit_per_s=2000):
        go_on(nodes, within_s=PROGRESS_TIMEOUT_S + SLACK_S, num_rounds=3)
    all_count_again(nodes)


def test_a_stream_that_ends_half_way_without_a_word_costs_the_others_one_limit(nodes: list[Node]) -> None:
    *others, lost = nodes
    with slowed(lost, kbit_per_s=1000):  # an exchange lasts for a second
        since = len(lost.points())
        eventually("it sends", lambda: "exchange.sending" in lost.points()[since:], DEADLINE_S)
        with cut([lost], others):
            go_on(others, within_s=HEARTBEAT_TIMEOUT_S + PROGRESS_TIMEOUT_S + SLACK_S)
    all_count_again(nodes)


def test_what_is_said_twice_counts_once(running: Swarm, nodes: list[Node]) -> None:
    before = head(nodes)
    go_on(nodes, within_s=SLACK_S)
    assert all(event["counted"] for event in rounds(running.repeater.events) if event["round"] > before)
    for node in nodes:
        assert (num_said(node, "is a replay") > 0) == (node is not running.repeater), node.name


# --- clocks -----------------------------------------------------------------------------------------------------------


def clock_warnings(node: Node) -> list[str]:
    texts = [str(event["text"]) for event in node.events if event["event"] == "warning"]
    return [text.removeprefix("This machine’s clock is ") for text in texts if "clock" in text]


def negative(value: Any, path: str = "") -> Iterator[str]:
    """Paths of negative numbers in what the API says."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from negative(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from negative(inner, f"{path}.{index}")
    elif isinstance(value, int | float) and value < 0:
        yield path


def test_clk_01_a_clock_that_jumps_is_said_once_with_its_offset_and_no_round_is_lost(
    running: Swarm, nodes: list[Node]
) -> None:
    *others, wrong = nodes
    num_before, before = len(clock_warnings(wrong)), head(nodes)
    try:
        for offset_s in (3600, -3600):
            running.clock_of(wrong).set(offset_s)
            number = len(clock_warnings(wrong))
            wrong.wait_for("the warning", lambda _: len(clock_warnings(wrong)) > number, DEADLINE_S)  # noqa: B023
            go_on(nodes, within_s=SLACK_S)
            status = wrong.ask("status")
            assert status["network"]["clock_offset_ms"] == pytest.approx(-1000 * offset_s, abs=2000)
            assert [alert["code"] for alert in status["alerts"]] == ["clock_skew"]
            assert {path for path in negative(status) if not path.endswith("clock_offset_ms")} == set()
    finally:
        running.clock_of(wrong).set(0)
    eventually("the alert goes", lambda: not wrong.ask("status")["alerts"], 20)
    said = clock_warnings(wrong)[num_before:]
    assert [text.partition(" the other")[0] for text in said] == ["1 h 00 min ahead of", "1 h 00 min behind"]
    assert all(event["counted"] for event in rounds(wrong.events) if event["round"] > before)
    assert not any(clock_warnings(node) for node in others), "one wrong clock is not everybody's"
    all_count_again(nodes)


def test_clk_01_a_clock_that_is_too_far_off_to_take_part_is_said_and_it_takes_part_when_it_is_set(
    running: Swarm, nodes: list[Node]
) -> None:
    *others, wrong = nodes
    num_before = len(clock_warnings(wrong))
    running.clock_of(wrong).set(-10 * 365 * 86400)
    try:
        wrong.wait_for("the warning", lambda _: len(clock_warnings(wrong)) > num_before, DEADLINE_S)
        go_on(others, within_s=HEARTBEAT_TIMEOUT_S + PROGRESS_TIMEOUT_S + SLACK_S)
    finally:
        running.clock_of(wrong).set(0)
    all_count_again(nodes)
    assert "87600 h 00 min behind" in clock_warnings(wrong)[-1]


# --- churn ------------------------------------------------------------------------------------------------------------


def test_a_joiner_with_a_wrong_clock_counts_while_members_are_killed_and_come_back(
    running: Swarm, nodes: list[Node]
) -> None:
    """The run has a quorum throughout: one of four is missing at a time."""
    joiner, before = running.joiner, head(nodes)
    running.clock_of(joiner).set(-40)
    running.start(joiner)
    for victim in nodes[2:]:
        others = [node for node in nodes if node is not victim]
        victim.kill()
        go_on(others, within_s=HEARTBEAT_TIMEOUT_S + PROGRESS_TIMEOUT_S + SLACK_S)
        last = head(nodes)
        running.start(victim)
        first_counted(victim, last)
    counted = first_counted(joiner, before)
    all_count_again([*nodes, joiner])
    assert clock_warnings(joiner)[0].startswith("40 s behind")
    admitted = next(plan for plan in plans(nodes[0]) if joiner.peer_id in plan.next_roster)
    print(f"the joiner is admitted by round {admitted.round} and counts in round {counted['round']}")
    assert joiner.stop() == 0
    eventually("the joiner is left out", lambda: joiner.peer_id not in plans(nodes[0])[-1].next_roster, DEADLINE_S)
    all_count_again(nodes)


def plans(node: Node) -> list[Any]:
    return [commit.record.plan for commit in journalled_commits(node)]
