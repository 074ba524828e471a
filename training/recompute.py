"""Recomputes another peer's inner steps, for a spot check: ``python -P -m atoll.training.recompute --job FILE``.

Everything that the steps depend on is known (anchor, lease, number of steps, learning rate) or shown under a digest
(the optimizer's state at their beginning). Other hardware gives other roundings, so the outcome is compared with a
tolerance, never for equality. The process is apart from the trainer, which goes on meanwhile; its priority is lowest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import NonFiniteError, codec
from .config import TrainerSpec
from .data import Lease
from .inner_state import InnerState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..kernels.chunk_grid import FlatValues
    from .inner_loop import InnerLoop

_LOWEST_PRIORITY = 19


class Job(BaseModel):
    """What to recompute, and where the pieces lie."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: TrainerSpec
    lease: Lease
    num_steps: int
    inner_lr: float | None
    """As in `reducer.Start`."""
    chunks: tuple[int, ...]
    """Of the grid: those whose encodings are wanted, in this order."""
    anchor: Path
    """float32 values."""
    inner_state: Path
    """What the peer says that it began with."""
    end: Path
    """Where to put the optimizer's state after the steps."""
    encoded: Path
    """Where to put the chunks' encodings, concatenated."""
    result: Path
    """Where to put a `Result`."""


class Result(BaseModel):
    """What a job has found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_tokens: int = 0
    fault: str = ""
    """Why the shown state is none, or leads nowhere; the other fields then say nothing."""


@dataclass(frozen=True)
class Steps:
    """Outcome of recomputed steps."""

    delta: FlatValues  # (num_elements,)
    num_tokens: int
    end: InnerState


def recompute(
    loop: InnerLoop,
    anchor: NDArray[np.float32],  # (num_elements,)
    lease: Lease,
    num_steps: int,
    state: InnerState,
) -> Steps:
    """The steps that an honest peer takes from ``anchor``; fewer where the lease ends. ``loop`` is used up by it."""
    loop.load(anchor)
    loop.restore_optimizer(state.moments, state.num_steps_done)
    batch, num_taken, num_tokens = state.first_batch, 0, 0
    while num_taken < num_steps:
        indices = lease.batch(batch, loop.config.inner.batch_size)
        if indices is None:
            break
        step = loop.step(loop.data.batch(indices))
        batch += 1
        num_taken += step.num_tokens > 0
        num_tokens += step.num_tokens
    end = InnerState(loop.num_steps_done, 0, loop.optimizer_tensors())
    return Steps(loop.pseudo_gradient(anchor), num_tokens, end)


def run_job(job: Job) -> Result:
    """Do a job in this process; its chunks' encodings and the optimizer's end are written before this returns."""
    import torch

    from .data import TextData
    from .inner_loop import InnerLoop, choose_device

    config = job.spec.training
    torch.set_num_threads(job.spec.num_threads)
    loop = InnerLoop(config, TextData.load(config.data, config.model.sequence_length), choose_device(job.spec.device))
    loop.use_lr(job.inner_lr)
    num_elements = loop.layout.num_elements
    anchor = np.fromfile(job.anchor, np.float32)
    try:
        state = InnerState.decode(job.inner_state.read_bytes(), num_elements, config.inner)
        steps = recompute(loop, anchor, job.lease, job.num_steps, state)
        job.encoded.write_bytes(_chunks(job, steps.delta, num_elements))
        job.end.write_bytes(steps.end.encode())
    except (ValueError, NonFiniteError) as error:
        return Result(fault=str(error)[:200])
    return Result(num_tokens=steps.num_tokens)


def _chunks(job: Job, delta: Any, num_elements: int) -> bytes:
    grid = ChunkGrid(num_elements, job.spec.chunk_elements, codec(job.spec.codec))
    out = np.empty(grid.total_encoded, np.uint8)
    for chunk in job.chunks:
        grid.encode_chunk(chunk, delta, out)
    return b"".join(out[grid.encoded_range(chunk)].tobytes() for chunk in job.chunks)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="atoll-recompute")
    parser.add_argument("--job", type=Path, required=True)
    options = parser.parse_args(arguments)
    os.nice(_LOWEST_PRIORITY)
    job = Job.model_validate(json.loads(options.job.read_text()))
    temporary = job.result.with_suffix(".tmp")
    temporary.write_text(run_job(job).model_dump_json())
    temporary.replace(job.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
