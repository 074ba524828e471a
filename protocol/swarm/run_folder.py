"""The private folder of a swarm's sockets, with a record of who owns it, and the sweep of dead owners' leftovers.

A socket's path is limited to 107 bytes, so the folder must be short. After kill -9 a guard removes it (`folder_guard`);
should that be missing or killed too, the next start in the same place does, and ends a p2pd that the record names if it
is still the same process (pid and start time).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ..folder_guard import FolderGuard

PREFIX = "atoll-"
_RECORD = "owner.json"
_MAX_PATH_BYTES = 107 - len("/p2pclient-") - 11 - len(".sock")
_MAX_RECORD_BYTES = 4096
_guards: dict[Path, FolderGuard] = {}


def start_time(pid: int) -> float | None:
    """A number that tells ``pid`` from a later process of the same number; None if there is no such process.

    Kernel ticks since boot on Linux, which steps of the clock do not change; seconds since 1970 elsewhere.
    """
    if sys.platform != "linux":
        import psutil  # not needed on Linux, where it would cost 20 ms

        try:
            return psutil.Process(pid).create_time()
        except psutil.Error:
            return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def _candidates(preferred: Path | None) -> Iterator[Path]:
    if preferred is not None:
        preferred.mkdir(parents=True, exist_ok=True)
        yield preferred.absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        yield Path(runtime)
    yield Path(tempfile.gettempdir())


def create(preferred: Path | None) -> Path:
    """A new folder with mode 0700 in the first place that is short enough; dead owners' folders there are swept."""
    for parent in _candidates(preferred):
        if len(os.fsencode(parent)) + 1 + len(PREFIX) + 8 <= _MAX_PATH_BYTES and os.access(parent, os.W_OK):
            sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            _guards[folder] = FolderGuard(folder)
            atexit.register(_remove_at_exit, folder, os.getpid())
            _write(folder, {"owner_pid": os.getpid(), "owner_start": start_time(os.getpid())})
            return folder
    raise OSError("no writable folder with a path short enough for sockets; set XDG_RUNTIME_DIR")


def _write(folder: Path, record: dict[str, Any]) -> None:
    (folder / _RECORD).write_text(json.dumps(record))


def _read(folder: Path) -> dict[str, Any] | None:
    """The record of a folder of ours. None for all others': in a shared place anybody may have put anything there."""
    try:
        if folder.lstat().st_uid != os.getuid():
            return None
        descriptor = os.open(folder / _RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            record: object = json.loads(file.read(_MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", record) if isinstance(record, dict) else None


def record_child(folder: Path, pid: int) -> None:
    """Note p2pd's pid and start time, by which alone a leftover is recognised (never by its name)."""
    _write(folder, {**(_read(folder) or {}), "child_pid": pid, "child_start": start_time(pid)})


def remove_sockets(folder: Path) -> None:
    """Delete what a p2pd and its client left in the folder."""
    for socket_file in folder.glob("p2p*.sock"):
        socket_file.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Delete the folder and its sockets; missing is fine."""
    shutil.rmtree(folder, ignore_errors=True)
    guard = _guards.pop(folder, None)
    if guard is not None:
        guard.dismiss()


def _remove_at_exit(folder: Path, owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # not a forked child's to remove
        remove(folder)


def _is_running(pid: object, start: object) -> bool:
    return isinstance(pid, int) and start is not None and start_time(pid) == start


def sweep(parent: Path) -> None:
    """Remove folders of ours whose owner is gone, and end the p2pd they name if it still runs."""
    for folder in parent.glob(f"{PREFIX}*"):
        record = _read(folder)
        if record is None or _is_running(record.get("owner_pid"), record.get("owner_start")):
            continue
        if _is_running(record.get("child_pid"), record.get("child_start")):
            with contextlib.suppress(OSError):
                os.kill(cast("int", record["child_pid"]), signal.SIGKILL)
        remove(folder)
