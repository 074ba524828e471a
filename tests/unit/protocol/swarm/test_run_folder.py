"""The private socket folder and what dead owners leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.protocol.swarm import run_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's, but short enough for a socket's path also in a parallel run."""
    with tempfile.TemporaryDirectory(prefix="atoll-") as folder:
        yield Path(folder)


def test_the_folder_is_private_and_short_enough_for_sockets(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path)
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    run_folder.remove(folder)
    run_folder.remove(folder)
    assert not any(tmp_path.iterdir())


def test_a_path_too_long_for_sockets_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "r"
    short.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    folder = run_folder.create(tmp_path / ("d" * 90))
    assert folder.parent == short
    run_folder.remove(folder)


def leftover(parent: Path, owner: tuple[int, float | None], child: tuple[int, float | None]) -> Path:
    folder = run_folder.create(parent)
    names = ("owner_pid", "owner_start", "child_pid", "child_start")
    (folder / "owner.json").write_text(json.dumps(dict(zip(names, (*owner, *child), strict=True))))
    return folder


def test_a_dead_owners_folder_is_swept_and_its_p2pd_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        folder = leftover(tmp_path, (os.getpid(), 1.0), (child.pid, run_folder.start_time(child.pid)))
        run_folder.sweep(tmp_path)
        assert child.wait(5) == -9
    assert not folder.exists()


def test_a_later_process_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        leftover(tmp_path, (os.getpid(), 1.0), (child.pid, 1.0))
        run_folder.sweep(tmp_path)
        child.communicate(b"\n", timeout=5)
        assert child.returncode == 0


def test_a_living_owners_folder_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path)
    (tmp_path / "atoll-notes").mkdir()
    run_folder.sweep(tmp_path)
    assert folder.exists()
    assert (tmp_path / "atoll-notes").exists()
    run_folder.remove(folder)


def record_in(parent: Path) -> Path:
    folder = parent / f"{run_folder.PREFIX}other"
    folder.mkdir()
    return folder / "owner.json"


def test_records_of_other_users_are_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_in(tmp_path)
    record.write_text(json.dumps({"owner_pid": 2**22 + 1, "owner_start": 1}))
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    run_folder.sweep(tmp_path)
    assert record.exists()


def test_a_record_that_never_ends_or_is_nested_without_end_holds_up_no_start(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    os.mkfifo(record)
    run_folder.sweep(tmp_path)
    record.unlink()
    for text in ("[" * 4000, "9" * 5000, '{"owner_pid": ' + "[" * 3000):
        record.write_text(text)
        run_folder.sweep(tmp_path)
    assert record.exists(), "what names no dead owner stays"
