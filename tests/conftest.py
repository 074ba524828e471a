"""For every test: who runs it, no process may outlive the suite, and hypothesis behaves the same on every machine."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Inherited by every process that a test starts, by whatever detours; so leftovers are found without knowing names.
_MARK = "ATOLL_TEST_RUN"
_GRACE_S = 5.0

settings.register_profile("atoll", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("atoll")


_KEPT_TOGETHER = re.compile(r"(^|/)tests/(browser|container|e2e|packaging)/")
_LONGEST_FIRST = ("e2e/test_crashes.py", "e2e/", "packaging/", "integration/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first, so that no worker is left alone with one of them at the end."""

    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((i for i, part in enumerate(_LONGEST_FIRST) if f"/tests/{part}" in path), len(_LONGEST_FIRST))

    items.sort(key=rank)


class _ModulesKeptTogether(LoadScopeScheduling):
    """One worker runs all tests of a module that shares a swarm, a browser or a build; others go to any worker.

    By the path, since the mark `xdist_group` does nothing: xdist 3.8 hands the group on in a field of the item that
    pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if _KEPT_TOGETHER.search(module) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    if config.getoption("dist") not in ("load", "loadgroup"):
        return None
    config.option.loadscopereorder = False  # the longest tests begin first, not the largest modules
    return _ModulesKeptTogether(config, log)


def _processes_with(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_tests() -> Iterator[None]:
    """Ends whatever a test of this worker left running, and reports it as an error."""
    mark = uuid.uuid4().hex
    os.environ[_MARK] = mark
    yield
    # this worker's own environment, as /proc shows it, is that of its start: it is not among them
    leftovers = _processes_with(mark)
    _, alive = psutil.wait_procs(leftovers, timeout=_GRACE_S)
    described: list[str] = []
    for process in alive:
        with suppress(psutil.Error):
            described.append(f"{process.pid} {' '.join(process.cmdline())}")
            process.kill()
    assert not described, "tests left processes running (ended now): " + "; ".join(described)
