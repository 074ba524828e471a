"""Children that die with their parent, whatever kills it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from atoll.protocol.launcher import launched

PARENT = """
import os, signal, subprocess, sys
from atoll.protocol.launcher import launched
child = subprocess.Popen(launched(sys.executable, "-c", "import signal; signal.pause()"), pass_fds=[int(sys.argv[1])])
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_a_launched_child_dies_when_its_parent_is_killed() -> None:
    alive, held = os.pipe()  # the child holds the writing end: end of file is its death
    command = [sys.executable, "-P", "-c", textwrap.dedent(PARENT), str(held)]
    with subprocess.Popen(command, pass_fds=[held], stdout=subprocess.PIPE) as parent:
        os.close(held)
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        assert os.read(alive, 1) == b""
    os.close(alive)


def test_a_launched_program_keeps_pid_arguments_and_exit_code_and_leads_a_session_of_its_own() -> None:
    program = "import os, sys; print(os.getpid(), os.getsid(0), *sys.argv[1:]); sys.exit(7)"
    with subprocess.Popen(launched(sys.executable, "-c", program, "a b"), stdout=subprocess.PIPE, text=True) as child:
        output, _ = child.communicate()
    assert output.split(maxsplit=2) == [str(child.pid), str(child.pid), "a b\n"]
    assert child.returncode == 7


def test_a_program_that_cannot_be_run_is_named_in_one_line() -> None:
    finished = subprocess.run(launched("/no/such"), capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (126, "cannot run /no/such: No such file or directory\n")
