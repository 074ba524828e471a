"""The trainer against a daemon in miniature: in this process where it can be, as a real process where it must."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from atoll.kernels.chunk_grid import ChunkGrid, mean_of
from atoll.kernels.codec import codec
from atoll.training import trainer as module
from atoll.training.alone import train_alone
from atoll.training.channel import ChannelClosed, DaemonChannel, TrainerChannel
from atoll.training.config import TrainerSpec
from atoll.training.data import DataError, Lease
from atoll.training.flat import initial_state
from atoll.training.outer import apply_mean
from atoll.training.reducer import (
    Aborted,
    Committed,
    Evaluate,
    Evaluation,
    Hello,
    Progress,
    Ready,
    Saved,
    Start,
    Stop,
    Withheld,
)
from atoll.training.shared_buffers import NotSealed, SharedBuffers

CHUNK = 512


class MiniDaemon:
    """Anchor, momentum, shared buffers and the control channel of a node that is a swarm of its own."""

    def __init__(self, config):
        self.config = config
        anchor = initial_state(config.model)
        self.grid = ChunkGrid(len(anchor), CHUNK, codec("int8"))
        self.buffers = SharedBuffers.create(len(anchor), self.grid.num_chunks, self.grid.total_encoded)
        self.buffers.open_anchor()[:] = anchor
        self.buffers.seal_anchor(0)
        self.momentum = np.zeros_like(anchor)
        self.channel: DaemonChannel

    def lease(self, round_):
        return Lease((round_ - 1) * self.config.inner.lease_samples, self.config.inner.lease_samples)

    async def until(self, kind):
        while not isinstance(report := await self.channel.receive(), kind):
            pass
        return report

    async def start(self, round_=1, generation=1):
        await self.channel.send(Start(round=round_, generation=generation, lease=self.lease(round_)))

    async def commit(self, ready):
        mean = np.empty(self.grid.total_encoded, np.uint8)
        contribution = self.buffers.contribution(ready.round, ready.generation)
        mean_of([contribution], [ready.num_tokens], self.grid, mean)
        apply_mean(self.buffers.open_anchor(), self.momentum, mean, self.grid, self.config.outer.at(ready.round))
        self.buffers.seal_anchor(ready.round)
        following = Committed(
            round=ready.round, counted=True, generation=ready.generation + 1, lease=self.lease(ready.round + 1)
        )
        await self.channel.send(following)


@pytest.fixture
def spec(config):
    return TrainerSpec(training=config, chunk_elements=CHUNK, codec="int8", device="cpu")


@asynccontextmanager
async def trainer_thread(daemon, spec, folder):
    ours, theirs = socket.socketpair()
    daemon.channel = await DaemonChannel.open(ours)
    work = asyncio.to_thread(module.run_trainer, TrainerChannel(theirs), daemon.buffers, spec, folder)
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        daemon.channel.close()
        with suppress(ChannelClosed):
            await task
        theirs.close()


async def test_rounds_through_the_channel_are_those_of_a_lone_run_bit_for_bit(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    async with trainer_thread(daemon, spec, tmp_path) as task:
        hello = await daemon.until(Hello)
        assert (hello.num_parameters, hello.resumed_round) == (daemon.grid.num_elements, None)
        await daemon.start()
        for _ in range(3):
            await daemon.commit(await daemon.until(Ready))
        await daemon.channel.send(Stop())
        assert (await daemon.until(Saved)).round == 4
        await task
    alone = train_alone(config, None, 3, chunk_elements=CHUNK)
    assert daemon.buffers.anchor(3).tobytes() == alone.anchor.tobytes()


async def test_a_second_trainer_resumes_where_the_first_one_stopped(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    async with trainer_thread(daemon, spec, tmp_path) as task:
        await daemon.start()
        await daemon.commit(await daemon.until(Ready))
        await daemon.until(Progress)
        await daemon.channel.send(Stop())
        await task
    async with trainer_thread(daemon, spec, tmp_path):
        assert (await daemon.until(Hello)).resumed_round == 2
        await daemon.start(round_=2, generation=7)
        ready = await daemon.until(Ready)
        assert ready.generation == 7
        await daemon.commit(ready)
    assert daemon.buffers.anchor(2).tobytes() == train_alone(config, None, 2, chunk_elements=CHUNK).anchor.tobytes()


async def test_evaluations_are_answered_during_an_exchange(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    async with trainer_thread(daemon, spec, tmp_path):
        await daemon.start()
        await daemon.until(Ready)
        await daemon.channel.send(Evaluate())
        evaluation = await daemon.until(Evaluation)
        assert (evaluation.round, evaluation.num_tokens) == (0, 32 * 16)


async def test_after_an_abort_the_next_contribution_has_the_new_generation(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    async with trainer_thread(daemon, spec, tmp_path):
        await daemon.start()
        await daemon.until(Ready)
        await daemon.channel.send(Aborted(reason="no quorum", generation=2))
        ready = await daemon.until(Ready)
        assert (ready.generation, ready.num_steps) == (2, 8)
        daemon.buffers.contribution(1, 2)
        with pytest.raises(NotSealed):
            daemon.buffers.contribution(1, 1)


async def test_a_nan_is_withheld_and_the_buffer_stays_open_until_a_finite_one_follows(config, spec, tmp_path):
    """QNT-09"""
    daemon = MiniDaemon(config)
    async with trainer_thread(daemon, spec.model_copy(update={"nan_round": 1}), tmp_path):
        await daemon.start()
        assert "nan" in (await daemon.until(Withheld)).reason.lower()
        ready = await daemon.until(Ready)
        decoded = np.empty(daemon.grid.num_elements, np.float32)
        daemon.grid.decode(daemon.buffers.contribution(1, ready.generation), decoded)
        assert np.isfinite(decoded).all()


async def test_buffers_of_another_model_are_refused(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    other = spec.model_copy(update={"chunk_elements": 256})
    with pytest.raises(ValueError, match="the model and codec need"):
        async with trainer_thread(daemon, other, tmp_path) as task:
            await task


def command(spec, folder, control, buffers):
    (folder / "spec.json").write_text(spec.model_dump_json())
    options = [
        "--control-fd",
        control,
        "--buffers-fd",
        buffers,
        "--spec-file",
        folder / "spec.json",
        "--folder",
        folder,
    ]
    return [sys.executable, "-P", "-m", "atoll.training.trainer", *map(str, options)]


async def test_the_process_ignores_ctrl_c_and_ends_when_its_channel_does(config, spec, tmp_path):
    daemon = MiniDaemon(config)
    ours, theirs = socket.socketpair()
    daemon.channel = await DaemonChannel.open(ours)
    fds = (theirs.fileno(), daemon.buffers.fd)
    process = started(command(spec, tmp_path, *fds), fds)
    theirs.close()
    assert (await daemon.until(Hello)).pid == process.pid
    process.send_signal(signal.SIGINT)
    await daemon.start()
    await daemon.commit(await daemon.until(Ready))
    daemon.channel.close()
    assert await asyncio.to_thread(process.wait) == module.EXIT_DAEMON_GONE


def started(arguments, fds):
    return subprocess.Popen(arguments, pass_fds=fds)


async def test_a_trainer_that_cannot_start_says_why(config, spec, tmp_path, monkeypatch):
    broken = config.model_copy(update={"data": config.data.model_copy(update={"source": "file:/no/such"})})
    daemon = MiniDaemon(config)
    ours, theirs = socket.socketpair()
    daemon.channel = await DaemonChannel.open(ours)
    options = command(
        spec.model_copy(update={"training": broken}), tmp_path, theirs.detach(), os.dup(daemon.buffers.fd)
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(DataError):
        module.main(options[4:])
    failed = await daemon.channel.receive()
    assert failed.kind == "failed"
    assert "/no/such does not exist" in failed.reason
    daemon.channel.close()
