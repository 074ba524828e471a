"""Fixtures of the integration tests."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .swarm_lab import Lab, p2pd_pids


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of this test's own, whose path is short enough for sockets; nothing may be left in it."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
        monkeypatch.undo()


@pytest.fixture
async def lab(tmp_path: Path, temporary: Path) -> AsyncIterator[Lab]:
    """Swarms that are stopped after the test; then no process, socket, folder or task may be left."""
    before = p2pd_pids()
    made = Lab(tmp_path, temporary / "run")
    yield made
    await made.stop()
    made.assert_nothing_left(before)
    assert set(os.listdir(temporary)) <= {"run"}
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "atoll" in repr(task)]
    assert not left
