"""Where a node's facts go: snapshot, journal, log and, with ``--json``, one line per event on standard output.

The daemon says each fact once, here. Nothing in this module decides anything.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .journal import Journal
from .reasons import Reason, State
from .snapshot import Alert, LogLevel
from .status import StatusBoard, utc

logger = logging.getLogger("atoll")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def printable(text: str) -> str:
    """``text`` without characters that a terminal or a page would obey: escapes, line breaks, changes of direction."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


class Telemetry:
    """One node's voice. ``json_lines`` prints events for a program; the log on standard error is for people."""

    def __init__(self, board: StatusBoard, journal: Journal, *, json_lines: bool) -> None:
        self.board, self.journal = board, journal
        self._json_lines = json_lines

    def event(self, event: str, **values: Any) -> None:
        """One JSON line, if a program listens. One that has left (a closed pipe) is not told any more."""
        if not self._json_lines:
            return
        try:
            print(json.dumps({"event": event, **values}, allow_nan=False, default=str), flush=True)
        except BrokenPipeError:
            self._json_lines = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer goes nowhere

    def say(self, text: str, level: LogLevel = "info") -> None:
        """A line for people: log and dashboard. Parts of it may come from strangers: nothing in it moves a cursor."""
        text = printable(text)
        logger.log(_LEVELS[level], "%s", text)
        if level != "debug":
            self.board.log(text, level)

    def point(
        self, point: str, text: str, *, round_number: int | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """A named point of a round is reached. Journalled before anything that follows from it."""
        self.say(text, "debug")
        self.journal.point(point, text, round=round_number, data=data)

    def warn(self, text: str) -> None:
        """Something the owner should know; work goes on."""
        self.say(text, "warning")
        self.journal.point("warning", text, level="warning")
        self.event("warning", text=text)

    def state(
        self, state: State, reason: Reason | None = None, *, ends_in_s: float | None = None, **values: object
    ) -> None:
        """What the node does and why; journalled and logged when state or reason change."""
        before = self.board.snapshot().status
        ends_at = None if ends_in_s is None else time.time() + ends_in_s
        self.board.set_state(state, reason, ends_at_unix_s=ends_at, **values)
        now = self.board.snapshot().status
        if (before.state, before.reason, before.sentence) == (now.state, now.reason, now.sentence):
            return
        self.event("state", state=now.state, reason=now.reason, sentence=now.sentence, fix=now.fix)
        if (before.state, before.reason) != (now.state, now.reason):
            self.journal.point(f"state.{now.state}", now.sentence, data={"reason": now.reason})
        if now.reason is not None and before.reason != now.reason:
            self.say(now.sentence, now.severity)

    def alert(self, code: str, text: str, *, fix: str = "", is_error: bool = False) -> None:
        """Something that stays on the dashboard until `clear_alert`."""
        at = utc(time.time())
        if at is not None:
            self.board.alert(Alert(code=code, severity="error" if is_error else "warning", text=text, fix=fix, at=at))
        self.warn(text)

    def clear_alert(self, code: str) -> None:
        self.board.clear_alert(code)
