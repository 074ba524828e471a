"""Starts p2pd so that it cannot outlive the daemon: ``python -I -S launcher.py OWNER_PID BINARY ARGUMENT…``.

Runs as a script of its own, imports nothing of atoll, and replaces itself by p2pd, which therefore keeps the pid that
the daemon knows. Costs 13 ms. The parent-death signal survives exec and is delivered by the kernel when the daemon's
starting thread ends, kill -9 included.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent(owner_pid: int) -> None:
    if sys.platform != "linux":
        return  # elsewhere p2pd ends by itself when its owner's persistent connection does (-idleTimeout)
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner_pid:  # the owner died before the request was made
        sys.exit(125)


def main(owner_pid: int, command: list[str]) -> None:
    """Does not return unless ``command`` cannot be executed, which it reports in one line."""
    _die_with_parent(owner_pid)
    os.setsid()  # Ctrl-C in a terminal is the daemon's to handle; p2pd must still carry the farewell
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", flush=True)
        sys.exit(126)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
