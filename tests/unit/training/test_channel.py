from __future__ import annotations

import asyncio
import socket

import pytest

from atoll.training.channel import (
    ChannelClosed,
    ChannelError,
    DaemonChannel,
    TrainerChannel,
    decode_event,
    decode_report,
    encode,
)
from atoll.training.data import Lease
from atoll.training.reducer import (
    Aborted,
    Committed,
    Evaluate,
    Evaluation,
    Failed,
    Hello,
    Progress,
    Ready,
    Save,
    Saved,
    Start,
    Stop,
    Warned,
    Withheld,
)

EVENTS = [
    Start(round=1, generation=2, lease=Lease(0, 800), previous_counted=False),
    Committed(round=1, counted=True, generation=3, lease=Lease(800, 800)),
    Aborted(reason="no quorum", generation=4),
    Evaluate(),
    Save(),
    Stop(save=False),
]
REPORTS = [
    Hello(pid=1, device="cpu", num_parameters=10, resumed_round=None),
    Progress(
        round=1, step=2, num_steps=4, num_tokens=64, loss=5.5, gradient_norm=float("inf"), lr=0.1, tokens_per_s=1e3
    ),
    Ready(round=1, generation=2, num_tokens=64, num_steps=4, loss=2.5),
    Evaluation(round=0, validation_loss=5.5, bits_per_byte=8.0, num_tokens=512),
    Withheld(round=1, reason="value 3 is nan"),
    Saved(round=1, num_bytes=100),
    Warned(text="disk full"),
    Failed(reason="no data"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_events_survive_the_channel(event):
    assert decode_event(encode(event)) == event


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.kind)
def test_reports_survive_the_channel(report):
    assert decode_report(encode(report)) == report


@pytest.mark.parametrize("line", [b"", b"{}", b'{"kind":"ready"}', b'{"kind":"save","x":1}', b"\xff\xfe"])
def test_a_line_that_is_no_message_is_refused(line):
    with pytest.raises(ChannelError):
        decode_event(line)
    with pytest.raises(ChannelError):
        decode_report(line)


@pytest.fixture
async def ends():
    ours, theirs = socket.socketpair()
    daemon = await DaemonChannel.open(ours)
    yield daemon, TrainerChannel(theirs), theirs
    daemon.close()
    theirs.close()


async def test_both_ends_understand_each_other_and_polling_does_not_wait(ends):
    daemon, trainer, _ = ends
    assert trainer.poll() is None
    for event in EVENTS:
        await daemon.send(event)
    assert [trainer.wait() for _ in EVENTS[1:]] == EVENTS[:-1]
    assert trainer.poll() == EVENTS[-1]
    for report in REPORTS:
        trainer.send(report)
    assert [await daemon.receive() for _ in REPORTS] == REPORTS


async def test_a_trainer_that_dies_within_a_line_said_nothing(ends):
    daemon, _, socket_ = ends
    socket_.sendall(encode(REPORTS[2])[:-20])
    socket_.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ChannelClosed, match="the trainer is gone"):
        await daemon.receive()


async def test_the_trainer_notices_that_its_daemon_is_gone(ends):
    daemon, trainer, _ = ends
    await daemon.send(Save())
    daemon.close()
    assert trainer.wait() == Save()
    with pytest.raises(ChannelClosed, match="the daemon is gone"):
        await asyncio.to_thread(trainer.wait)
