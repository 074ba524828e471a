"""The trainer's supervision, with real trainer processes of a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.node.trainer_process import TrainerProcess, exit_text
from atoll.training.config import DataConfig, InnerConfig, ModelConfig, TrainerSpec, TrainingConfig
from atoll.training.data import Lease
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.reducer import Hello, Ready, Report, Start
from atoll.training.shared_buffers import SharedBuffers

CONFIG = TrainingConfig(
    model=ModelConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=32, sequence_length=16),
    data=DataConfig(validation_batches=1),
    inner=InnerConfig(num_steps=2, batch_size=2),
)
SPEC = TrainerSpec(training=CONFIG, chunk_elements=4096, codec="int8")


class Supervised:
    """A trainer with its reports in a queue."""

    def __init__(self, folder: Path) -> None:
        grid = ChunkGrid(FlatLayout.of(CONFIG.model).num_elements, SPEC.chunk_elements, codec(SPEC.codec))
        self.buffers = SharedBuffers.create(grid.num_elements, grid.num_chunks, grid.total_encoded)
        self.buffers.open_anchor()[:] = initial_state(CONFIG.model)
        self.buffers.seal_anchor(0)
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.deaths: list[str] = []
        self.process = TrainerProcess(
            SPEC, folder, self.buffers, on_report=self.reports.put_nowait, on_death=self.deaths.append
        )

    async def next(self, kind: type[Report]) -> Report:
        while not isinstance(report := await self.reports.get(), kind):
            pass
        return report


@asynccontextmanager
async def supervised(folder: Path) -> AsyncIterator[Supervised]:
    trainer = Supervised(folder)
    run = asyncio.create_task(trainer.process.run())
    try:
        yield trainer
    finally:
        await trainer.process.stop(save=False, timeout_s=5)
        await run


async def test_a_trainer_contributes_and_ends_when_asked(tmp_path: Path) -> None:
    async with supervised(tmp_path) as trainer:
        await trainer.next(Hello)
        await trainer.process.send(Start(round=1, generation=7, lease=Lease(first=0, count=16)))
        ready = await trainer.next(Ready)
        assert isinstance(ready, Ready)
        assert (ready.round, ready.generation, ready.num_steps) == (1, 7, 2)
        assert trainer.buffers.contribution(1, 7).any()
        pid = trainer.process.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert trainer.deaths == []


async def test_a_killed_trainer_is_started_again_and_its_death_explained(tmp_path: Path) -> None:
    async with supervised(tmp_path) as trainer:
        hello = await trainer.next(Hello)
        assert isinstance(hello, Hello)
        assert os.getsid(hello.pid) == hello.pid  # launched: it dies with us, and Ctrl-C does not reach it
        os.kill(hello.pid, signal.SIGKILL)
        again = await trainer.next(Hello)
        assert isinstance(again, Hello)
        assert again.pid != hello.pid
        assert len(trainer.deaths) == 1
        assert "SIGKILL" in trainer.deaths[0]


def test_the_end_of_a_trainer_is_said_in_words() -> None:
    assert exit_text(1, "DataError: no text") == "DataError: no text"
    assert "out of memory" in exit_text(-9, None)
    assert "SIGSEGV" in exit_text(-11, None)
    assert exit_text(3, None) == "ended with exit code 3"
