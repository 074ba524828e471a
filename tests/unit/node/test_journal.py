"""The journal keeps what happened through kills, full disks and damage, within its bounds."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atoll.node.errors import UserError
from atoll.node.injected_faults import KillPoint, nan_round
from atoll.node.journal import Journal, JournalLimits

WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from atoll.node.journal import Journal
from atoll.node.injected_faults import KillPoint
journal = Journal(Path(sys.argv[1]), kill_point=KillPoint.from_environment())
for number in range(1, 100):
    journal.round(number, "committed", plan={"round": number})
    journal.point("round.voted", round=number)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_events_come_back_in_order_and_only_the_new_ones_on_request(path: Path) -> None:
    journal = Journal(path)
    journal.point("round.training", "started", round=1)
    journal.point("round.voted", round=1, level="warning", data={"ballot": 2})
    first, second = journal.events()
    assert (first["point"], first["text"], second["level"], second["data"]) == (
        "round.training",
        "started",
        "warning",
        {"ballot": 2},
    )
    assert journal.events(after=first["id"]) == [second]
    assert journal.events(limit=1) == [second]


def test_a_round_can_be_replayed_from_plan_and_record(path: Path) -> None:
    journal = Journal(path)
    journal.round(4, "committed", state_hash="ab", plan={"members": [1, 2]}, record='{"results": [3]}', data={"s": 1.5})
    journal.close()
    record = Journal(path).round_record(4)
    assert record is not None
    assert (record["plan"], record["record"], record["state_hash"]) == ({"members": [1, 2]}, {"results": [3]}, "ab")
    assert Journal(path).round_record(5) is None


def test_a_later_outcome_of_a_round_replaces_the_earlier_one(path: Path) -> None:
    journal = Journal(path)
    journal.round(1, "aborted")
    journal.round(1, "committed")
    assert [row["outcome"] for row in journal.rounds()] == ["committed"]
    assert journal.rounds(before=1) == []


def test_a_loss_that_is_not_finite_is_kept_as_unknown(path: Path) -> None:
    journal = Journal(path)
    for value in (1.0, math.nan, math.inf, -math.inf):
        journal.metric("loss", value, round=1)
    assert [row["value"] for row in journal.metrics("loss")] == [1.0, None, None, None]


def test_the_oldest_rows_go_when_the_bounds_are_reached(path: Path) -> None:
    journal = Journal(path, limits=JournalLimits(num_events=10, num_metrics=5))
    for number in range(600):
        journal.point("p", round=number)
    kept = journal.events(limit=2_000)
    assert len(kept) < 110
    assert kept[-1]["round"] == 599


def test_several_threads_write_at_once(path: Path) -> None:
    journal = Journal(path)
    threads = [
        threading.Thread(target=lambda: [journal.metric("loss", 1.0) for _ in range(50)] and None) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.metrics("loss")) == 200
    assert journal.num_lost == 0


def test_a_kill_at_a_named_point_leaves_the_proof_that_it_was_reached(path: Path) -> None:
    command = [sys.executable, "-P", "-c", WRITES_UNTIL_KILLED, str(path)]
    finished = subprocess.run(command, env={**os.environ, "ATOLL_KILL_AT": "round.voted:3"}, timeout=30)
    assert finished.returncode == -9
    journal = Journal(path)
    assert [event["round"] for event in journal.events()] == [1, 2, 3]
    assert [row["round"] for row in journal.rounds()] == [1, 2, 3]
    assert journal.moved_aside is None


def test_without_a_round_the_first_time_counts_and_other_points_do_not(path: Path) -> None:
    killed: list[str] = []
    journal = Journal(path, kill_point=KillPoint("round.applied"), kill=lambda: killed.append("now"))
    journal.point("round.voted", round=1)
    assert killed == []
    journal.point("round.applied", round=7)
    assert killed == ["now"]


def test_a_damaged_file_is_moved_aside_and_a_new_journal_begins(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)
    journal = Journal(path)
    journal.point("round.voted")
    assert journal.moved_aside is not None
    assert journal.moved_aside.read_bytes().startswith(b"this is no database")
    assert len(journal.events()) == 1


def test_a_journal_that_cannot_be_written_counts_what_it_loses_and_says_why(path: Path) -> None:
    journal = Journal(path)
    blocker = sqlite3.connect(path)
    blocker.execute("PRAGMA locking_mode=EXCLUSIVE")
    journal.close()
    journal.metric("loss", 1.0)
    journal.point("round.voted")
    assert journal.num_lost == 2
    assert str(path) in (journal.problem or "")
    blocker.close()


def test_a_folder_without_write_access_is_an_error_in_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"journal cannot be opened .*; .*--folder"):
        Journal(blocked / "journal.sqlite")


def test_the_round_of_an_injected_nan_comes_from_the_environment() -> None:
    assert nan_round({}) == 0
    assert nan_round({"ATOLL_NAN_AT": "3"}) == 3
    assert nan_round({"ATOLL_NAN_AT": "-1"}) == -1
