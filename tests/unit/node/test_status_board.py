"""The board publishes a snapshot, then changes that any reader can resume from, and nothing that is not JSON."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from atoll.node.reasons import Reason, State
from atoll.node.snapshot import Alert, NodeInfo, PeerInfo, TrainingInfo
from atoll.node.status import NUM_LOSS_POINTS, RING_LENGTH, StatusBoard


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> StatusBoard:
    return StatusBoard(clock=clock)


def strict(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def test_a_new_reader_gets_everything(board: StatusBoard) -> None:
    board.update(node=NodeInfo(name="petrel"))
    board.add_loss("local", 0.5, 2.0)
    board.log("hello")
    update = board.since(None)
    assert update is not None
    assert update.kind == "snapshot"
    assert update.data["node"]["name"] == "petrel"
    assert [point["value"] for point in update.data["loss"]] == [2.0]
    assert [line["text"] for line in update.data["log"]] == ["hello"]


def test_a_reader_resumes_with_what_changed_since_and_later_values_win(board: StatusBoard) -> None:
    known = board.last_id
    board.patch("training", step=1)
    board.patch("training", step=2)
    board.log("one")
    update = board.since(known)
    assert update is not None
    assert update.kind == "change"
    assert update.data["training"]["step"] == 2
    assert set(update.data) == {"training", "log"}
    assert board.since(update.id) is None


def test_a_reader_that_is_too_slow_gets_a_new_snapshot_instead_of_a_queue(board: StatusBoard) -> None:
    known = board.last_id
    for step in range(RING_LENGTH + 1):
        board.patch("training", step=step + 1)
    update = board.since(known)
    assert update is not None
    assert update.kind == "snapshot"


def test_an_id_from_before_a_restart_or_from_the_future_means_a_snapshot(board: StatusBoard, clock: Clock) -> None:
    old = board.last_id
    clock.now += 5
    restarted = StatusBoard(clock=clock)
    assert restarted.last_id > old
    for stranger in (old, restarted.last_id + 1):
        update = restarted.since(stranger)
        assert update is not None
        assert update.kind == "snapshot"


def test_what_does_not_change_is_not_published(board: StatusBoard) -> None:
    board.update(training=TrainingInfo(step=3))
    known = board.last_id
    board.update(training=TrainingInfo(step=3))
    assert board.last_id == known


def test_nan_and_infinity_become_null_in_strictly_valid_json(board: StatusBoard) -> None:
    board.update(training=TrainingInfo(loss=math.nan, gradient_norm=math.inf))
    board.add_loss("local", 1.0, math.nan)
    board.add_loss("local", 2.0, -math.inf)
    data = board.snapshot_update().data
    strict(data)
    assert data["training"]["loss"] is None
    assert data["training"]["gradient_norm"] is None
    assert [point["value"] for point in data["loss"]] == [None, None]


def test_the_sentence_counts_down_by_itself(board: StatusBoard, clock: Clock) -> None:
    board.set_state(State.EXCHANGING, ends_at_unix_s=clock.now + 32, round=412, num_others=6)
    assert board.snapshot().status.sentence.endswith("new weights in about 32 s.")
    clock.now += 20
    assert board.snapshot().status.sentence.endswith("new weights in about 12 s.")
    clock.now += 20
    assert board.snapshot().status.sentence.endswith("new weights any moment.")


def test_a_state_keeps_its_beginning_while_only_its_values_change(board: StatusBoard, clock: Clock) -> None:
    board.set_state(State.SYNCING, Reason.DOWNLOADING_STATE, num_donors=4, percent=10)
    began = board.snapshot().status.since
    clock.now += 3
    board.set_state(State.SYNCING, Reason.DOWNLOADING_STATE, num_donors=4, percent=20)
    assert board.snapshot().status.since == began
    assert "20 % done" in board.snapshot().status.sentence
    board.set_state(State.TRAINING, round=2, device="the CPU")
    assert board.snapshot().status.since != began


def test_a_repeated_log_line_is_counted_not_repeated(board: StatusBoard) -> None:
    for _ in range(1000):
        board.log("peer …9fKq2 does not answer", "warning")
    (line,) = board.log_lines()
    assert line.num_repeats == 1000


def test_an_alert_is_replaced_by_its_code_and_goes_when_cleared(board: StatusBoard, clock: Clock) -> None:
    for text in ("first", "second"):
        board.alert(Alert(code="disk", text=text, at=clock.now))  # pyright: ignore[reportArgumentType]
    assert [alert.text for alert in board.snapshot().alerts] == ["second"]
    board.clear_alert("disk")
    assert board.snapshot().alerts == ()


def test_names_of_strangers_lose_control_characters_and_are_bounded() -> None:
    name = "\u202eevil\x00<script>" + "x" * 10_000
    peer = PeerInfo(peer_id="p", name=name)
    assert peer.name.startswith("evil<script>")
    assert len(peer.name) == 64


def test_a_misspelt_field_is_a_bug_that_is_told(board: StatusBoard) -> None:
    with pytest.raises(TypeError, match="traning"):
        board.update(traning=TrainingInfo())


def test_a_long_curve_keeps_its_beginning_its_end_and_what_was_not_finite(board: StatusBoard) -> None:
    board.add_loss("validation", 0, 6.0)
    for step in range(3 * NUM_LOSS_POINTS):
        board.add_loss("local", step, math.nan if step == 7 else 1.0)
    curve = [point for point in board.loss() if point.kind == "local"]
    assert len(curve) <= NUM_LOSS_POINTS
    assert (curve[0].round, curve[-1].round) == (0, 3 * NUM_LOSS_POINTS - 1)
    assert any(point.round == 7 for point in curve)
    assert any(point.kind == "validation" for point in board.loss())


def test_the_curve_of_an_earlier_start_comes_first_and_reaches_every_reader(board: StatusBoard) -> None:
    known = board.last_id
    new = board.add_loss("validation", 2, 2.0)
    old = new.model_copy(update={"round": 1.0})
    board.restore_loss([old])
    assert board.loss() == (old, new)
    update = board.since(known)
    assert update is not None
    assert update.kind == "snapshot"


async def test_a_subscriber_sleeps_until_something_changes_or_the_board_closes(board: StatusBoard) -> None:
    with board.subscribe() as subscription:
        assert not await subscription.changed(0.0)
        waiting = asyncio.create_task(subscription.changed(10))
        await asyncio.sleep(0)
        board.log("now")
        assert await waiting
        board.close()
        assert await subscription.changed(10)
        assert board.is_closed
