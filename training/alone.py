"""`atoll train SPEC`: a run on this machine alone, for ablations, debugging and reference curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import codec as codec_of
from .checkpoint import Checkpoint, CheckpointStore
from .config import TrainingConfig
from .data import TextData
from .flat import FlatLayout, initial_state
from .inner_loop import InnerLoop, choose_device
from .local import LocalReducer
from .reducer import Evaluate, Evaluation, Event, Report, Warned
from .session import Session


@dataclass(frozen=True)
class AloneResult:
    """A finished run."""

    anchor: NDArray[np.float32]  # (num_elements,)
    momentum: NDArray[np.float32]  # (num_elements,)
    evaluations: tuple[Evaluation, ...]
    """By round, those that this call made; the first is of the state it started from."""


def _ignore(_: Report) -> None:
    pass


def train_alone(
    config: TrainingConfig,
    folder: Path | None,
    rounds: int,
    *,
    codec: str = "int8",
    chunk_elements: int = 65_536,
    on_report: Callable[[Report], None] = _ignore,
    save_interval_s: float = 60.0,
    num_threads: int = 1,
    device: str = "auto",
    keep: int = 2,
) -> AloneResult:
    """Train ``rounds`` rounds in all with DiLoCo on this machine; blocks until done.

    ``folder`` gets checkpoints; one that is there is resumed, and on one CPU thread the result is the uninterrupted
    run's, bit for bit. None keeps nothing. ``on_report`` hears every step, evaluation (one before the first round, one
    after each commit), save and warning; an exception that it raises ends the run at once. Raises `DataError` if the
    text cannot be used, ValueError if the checkpoint is of other settings.
    """
    torch.set_num_threads(num_threads)
    layout = FlatLayout.of(config.model)
    grid = ChunkGrid(layout.num_elements, chunk_elements, codec_of(codec))
    store, checkpoint = _open_store(folder, keep, config, on_report)
    reducer = _EvaluatingReducer(config, grid, rounds, *_start_state(config, checkpoint), on_report=on_report)
    loop = InnerLoop(config, TextData.load(config.data, config.model.sequence_length), choose_device(device))
    session = Session(loop, reducer, store, save_interval_s, note={"config": _recipe(config)})
    if checkpoint is not None:
        session.restore(checkpoint)
    session.run()
    return AloneResult(reducer.anchor, reducer.momentum, tuple(reducer.evaluations))


class _EvaluatingReducer(LocalReducer):
    """Asks for an evaluation of every anchor, the first included."""

    def __init__(
        self,
        config: TrainingConfig,
        grid: ChunkGrid,
        num_rounds: int,
        anchor: NDArray[np.float32],
        momentum: NDArray[np.float32] | None,
        round: int,  # noqa: A002
        on_report: Callable[[Report], None],
    ) -> None:
        super().__init__(config, grid, num_rounds, anchor, momentum, round, self._hear)
        self.evaluations: list[Evaluation] = []
        self._on_report = on_report
        self._evaluated_round = -1

    def poll(self) -> Event | None:
        """As `LocalReducer.poll`, with an evaluation before anything else happens to a new anchor."""
        if self._is_started and self._evaluated_round != self.round:
            self._evaluated_round = self.round
            return Evaluate()
        return super().poll()

    def _hear(self, report: Report) -> None:
        if isinstance(report, Evaluation):
            self.evaluations.append(report)
        self._on_report(report)


def _open_store(
    folder: Path | None, keep: int, config: TrainingConfig, on_report: Callable[[Report], None]
) -> tuple[CheckpointStore | None, Checkpoint | None]:
    if folder is None:
        return None, None
    store = CheckpointStore(folder, "alone", keep, on_warning=lambda text: on_report(Warned(text=text)))
    checkpoint = store.load_latest()
    if checkpoint is not None and checkpoint.state.get("config") != _recipe(config):
        raise ValueError(f"the checkpoints in {store.folder} are of a run with other settings; choose another folder")
    return store, checkpoint


def _recipe(config: TrainingConfig) -> dict[str, object]:
    return config.model_dump(mode="json")


def _start_state(
    config: TrainingConfig, checkpoint: Checkpoint | None
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None, int]:
    """(anchor, momentum, last committed round)."""
    if checkpoint is None:
        return initial_state(config.model), None, 0
    return checkpoint.tensors["anchor"].copy(), checkpoint.tensors["momentum"].copy(), checkpoint.state["round"] - 1
