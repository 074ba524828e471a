"""However a node or the demo ends, nothing is left: no process, no socket, no temporary file or folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from .lab import ATOLL, PATIENCE, Node, eventually, rounds, run_atoll, swarm

pytestmark = pytest.mark.e2e

SETTINGS = ("inner.num_steps=4", "data.validation_batches=1")
GONE_S = 20.0
"""For an orderly end on a loaded machine; a killed node's children die within a second."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The only place for temporary files of the processes under test; short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def places(temporary: Path) -> dict[str, str]:
    return {"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(temporary)}


@dataclass(frozen=True)
class Family:
    """A process and everything that it had started, the guards of its folders included."""

    members: list[psutil.Process]

    @classmethod
    def of(cls, pid: int) -> Family:
        parent = psutil.Process(pid)
        return cls([parent, *parent.children(recursive=True)])

    def names(self) -> str:
        return " ".join(map(command_line, self.members))

    def assert_gone(self) -> None:
        _, alive = psutil.wait_procs(self.members, timeout=GONE_S * PATIENCE)
        assert not alive, f"still running: {[command_line(member) for member in alive]}"


def command_line(process: psutil.Process) -> str:
    """Empty if the process has ended meanwhile: a node's start has helpers that live for a moment."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def leftovers(folder: Path) -> list[str]:
    """What should not be in a stopped node's folder."""
    patterns = ("atoll-*", "**/*.sock", "**/*.tmp", "**/.*")
    return sorted(str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern))


def start_and_commit(node: Node, temporary: Path) -> Family:
    """Start a lone node, wait for a round, and return its trainer, p2pd and guard with it."""
    num_events = len(node.events)
    node.start(**places(temporary))
    node.wait_for("a committed round", lambda events: rounds(events[num_events:]), 60)
    assert node.process is not None
    family = Family.of(node.process.pid)
    assert all(name in family.names() for name in ("atoll.training.trainer", "p2pd", "atoll-folder-guard"))
    return family


ORDERLY = {"SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT, "atoll stop": None}


def test_a_node_that_ends_or_is_killed_leaves_nothing_and_goes_on_when_started_again(
    tmp_path: Path, temporary: Path
) -> None:
    with swarm(tmp_path, 1, num_rounds=0, settings=SETTINGS) as (node,):
        for how, number in ORDERLY.items():
            family = start_and_commit(node, temporary)
            if number is None:
                run_atoll("stop", "--folder", str(node.folder))
            else:
                node.signal(number)
            assert node.wait_for_exit(GONE_S) == 0, f"{how}\n{node.log_tail()}"
            family.assert_gone()
            assert node.points()[-3:] == ["node.saved", "node.left", "state.stopped"], how
            assert_clean(node, temporary)
            assert not (node.folder / "endpoint.json").exists()
        family = start_and_commit(node, temporary)
        node.kill()
        family.assert_gone()
        assert_clean(node, temporary)
        numbers = [event["round"] for event in rounds(node.events)]
        assert numbers == list(range(1, len(numbers) + 1))


def assert_clean(node: Node, temporary: Path) -> None:
    assert leftovers(node.folder) == []
    assert list(temporary.rglob("*")) == []
    assert "Traceback" not in (node.folder / "stderr.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_node_that_ends_while_it_starts(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    with swarm(tmp_path, 1, num_rounds=0, settings=SETTINGS) as (node,):
        node.start(**places(temporary))
        node.wait_for("its dashboard", lambda events: [e for e in events if e["event"] == "dashboard"], 60)
        assert node.process is not None
        pid = node.process.pid
        eventually("p2pd or its launcher runs", lambda: "p2pd" in Family.of(pid).names(), 60)
        family = Family.of(pid)
        node.signal(number)
        assert node.wait_for_exit(GONE_S) == (-9 if number == signal.SIGKILL else 0), node.log_tail()
        family.assert_gone()
        assert_clean(node, temporary)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_demo(temporary: Path, number: signal.Signals) -> None:
    command = [*ATOLL, "demo", "--nodes", "2", "--rounds", "100", "--json"]
    environment = os.environ | places(temporary)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as demo:
        eventually("both nodes have trainers", lambda: Family.of(demo.pid).names().count("--control-fd") == 2, 60)
        family = Family.of(demo.pid)
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=GONE_S * PATIENCE)
        assert demo.returncode == (-9 if number == signal.SIGKILL else 130), errors
        assert b"Traceback" not in errors
    family.assert_gone()
    assert list(temporary.rglob("*")) == []
