"""The node's memory of what happened: events, rounds, metrics and receipts in one SQLite file, bounded in size.

Write-ahead logging with ``synchronous=NORMAL``: what `point` or `round` has returned from survives ``kill -9`` of this
process; a power cut may cost the last transactions but never the file. The round table keeps plan and commit as the
JSON that the peers agreed on, so that a run can be replayed from it.

A journal that cannot be written (full disk, lost volume) never stops training: the write is counted in
`Journal.num_lost`, the first cause is kept in `Journal.problem`, and the next write tries again. A file that is
damaged when it is opened is moved aside and a new one is begun; `Journal.moved_aside` names it.

All methods may be called from any thread.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UserError
from .injected_faults import KillPoint, kill_here

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unix_s REAL NOT NULL, point TEXT NOT NULL, round INTEGER,
    level TEXT NOT NULL, text TEXT NOT NULL, data TEXT);
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, unix_s REAL NOT NULL, outcome TEXT NOT NULL, state_hash TEXT, plan TEXT, record TEXT,
    data TEXT);
CREATE TABLE IF NOT EXISTS metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unix_s REAL NOT NULL, name TEXT NOT NULL, round REAL, tokens INTEGER,
    value REAL);
CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics (name, id);
CREATE TABLE IF NOT EXISTS receipts (
    round INTEGER NOT NULL, peer TEXT NOT NULL, unix_s REAL NOT NULL, data TEXT NOT NULL, PRIMARY KEY (round, peer));
"""
_SCHEMA_VERSION = 1
_PRUNE_EVERY = 512
"""Writes between two looks at the size of the tables."""


@dataclass(frozen=True)
class JournalLimits:
    """How much is kept; the oldest rows go first. The defaults come to about 60 MB at most."""

    num_events: int = 50_000
    num_rounds: int = 20_000
    num_metrics: int = 200_000
    num_receipts: int = 50_000
    text_chars: int = 2_000


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), default=str)


def _finite(value: float | None) -> float | None:
    """SQLite has no NaN: what is not finite is stored as NULL, and read back as None."""
    return value if value is not None and math.isfinite(value) else None


