"""Recomputes other members' inner steps in a process of its own, at the lowest priority: this node's spot checks.

One at a time; the trainer goes on beside it. Costs 4 bytes a parameter on disk for the anchor, and for as long as it
runs the memory of a second trainer. A process that fails (out of memory, say) accuses nobody.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import codec
from ..protocol.launcher import launched
from ..protocol.recomputer import Recomputed, Work
from ..training.config import TrainerSpec
from ..training.data import Lease
from ..training.inner_state import InnerStates, continuity, sizes
from ..training.recompute import Job, Result
from ..training.shared_buffers import NotSealed, SharedBuffers
from ..training.trainer import INNER_STATES
from .run_spec import training_config

_PATIENCE_S = 6 * 3600.0
"""A check that lasts longer has lost its purpose."""


class SpotRecomputer:
    """A `protocol.recomputer.Recomputer` over this node's buffers. ``folder`` is the node's."""

    def __init__(self, spec: TrainerSpec, folder: Path, buffers: SharedBuffers) -> None:
        self._spec, self._buffers = spec, buffers
        self._own = InnerStates(folder / "trainer" / INNER_STATES, lambda _: None)
        self._folder = folder / "recompute"
        self._anchor = self._folder / "anchor"

    @property
    def sizes(self) -> tuple[int, int]:
        return sizes(self._buffers.num_elements)

    def own_state(self, round_number: int) -> Path:
        return self._own.path(round_number)

    async def keep_anchor(self, round_number: int) -> bool:
        """Raises OSError if the disk does not take it."""
        return await asyncio.to_thread(self._keep_anchor, round_number)

    def _keep_anchor(self, round_number: int) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            before = self._buffers.seal_of("anchor")
            self._buffers.anchor(round_number).tofile(self._anchor)
        except NotSealed:
            return False
        return self._buffers.seal_of("anchor") == before  # or it was replaced meanwhile

    async def recompute(self, work: Work) -> Recomputed | None:
        """None if the process failed. Raises OSError if there is no room for its files."""
        job = self._job(work)
        path = self._folder / "job.json"
        path.write_text(job.model_dump_json())
        for old in (job.result, job.encoded, job.end):
            old.unlink(missing_ok=True)
        if not await self._run(path) or not job.result.exists():
            return None
        result = Result.model_validate_json(job.result.read_text())
        if result.fault:
            return Recomputed((), 0, job.end, result.fault)
        encoded = await asyncio.to_thread(job.encoded.read_bytes)
        return Recomputed(self._cut(encoded, work.chunks), result.num_tokens, job.end)

    def continuity(self, end: Path, start: Path) -> float | None:
        try:
            return continuity(end.read_bytes(), start.read_bytes(), self._buffers.num_elements)
        except ValueError:
            return 0.0

    def _job(self, work: Work) -> Job:
        training = training_config(work.rules, "rules in force")
        return Job(
            spec=self._spec.model_copy(update={"training": training}),
            lease=Lease(first=work.first_sample, count=training.inner.lease_samples),
            num_steps=work.num_steps,
            inner_lr=training.inner.lr,
            chunks=work.chunks,
            anchor=self._anchor,
            inner_state=work.inner_state,
            end=self._folder / "end",
            encoded=self._folder / "encoded",
            result=self._folder / "result.json",
        )

    def _cut(self, encoded: bytes, chunks: tuple[int, ...]) -> tuple[bytes, ...]:
        grid = ChunkGrid(self._buffers.num_elements, self._spec.chunk_elements, codec(self._spec.codec))
        ends = np.cumsum([grid.encoded_bytes(chunk) for chunk in chunks]).tolist()
        return tuple(encoded[start:end] for start, end in zip([0, *ends], ends, strict=False))

    async def _run(self, job: Path) -> bool:
        process = await asyncio.create_subprocess_exec(
            *launched(sys.executable, "-P", "-m", "atoll.training.recompute", "--job", str(job)),
            stdout=sys.stderr.fileno(),
            env=self._environment(),
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await process.wait() == 0
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                await process.wait()

    def _environment(self) -> dict[str, str]:
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "cache")}
        return {**cache, **os.environ, "OMP_NUM_THREADS": str(self._spec.num_threads)}
