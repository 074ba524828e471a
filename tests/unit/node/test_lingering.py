"""Whom a finished node waits for."""

from __future__ import annotations

import pytest

from atoll.node.ending import others_are_done
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Heartbeat
from atoll.protocol.peers import PeerInfo

PEER = Identity.from_seed(b"l" * 32).peer_id
NOW_S = 1000.0


def is_done(*, round_number: int, phase: str, silent_s: float | None) -> bool:
    """Whether a node at the run's last round, 5, may end although its only fellow member is like this."""
    heartbeat = Heartbeat.model_validate({"round": round_number, "state_hash": "0" * 64, "phase": phase})
    heard_s = None if silent_s is None else NOW_S - silent_s
    peers = {PEER: PeerInfo(PEER, 0.0, heartbeat, heard_s)}
    return others_are_done((PEER,), peers, last_round=5, patience_s=60.0, now_s=NOW_S)


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
