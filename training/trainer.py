"""The trainer process: a `Session` whose reducer is the daemon at the other end of a control channel.

The daemon starts it as ``python -P -m atoll.training.trainer --control-fd N --buffers-fd M --spec-file F --folder D``.
It ends when its channel does, at the latest after the inner step that it is in; the daemon's launcher sees to it that
the kernel kills it at once when the daemon dies. Ctrl-C is ignored: the daemon decides.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..kernels.chunk_grid import ChunkGrid
from .channel import ChannelClosed, TrainerChannel
from .checkpoint import Checkpoint, CheckpointStore
from .config import TrainerSpec
from .reducer import Event, Failed, Hello, PseudoGradient, Ready, Report, Warned
from .shared_buffers import SharedBuffers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXIT_DAEMON_GONE = 3
INNER_STATES = "inner-states"
"""Folder, in the trainer's own, of the copies that spot checks ask for."""


@dataclass
class ChannelReducer:
    """Hands contributions to the daemon through shared buffers, and hears its events."""

    channel: TrainerChannel
    buffers: SharedBuffers
    grid: ChunkGrid
    generation: int = 0
    """From the daemon's last event: seals the next contribution."""
    nan_round: int = 0
    """See `TrainerSpec.nan_round`."""

    def load_anchor(self, round: int, out: NDArray[np.float32]) -> None:  # noqa: A002
        """Copy the sealed anchor of ``round``. Raises `NotSealed` if it is not there or is replaced meanwhile."""
        self.buffers.copy_anchor(round, out)

    def reduce(self, contribution: PseudoGradient) -> Event:
        """Encode into the shared buffer, seal, say so, and wait for the next event."""
        if self.nan_round in (contribution.round, -1):
            self.nan_round = min(self.nan_round, 0)
            contribution.delta[0] = math.nan
        self._write(contribution)
        self.report(
            Ready(
                round=contribution.round,
                generation=self.generation,
                num_tokens=contribution.num_tokens,
                num_steps=contribution.num_steps,
                loss=contribution.loss,
                tokens_per_s=contribution.tokens_per_s,
                inner_state=contribution.inner_state,
            )
        )
        return self.wait()

    def poll(self) -> Event | None:
        """The daemon's next event, if it is there."""
        event = self.channel.poll()
        return None if event is None else self._note(event)

    def wait(self) -> Event:
        """The daemon's next event."""
        return self._note(self.channel.wait())

    def report(self, report: Report) -> None:
        """Tell the daemon. If it is gone, the next `poll` or `wait` says so."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(report)

    def checkpoint_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Nothing: the outer state is the daemon's."""
        return {}

    def _write(self, contribution: PseudoGradient) -> None:
        out = self.buffers.open_contribution()
        for chunk in range(self.grid.num_chunks):
            self.grid.encode_chunk(chunk, contribution.delta, out)
            self.buffers.mark_complete(chunk)
        self.buffers.seal_contribution(contribution.round, self.generation)

    def _note(self, event: Event) -> Event:
        self.generation = getattr(event, "generation", self.generation)
        return event


def run_trainer(channel: TrainerChannel, buffers: SharedBuffers, spec: TrainerSpec, folder: Path) -> None:
    """Train until the daemon says `Stop`. Raises `ChannelClosed` once it is gone, `DataError` for an unusable text."""
    import torch

    from ..kernels.codec import codec
    from .data import TextData
    from .inner_loop import InnerLoop, choose_device
    from .inner_state import InnerStates
    from .session import Session

    torch.set_num_threads(spec.num_threads)
    config = spec.training
    data = TextData.load(config.data, config.model.sequence_length)
    loop = InnerLoop(config, data, choose_device(spec.device))
    grid = ChunkGrid(loop.layout.num_elements, spec.chunk_elements, codec(spec.codec))
    require_geometry(buffers, grid)
    reducer = ChannelReducer(channel, buffers, grid, nan_round=spec.nan_round)
    on_warning = lambda text: reducer.report(Warned(text=text))  # noqa: E731
    store = CheckpointStore(folder, "inner", on_warning=on_warning)
    states = InnerStates(folder / INNER_STATES, on_warning) if spec.shows_inner_state else None
    session = Session(loop, reducer, store, spec.save_interval_s, inner_states=states)
    checkpoint = load_inner(store, grid.num_elements)
    if checkpoint is not None:
        session.restore(checkpoint)
    channel.send(
        Hello(
            pid=os.getpid(),
            device=str(loop.device),
            num_parameters=grid.num_elements,
            resumed_round=None if checkpoint is None else checkpoint.state["round"],
        )
    )
    session.run()


def require_geometry(buffers: SharedBuffers, grid: ChunkGrid) -> None:
    """Raise ValueError unless the daemon's buffers are made for this grid."""
    found = (buffers.num_elements, buffers.num_chunks, buffers.contribution_bytes)
    expected = (grid.num_elements, grid.num_chunks, grid.total_encoded)
    if found != expected:
        raise ValueError(f"shared buffers hold (elements, chunks, bytes) {found}, the model and codec need {expected}")


def load_inner(store: CheckpointStore, num_elements: int) -> Checkpoint | None:
    """The newest inner checkpoint, None if there is none for a model of this size."""
    checkpoint = store.load_latest()
    if checkpoint is None or checkpoint.tensors["anchor"].shape != (num_elements,):
        return None
    return checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Command line of the trainer process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="atoll-trainer")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--buffers-fd", type=int, required=True)
    parser.add_argument("--spec-file", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(arguments)
    channel = TrainerChannel(socket.socket(fileno=options.control_fd))
    try:
        spec = TrainerSpec.model_validate_json(options.spec_file.read_text())
        run_trainer(channel, SharedBuffers.attach(options.buffers_fd), spec, options.folder)
    except ChannelClosed:
        return EXIT_DAEMON_GONE
    except Exception as error:  # said to the daemon, which knows what to do; the traceback goes to its log
        with contextlib.suppress(ChannelClosed):
            channel.send(Failed(reason=f"{type(error).__name__}: {error}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
