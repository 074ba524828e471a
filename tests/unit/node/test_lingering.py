"""Whom a finished node waits for."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from atoll.node.node import Node
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Heartbeat
from atoll.protocol.peers import PeerInfo

PEER = Identity.from_seed(b"l" * 32).peer_id


def is_done(*, round_number: int, phase: str, silent_s: float | None) -> bool:
    """Whether a node at the run's last round, 5, may end although its only fellow member is like this."""
    heartbeat = Heartbeat.model_validate({"round": round_number, "state_hash": "0" * 64, "phase": phase})
    heard_s = None if silent_s is None else time.monotonic() - silent_s
    driver = SimpleNamespace(roster=(PEER,), peers={PEER: PeerInfo(PEER, 0.0, heartbeat, heard_s)})
    timing = SimpleNamespace(heartbeat_timeout_s=3.0, drop_after_s=60.0)
    node = SimpleNamespace(_rules=SimpleNamespace(timing=timing), head_round=5)
    return Node._others_are_done(node, driver)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("round_number", "phase", "silent_s", "expected"),
    [
        (5, "training", 0.1, True),
        (4, "training", 0.1, False),
        (4, "exchanging", 10.0, False),  # stalled: longer than the heartbeat's limit, not lost yet
        (4, "training", 100.0, True),
        (4, "leaving", 0.1, True),
        (4, "training", None, True),
    ],
)
def test_members_that_may_still_come_for_the_last_round_are_waited_for(round_number, phase, silent_s, expected):
    assert is_done(round_number=round_number, phase=phase, silent_s=silent_s) is expected
