"""Fixtures of the integration tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .swarm_lab import Lab, p2pd_pids, temporary_folders


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Swarms that are stopped after the test; then no process, socket, folder or task may be left."""
    before, temporary = p2pd_pids(), temporary_folders()
    made = Lab(tmp_path)
    yield made
    await made.stop()
    made.assert_nothing_left(before)
    assert temporary_folders() <= temporary
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "atoll" in repr(task)]
    assert not left
