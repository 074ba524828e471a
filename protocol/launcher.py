"""Starts a child so that it cannot outlive this process: ``python -I -S launcher.py OWNER_PID PROGRAM ARGUMENT…``.

For p2pd and the trainer. Runs as a script of its own, imports nothing of atoll, and replaces itself by the program,
which therefore keeps the pid that the owner knows. Costs 13 ms. The parent-death signal survives exec and is delivered
by the kernel when the owner's starting thread ends, kill -9 included.

Elsewhere than on Linux there is no such signal: p2pd then ends with its owner's persistent connection (-idleTimeout),
the trainer with its control channel.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def launched(*command: str) -> tuple[str, ...]:
    """The command line that runs ``command`` as a child of this process that dies with it."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def die_with_parent(parent_pid: int, signal_number: int) -> None:
    """Ask the kernel to send this process ``signal_number`` when ``parent_pid``, its parent, is gone (Linux).

    Covers the parent's death by SIGKILL, where it cannot clean up itself. If the parent died before the request was
    made, the signal is raised at once. Elsewhere than on Linux this does nothing.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)


def main(owner_pid: int, command: list[str]) -> None:
    """Does not return unless ``command`` cannot be executed, which it reports in one line."""
    die_with_parent(owner_pid, signal.SIGKILL)
    os.setsid()  # Ctrl-C in a terminal is the daemon's to handle; its children must still carry the farewell
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", flush=True)
        sys.exit(126)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
