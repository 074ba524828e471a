"""`kill -9` at every stage of a round: the others commit, and the killed node comes back and counts.

One swarm lives through all of it: its fourth node is killed at one named journal point after another (that the point
was reached is proven by the kill itself) and started again each time with its folder as the crash left it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .lab import Event, Node, hashes_by_round, rounds, swarm

pytestmark = pytest.mark.e2e

SETTINGS = (
    "inner.num_steps=4",
    "data.validation_batches=1",
    "timing.heartbeat_interval_s=0.5",
    "timing.heartbeat_timeout_s=3.0",
    "timing.progress_timeout_s=3.0",
    "timing.ready_grace_s=10.0",
    "timing.attempt_timeout_s=10.0",
)
DEADLINE_S = 40
"""attempt_timeout_s, one repair, and the margin of a loaded machine that starts processes meanwhile."""

KILL_POINTS = {
    "during its inner steps": "round.training:+8",
    "while sending": "exchange.sending:+8",
    "while it reduces a span that it owns": "exchange.reducing:+8",
    "as leader, after its plan": "round.plan_sent:+2",
    "as leader, after its proposal": "round.proposed:+2",
    "after its vote": "round.voted:+8",
    "after the commit, before applying it": "round.committed:+8",
    "while saving the new state": "checkpoint.saving:+8",
}


def test_the_others_go_on_without_a_killed_node_and_it_comes_back(tmp_path: Path) -> None:
    with swarm(tmp_path, 4, num_rounds=0, settings=SETTINGS) as nodes:
        victim, survivors = nodes[3], nodes[:3]
        for node in survivors:
            node.start()
        for when, point in KILL_POINTS.items():
            come_back_and_die(victim, survivors, point)
            lose_no_round(survivors, when)
        come_back(victim, survivors)
        assert_one_history(nodes)


def head(nodes: list[Node]) -> int:
    return max((event["round"] for node in nodes for event in rounds(node.events)), default=0)


def come_back_and_die(victim: Node, survivors: list[Node], point: str) -> None:
    before = head(survivors)
    first_event = len(victim.events)
    victim.start(kill_at=point)
    assert victim.wait_for_exit(90) == -9, f"{point} was not reached\n{victim.log_tail()}"
    assert counted_after(victim.events[first_event:], before), f"it never counted before {point}"
    assert_counts_soon(victim, survivors, first_event, before)


def come_back(victim: Node, survivors: list[Node]) -> None:
    before, first_event = head(survivors), len(victim.events)
    victim.start()
    victim.wait_for("a counted round", lambda events: counted_after(events[first_event:], before), DEADLINE_S)
    assert_counts_soon(victim, survivors, first_event, before)


def counted_after(events: list[Event], round_number: int) -> list[Event]:
    return [event for event in rounds(events) if event["counted"] and event["round"] > round_number]


def assert_counts_soon(victim: Node, survivors: list[Node], first_event: int, before: int) -> None:
    """Within two rounds of the moment at which it trains on the swarm's state again."""
    events = victim.events[first_event:]
    began_s = next(event["at_s"] for event in events if event.get("state") in ("training", "exchanging"))
    level = max([e["round"] for node in survivors for e in rounds(node.events) if e["at_s"] <= began_s], default=0)
    assert counted_after(events, before)[0]["round"] <= level + 2


def lose_no_round(survivors: list[Node], when: str) -> None:
    """Everybody else commits the round that was going on, and the next one, within the deadline."""
    last, killed_s = head(survivors), time.monotonic()
    for node in survivors:
        done = node.wait_for(
            f"two more rounds after a kill {when}",
            lambda events: [event for event in rounds(events) if event["round"] >= last + 2],
            DEADLINE_S,
        )[0]
        took_s = done["at_s"] - killed_s
        print(f"{node.name}: two rounds within {took_s:.1f} s of a kill {when}")
        assert took_s <= DEADLINE_S, f"{node.name} took {took_s:.0f} s after a kill {when}"


def assert_one_history(nodes: list[Node]) -> None:
    """Equal state hashes, and every round of every node in order without a gap."""
    for number, hashes in hashes_by_round(nodes).items():
        assert len(hashes) == 1, f"round {number}: {hashes}"
    for node in nodes[:3]:
        numbers = [event["round"] for event in rounds(node.events)]
        assert numbers == list(range(1, len(numbers) + 1))
