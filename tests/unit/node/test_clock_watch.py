"""A clock that is away from the others' is said once, with the offset, and taken back when it is right (CLK-01..03)."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node.clock_watch import ClockWatch, tell
from atoll.node.journal import Journal
from atoll.node.status import StatusBoard
from atoll.node.telemetry import Telemetry

PATIENCE_S = 3.0


def said(*offsets_s: float | None) -> list[float]:
    """What is said of offsets that are looked at once a second."""
    watch = ClockWatch(PATIENCE_S)
    news = [watch.note(offset_s, float(now_s)) for now_s, offset_s in enumerate(offsets_s)]
    return [offset_s for offset_s in news if offset_s is not None]


@pytest.mark.parametrize("offset_s", [40.0, -40.0, 3600.0, -3600.0, 1.8e9])
def test_clk_01_a_lasting_offset_is_said_once_and_so_is_its_end(offset_s):
    assert said(*[offset_s] * 20, *[0.1] * 20) == [offset_s, 0.0]


def test_a_clock_that_jumps_again_is_said_again():
    assert said(*[3600.0] * 9, *[-3600.0] * 9) == [3600.0, -3600.0]


@pytest.mark.parametrize("offsets_s", [[9.0] * 20, [9.0, 11.0] * 20, [None] * 20])
def test_small_offsets_and_unknown_ones_are_nothing_to_say(offsets_s):
    assert said(*offsets_s) == []


def test_an_offset_around_the_limit_is_not_said_over_and_over():
    assert said(*[10.5] * 9, *[9.0, 11.0] * 20) == [10.5]


def test_clk_02_heartbeats_from_before_a_sleep_say_nothing_of_the_clock():
    assert said(0.0, -120.0, -119.0, 0.0, 0.0, 0.0, 0.0) == []


def test_the_alert_names_the_offset_and_its_direction_and_goes_when_the_clock_is_right(tmp_path: Path):
    board, journal = StatusBoard(), Journal(tmp_path / "journal.sqlite")
    telemetry = Telemetry(board, journal, json_lines=False)
    for offset_s, text in ((-40.0, "40 s ahead of"), (3600.0, "1 h 00 min behind")):
        tell(telemetry, offset_s)
        (alert,) = board.snapshot().alerts
        assert (alert.code, alert.severity) == ("clock_skew", "warning")
        assert alert.text.startswith(f"This machine’s clock is {text} the other peers’;")
        assert alert.fix.startswith("To fix:")
    tell(telemetry, None)
    assert len(board.snapshot().alerts) == 1
    tell(telemetry, 0.0)
    assert board.snapshot().alerts == ()
    journal.close()
