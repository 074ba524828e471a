"""Child processes that never outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process ``signal_number`` when ``parent_pid``, its parent, is gone (Linux).

    Covers the parent's death by SIGKILL, where it cannot clean up itself. If the parent died before the request was
    made, the signal is raised at once. Elsewhere than Linux this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)
