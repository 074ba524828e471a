"""The guard of a private folder: removes it when its owners are dead, and nothing otherwise."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.protocol.folder_guard import FolderGuard

OWNER = """
import sys, time
from pathlib import Path
from atoll.protocol.folder_guard import FolderGuard
guard = FolderGuard(Path(sys.argv[1]))
print(guard._process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with something in it, and a name that a careless shell would cut into pieces."""
    path = tmp_path / "-rf $HOME; a b"
    path.mkdir()
    (path / "socket").touch()
    (tmp_path / "neighbour").touch()
    return path


def test_a_folder_whose_owner_is_killed_disappears_and_nothing_else(folder: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    guard = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    wait_for_end(guard)
    assert [path.name for path in folder.parent.iterdir()] == ["neighbour"]


def test_a_child_with_the_descriptor_keeps_the_folder_until_it_ends(folder: Path) -> None:
    guard = FolderGuard(folder)
    assert guard._process is not None
    child = subprocess.Popen(["sh", "-c", "read _"], stdin=subprocess.PIPE, pass_fds=(guard.descriptor,))
    os.close(guard.descriptor)  # as if we had died
    assert guard._process.poll() is None
    assert folder.exists()
    child.communicate()
    guard._process.wait(10)
    guard._writer = -1
    assert not folder.exists()


def test_a_dismissed_guard_ends_and_leaves_what_is_there(folder: Path) -> None:
    guard = FolderGuard(folder)
    guard.dismiss()
    guard.dismiss()
    assert guard._process is not None
    assert guard._process.returncode == 0
    assert (folder / "socket").exists()


def test_ctrl_c_in_the_terminal_does_not_end_it(folder: Path) -> None:
    guard = FolderGuard(folder)
    assert guard._process is not None
    assert os.getpgid(guard._process.pid) != os.getpgid(0)
    guard.dismiss()


def test_without_a_shell_it_does_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    guard = FolderGuard(folder)
    guard.dismiss()
    assert folder.exists()


def wait_for_end(pidfd: int) -> None:
    """Of a process that is not our child."""
    assert select.select([pidfd], [], [], 10)[0], "it still runs"
    os.close(pidfd)
