"""What a node says of its rounds: the journal has everything, people hear what is news."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node import cli
from atoll.node.commands.status import status_lines
from atoll.node.journal import Journal
from atoll.node.reasons import Reason, State
from atoll.node.reporter import Reporter
from atoll.node.run_spec import load_run_spec
from atoll.node.snapshot import as_json
from atoll.node.status import StatusBoard
from atoll.node.telemetry import Telemetry
from atoll.protocol.identity import Identity
from atoll.protocol.outcomes import RoundEvent

ME = Identity.from_seed(b"r" * 32).peer_id


@pytest.fixture
def telemetry(tmp_path: Path):
    journal = Journal(tmp_path / "journal.sqlite")
    yield Telemetry(StatusBoard(), journal, json_lines=False)
    journal.close()


@pytest.fixture
def reporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry) -> Reporter:
    """Before the network is up: its replica is not asked."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "run.toml"
    for words in (["new"], ["sign"]):
        assert cli.run(["run", *words, str(path), "--folder", str(tmp_path)]) == 0
    return Reporter(telemetry, load_run_spec(path), ME, "petrel", "0", replica=None)  # type: ignore[arg-type]


def test_attempts_that_are_given_up_for_the_same_cause_are_said_once_and_all_journalled(reporter, telemetry):
    for number in range(3, 9):
        reporter.round_event(RoundEvent("round.aborted", number, {"reason": "no quorum: 2 of 4 members are alive"}))
    reporter.round_event(RoundEvent("round.aborted", 9, {"reason": "no commit within 600 s"}))
    said = [line.text for line in telemetry.board.log_lines() if "was given up" in line.text]
    assert [text.split(";")[0] for text in said] == [
        "round 3 was given up: no quorum: 2 of 4 members are alive",
        "round 9 was given up: no commit within 600 s",
    ]
    assert [row["round"] for row in telemetry.journal.events() if row["point"] == "round.aborted"] == [*range(3, 10)]


def test_warnings_of_single_rounds_are_all_said(reporter, telemetry):
    for number in (3, 4):
        reporter.round_event(RoundEvent("exchange.lost", number, {"peer": ME, "why": "reset"}))
    assert sum("dropped out" in line.text for line in telemetry.board.log_lines()) == 2


def test_status_of_an_ejected_node_gives_the_reason_and_the_remedy(reporter, telemetry):
    telemetry.state(State.EJECTED, Reason.MISCONDUCT_PROVEN)
    first, second, *_ = status_lines(as_json(telemetry.board.snapshot()))
    assert first.startswith("Ejected: Misconduct of this node was proven")
    assert second.startswith("To fix: ")
