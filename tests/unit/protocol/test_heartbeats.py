"""What a node says of itself."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from atoll.protocol.heartbeats import NodeFacts, Progress, compose
from atoll.protocol.messages import Evaluated, Heartbeat
from atoll.protocol.round_machine import Phase

REPLICA = SimpleNamespace(head_round=3, state_hash="ab" * 32)


def composed(progress: Progress, phase: Phase = Phase.TRAINING) -> Heartbeat:
    return compose(NodeFacts(lease_samples=1, name="anna"), progress, REPLICA, phase, 0, 1e9)  # type: ignore[arg-type]


def test_an_evaluation_goes_with_its_round() -> None:
    heartbeat = composed(Progress(loss=2.5, evaluated_round=3, validation_loss=1.9))
    assert heartbeat.loss == 2.5
    assert heartbeat.evaluated == Evaluated(round=3, validation_loss=1.9)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e7, None])
def test_a_loss_that_cannot_be_said_is_left_out_and_the_heartbeat_goes_out(loss: float | None) -> None:
    heartbeat = composed(Progress(loss=loss, evaluated_round=3, validation_loss=loss))
    assert (heartbeat.round, heartbeat.loss, heartbeat.evaluated) == (3, None, None)


@pytest.mark.parametrize(
    ("phase", "said"),
    [(Phase.TRAINING, "training"), (Phase.READY, "ready"), (Phase.IN_DOUBT, "exchanging"), (Phase.DECIDED, "training")],
)
def test_while_the_node_trains_the_round_says_how_far_it_is(phase: Phase, said: str) -> None:
    assert composed(Progress(phase="training"), phase).phase == said
    assert composed(Progress(phase="leaving"), phase).phase == "leaving"
