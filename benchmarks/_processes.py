"""What a running command and all its descendants have used, read from the kernel."""

from __future__ import annotations

import resource
import shutil
import sysconfig
from contextlib import suppress
from pathlib import Path

import psutil


def atoll_command() -> str:
    """Path of the `atoll` command of the running Python's environment, or of PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "atoll"
    found = str(beside) if beside.exists() else shutil.which("atoll")
    if found is None:
        raise SystemExit("no atoll command: run `make setup` and use .venv/bin/python")
    return found


class CpuMeter:
    """CPU-seconds of a process tree while it runs; what an ended descendant had used at the last look stays counted."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def read_s(self) -> float:
        """CPU-seconds (user and system) of the tree up to now."""
        with suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._seen[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seen.values())


def cpu_of_finished_children_s() -> float:
    """CPU-seconds of all children of this process that ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # microseconds, where os.times() has hundredths
    return used.ru_utime + used.ru_stime
