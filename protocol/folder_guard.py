"""Removes a private folder as soon as everybody who uses it is gone, also after kill -9.

A process cannot clean up after its own SIGKILL, so a tiny shell waits at the other end of a pipe: it removes the folder
when the last holder of the pipe's write end has ended, and ends itself at that moment or when it is dismissed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

_SCRIPT = 'read -r _ || rm -rf -- "$1"'
"""A line dismisses it; the end of file, without a line, means that the owners died."""
_END_TIMEOUT_S = 5.0


class FolderGuard:
    """Guards ``folder``, which this process has just made. Without a shell (or its fork) it does nothing."""

    def __init__(self, folder: Path) -> None:
        reader, self._writer = os.pipe()  # neither end is inherited by processes that are started
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with contextlib.suppress(OSError):
                self._process = self._start(folder.absolute(), reader)
        finally:
            os.close(reader)

    @property
    def descriptor(self) -> int:
        """A child that inherits this (``pass_fds``) also keeps the folder until it ends."""
        return self._writer

    def dismiss(self) -> None:
        """The folder was removed, or stays: end the guard without touching anything. Idempotent."""
        if self._writer < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._writer, b"\n")
        os.close(self._writer)
        self._writer = -1
        if self._process is not None:
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @staticmethod
    def _start(folder: Path, reader: int) -> subprocess.Popen[bytes] | None:
        shell = shutil.which("sh")
        if shell is None:
            return None
        return subprocess.Popen(
            [shell, "-c", _SCRIPT, "atoll-folder-guard", str(folder)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C ends the owner, which then dismisses the guard
        )