class Journal:
    """One SQLite file. Close it with `close`; a process that dies without closing loses nothing."""

    def __init__(
        self,
        path: Path,
        *,
        limits: JournalLimits | None = None,
        clock: Callable[[], float] = time.time,
        kill_point: KillPoint | None = None,
        kill: Callable[[], None] = kill_here,
    ) -> None:
        """Open or create. Raises `UserError` if the folder cannot be written."""
        self.path = path
        self.problem: str | None = None
        self.num_lost = 0
        self.moved_aside: Path | None = None
        self._limits = limits or JournalLimits()
        self._clock = clock
        self._kill_point = kill_point
        self._kill = kill
        self._lock = threading.RLock()
        self._num_writes = 0
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, read-only or unreadable: not damaged
                raise self._cannot_open(str(error)) from None
            self.moved_aside = self.path.with_name(f"{self.path.name}.damaged-{int(self._clock())}")
            self.path.rename(self.moved_aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            return self._connect()
        except OSError as error:
            raise self._cannot_open(error.strerror or str(error)) from None

    def _cannot_open(self, why: str) -> UserError:
        todo = "give this user write access to the folder, or choose another --folder"
        return UserError(f"journal cannot be opened ({why})", str(self.path), todo, code="journal")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, timeout=10)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA journal_size_limit=8388608")
            if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("damaged")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        connection.row_factory = sqlite3.Row
        return connection

    def close(self) -> None:
        """Flush and close. Idempotent; later writes are lost and counted."""
        with self._lock:
            self._connection.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def point(
        self,
        point: str,
        text: str = "",
        *,
        round: int | None = None,  # noqa: A002 - the field's name everywhere
        level: str = "info",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Record that a named point was reached, and die here if the environment asks for it."""
        row = (self._clock(), point, round, level, text[: self._limits.text_chars], _json(data))
        self._write("INSERT INTO events (unix_s, point, round, level, text, data) VALUES (?,?,?,?,?,?)", row)
        if self._kill_point and self._kill_point.is_due(point, round):
            self._kill()

    def round(
        self,
        number: int,
        outcome: str,
        *,
        state_hash: str | None = None,
        plan: Any = None,
        record: Any = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a round's outcome (``committed``, ``missed``, ``aborted``). A later call for it replaces the earlier.

        ``plan`` and ``record`` are JSON-able values, or JSON text as the peers agreed on it.
        """
        as_text = [value if isinstance(value, str) else _json(value) for value in (plan, record)]
        row = (number, self._clock(), outcome, state_hash, *as_text, _json(data))
        self._write("INSERT OR REPLACE INTO rounds VALUES (?,?,?,?,?,?,?)", row)

    def metric(self, name: str, value: float | None, *, round: float | None = None, tokens: int | None = None) -> None:  # noqa: A002
        """Record a figure. A value that is not finite is kept as an unknown one, not left out."""
        row = (self._clock(), name, round, tokens, _finite(value))
        self._write("INSERT INTO metrics (unix_s, name, round, tokens, value) VALUES (?,?,?,?,?)", row)

    def receipt(self, round_number: int, peer: str, data: Mapping[str, Any]) -> None:
        """Keep a signed receipt of a counted contribution."""
        row = (round_number, peer, self._clock(), _json(data))
        self._write("INSERT OR REPLACE INTO receipts VALUES (?,?,?,?)", row)

    def _write(self, statement: str, row: tuple[Any, ...]) -> None:
        with self._lock:
            try:
                self._connection.execute(statement, row)
                self._num_writes += 1
                if self._num_writes % _PRUNE_EVERY == 0:
                    self._prune()
            except sqlite3.Error as error:
                self.num_lost += 1
                self.problem = f"journal {self.path} cannot be written: {error}"
            else:
                self.problem = None

    def _prune(self) -> None:
        bounds = (
            ("events", "id", self._limits.num_events),
            ("rounds", "round", self._limits.num_rounds),
            ("metrics", "id", self._limits.num_metrics),
            ("receipts", "rowid", self._limits.num_receipts),
        )
        for table, key, num_kept in bounds:
            oldest = f"SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1 OFFSET ?"
            self._connection.execute(f"DELETE FROM {table} WHERE {key} <= ({oldest})", (num_kept,))

    @property
    def limits(self) -> JournalLimits:
        return self._limits

    # --- reading ------------------------------------------------------------------------------------------------------

    def events(self, *, limit: int = 100, after: int = 0) -> list[dict[str, Any]]:
        """The newest ``limit`` events with an id above ``after``, oldest first."""
        rows = self._read("SELECT * FROM events WHERE id > ? ORDER BY id DESC LIMIT ?", (after, limit))
        return [_decoded(row, "data") for row in reversed(rows)]

    def events_at(self, points: Sequence[str], *, limit: int = 100) -> list[dict[str, Any]]:
        """The newest ``limit`` events at these points, oldest first."""
        marks = ",".join("?" * len(points))
        rows = self._read(f"SELECT * FROM events WHERE point IN ({marks}) ORDER BY id DESC LIMIT ?", (*points, limit))
        return [_decoded(row, "data") for row in reversed(rows)]

    def rounds(self, *, limit: int = 100, before: int | None = None) -> list[dict[str, Any]]:
        """The newest ``limit`` rounds below ``before``, oldest first, without plan and record (see `round_record`)."""
        columns = "round, unix_s, outcome, state_hash, data"
        below = 2**62 if before is None else before
        rows = self._read(f"SELECT {columns} FROM rounds WHERE round < ? ORDER BY round DESC LIMIT ?", (below, limit))
        return [_decoded(row, "data") for row in reversed(rows)]

    def round_record(self, number: int) -> dict[str, Any] | None:
        """Everything about one round, plan and record as values, or None."""
        rows = self._read("SELECT * FROM rounds WHERE round = ?", (number,))
        return _decoded(rows[0], "data", "plan", "record") if rows else None

    def metrics(self, name: str, *, limit: int = 2_000) -> list[dict[str, Any]]:
        """The newest ``limit`` figures of that name, oldest first."""
        query = "SELECT unix_s, round, tokens, value FROM metrics WHERE name = ? ORDER BY id DESC LIMIT ?"
        return [dict(row) for row in reversed(self._read(query, (name, limit)))]

    def receipts(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """The newest ``limit`` receipts, oldest first."""
        rows = self._read("SELECT * FROM receipts ORDER BY round DESC, peer LIMIT ?", (limit,))
        return [_decoded(row, "data") for row in reversed(rows)]

    def _read(self, query: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()


def _decoded(row: sqlite3.Row, *json_columns: str) -> dict[str, Any]:
    result = dict(row)
    for column in json_columns:
        if result[column] is not None:
            result[column] = json.loads(result[column])
    return result
