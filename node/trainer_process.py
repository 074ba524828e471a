"""The trainer as the daemon sees it: a child that is started, heard, restarted with back-off, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..protocol.launcher import launched
from ..training.channel import ChannelClosed, ChannelError, DaemonChannel
from ..training.config import TrainerSpec
from ..training.reducer import Event, Failed, Report, Stop
from ..training.shared_buffers import SharedBuffers

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
MAX_DEATHS, DEATHS_WINDOW_S = 5, 600.0


class TrainerGaveUp(RuntimeError):
    """The trainer died too often; the message is one line with the last cause."""


_END_GRACE_S = 2.0


def _kill(process: asyncio.subprocess.Process) -> None:
    """By its id: `process.kill` polls first, which takes the exit code away from asyncio's child watcher."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def exit_text(code: int, failure: str | None) -> str:
    """Why a trainer ended, for people: its own last words, a signal's name, or its exit code."""
    if failure is not None:
        return failure
    if code == -signal.SIGKILL:
        return "killed (SIGKILL); the system may be out of memory"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class TrainerProcess:
    """One trainer at a time. `on_report` gets everything it says, `on_death` one line whenever it has died.

    After a death a new one is started with growing pauses; it says `Hello` again and then waits for `Start`. More than
    `MAX_DEATHS` within `DEATHS_WINDOW_S` end `run` with `TrainerGaveUp`.
    """

    def __init__(
        self,
        spec: TrainerSpec,
        folder: Path,
        buffers: SharedBuffers,
        *,
        on_report: Callable[[Report], None],
        on_death: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._folder, self._buffers = spec, folder, buffers
        self._on_report, self._on_death, self._clock = on_report, on_death, clock
        self._channel: DaemonChannel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._deaths: list[float] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def send(self, event: Event) -> None:
        """Tell the trainer. Lost if it is dead: the next one gets a `Start` of its own."""
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._channel.send(event)

    async def run(self) -> None:
        """Keep a trainer alive until `stop`. Raises `TrainerGaveUp`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        spec_path = self._folder / "trainer.json"
        spec_path.write_text(self._spec.model_dump_json())
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            started_s = self._clock()
            cause = await self._live(spec_path)
            if self._stopping:
                return
            self._count_death(cause)
            pause_s = FIRST_PAUSE_S if self._clock() - started_s > DEATHS_WINDOW_S else min(pause_s * 2, MAX_PAUSE_S)
            await asyncio.sleep(pause_s)

    def _count_death(self, cause: str) -> None:
        now = self._clock()
        self._deaths = [death for death in self._deaths if now - death < DEATHS_WINDOW_S] + [now]
        self._on_death(cause)
        if len(self._deaths) > MAX_DEATHS:
            raise TrainerGaveUp(
                f"the trainer died {len(self._deaths)} times in 10 minutes; the last time it was {cause}"
            )

    async def _live(self, spec_path: Path) -> str:
        """One trainer's whole life; returns why it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await self._spawn(theirs, spec_path)
        self._channel = await DaemonChannel.open(ours)
        failure: str | None = None
        try:
            while True:
                report = await self._channel.receive()
                failure = report.reason if isinstance(report, Failed) else failure
                self._on_report(report)
        except ChannelClosed:
            pass
        except ChannelError as error:
            failure = str(error)
            _kill(self._process)
        finally:
            self._channel.close()
            self._channel = None
            code = await self._reap(self._process)
        return exit_text(code, failure)

    async def _spawn(self, control: socket.socket, spec_path: Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *launched(sys.executable, "-P", "-m", "atoll.training.trainer"),
            *("--control-fd", str(control.fileno()), "--buffers-fd", str(self._buffers.fd)),
            *("--spec-file", str(spec_path), "--folder", str(self._folder)),
            pass_fds=(control.fileno(), self._buffers.fd),
            stdout=sys.stderr.fileno(),
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        """torch makes its cache when it is imported, by default a folder in /tmp that nobody removes."""
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "cache")}
        return {**cache, **os.environ, "OMP_NUM_THREADS": str(self._spec.num_threads)}

    async def _reap(self, process: asyncio.subprocess.Process) -> int:
        """Exit code of a trainer whose channel is closed; one that does not end by itself is killed."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(process.wait()), _END_GRACE_S)
        _kill(process)
        return await process.wait()

    async def stop(self, *, save: bool, timeout_s: float) -> None:
        """Ask the trainer to save and end; kill it after ``timeout_s``."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        await self.send(Stop(save=save))
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            _kill(process)
            await process.wait()
