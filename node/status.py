"""Publishes the node's snapshot: one writer (the daemon), any number of readers (API, page, terminal).

Readers of the stream hold no queue of their own. Changes go into one ring of bounded length, a reader keeps a position
in it and takes everything since then at once, with later changes of a field replacing earlier ones. A reader that is
so slow that its position has left the ring gets a new snapshot. Ids increase for ever, also over restarts of the
node, so that an id from before a restart is recognised as too old.

Not thread-safe: call it on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from .reasons import Reason, State, explain, is_ready
from .snapshot import Alert, LogLevel, LogLine, LossKind, LossPoint, Snapshot, StateInfo, Value, as_json

RING_LENGTH = 1024
NUM_LOSS_POINTS = 2_000
"""Per curve. A curve that grows beyond keeps every second point, so that its beginning stays."""
NUM_LOG_LINES = 500


def utc(unix_s: float | None) -> datetime | None:
    """Aware UTC time of Unix seconds."""
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC)


@dataclass(frozen=True)
class Update:
    """What a reader gets: a ``snapshot`` or ``change`` with its id. ``data`` is JSON-able."""

    id: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class _Change:
    fields: tuple[str, ...] = ()
    loss: LossPoint | None = None
    line: LogLine | None = None


class StatusBoard:
    """The daemon calls `update`, `set_state`, `add_loss`, `log` and `alert`; readers `snapshot` and `subscribe`."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._snapshot = Snapshot()
        self._loss: dict[LossKind, list[LossPoint]] = {}
        self._lines: deque[LogLine] = deque(maxlen=NUM_LOG_LINES)
        self._ring: deque[_Change] = deque(maxlen=RING_LENGTH)
        self._last_id = int(clock() * 1e6)
        self._values: Mapping[str, object] = {}
        self._wakes: set[asyncio.Event] = set()
        self.is_closed = False
        self.spec: dict[str, Any] = {}
        """The run spec for ``/api/v1/spec``; set once."""

    # --- writing ------------------------------------------------------------------------------------------------------

    def update(self, **changes: Value | tuple[Value, ...]) -> None:
        """Replace whole fields of the snapshot. A field that does not differ is not published."""
        current = self._snapshot
        unknown = changes.keys() - Snapshot.model_fields.keys()
        if unknown:
            raise TypeError(f"no such field of Snapshot: {', '.join(sorted(unknown))}")
        differing = {name: value for name, value in changes.items() if getattr(current, name) != value}
        if differing:
            self._snapshot = current.model_copy(update=differing)
            self._publish(_Change(fields=tuple(differing)))

    def patch(self, field: str, **changes: Any) -> None:
        """Replace single values inside one field of the snapshot, validated: ``patch("training", step=12)``."""
        part: Value = getattr(self._snapshot, field)
        self.update(**{field: type(part).model_validate({**dict(part), **changes})})

    def set_state(
        self, state: State, reason: Reason | None = None, *, ends_at_unix_s: float | None = None, **values: object
    ) -> None:
        """Say what the node does and why. ``values`` fill the sentence's template (see `reasons`)."""
        before = self._snapshot.status
        self._values = values
        since = before.since if (before.state, before.reason) == (state, reason) else utc(self._clock())
        self.update(status=self._explained(state, reason, utc(ends_at_unix_s), since))

    def _explained(
        self, state: State, reason: Reason | None, ends_at: datetime | None, since: datetime | None
    ) -> StateInfo:
        eta_s = None if ends_at is None else max(0.0, ends_at.timestamp() - self._clock())
        said = explain(state, reason, self._values, eta_s)
        return StateInfo(
            state=state,
            reason=reason,
            sentence=said.sentence,
            live_sentence=said.live_sentence,
            timeless_sentence=said.timeless_sentence,
            fix=said.fix,
            severity=said.severity,
            is_normal=said.is_normal,
            is_ready=is_ready(state, reason),
            tone=said.tone,
            exit_code=said.exit_code,
            since=since,
            ends_at=ends_at,
        )

    def add_loss(
        self, kind: LossKind, round_number: float, value: float | None, *, tokens: int | None = None
    ) -> LossPoint:
        """Append a point to a curve. NaN and infinity are kept, as points without a value."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        point = LossPoint(kind=kind, round=round_number, tokens=tokens, at=at, value=value)
        curve = self._loss.setdefault(kind, [])
        curve.append(point)
        self._loss[kind] = _thinned(curve)
        self._publish(_Change(loss=point))
        return point

    def log(self, text: str, level: LogLevel = "info") -> None:
        """Append a line to the log. A repetition of the last line only raises its count."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        line = LogLine(at=at, level=level, text=text)
        if self._lines and (self._lines[-1].text, self._lines[-1].level) == (line.text, level):
            line = LogLine(at=at, level=level, text=text, num_repeats=self._lines.pop().num_repeats + 1)
        self._lines.append(line)
        self._publish(_Change(line=line))

    def alert(self, alert: Alert) -> None:
        """Raise an alert, or replace the one with the same code."""
        others = tuple(a for a in self._snapshot.alerts if a.code != alert.code)
        self.update(alerts=(*others, alert))

    def clear_alert(self, code: str) -> None:
        """Take an alert away; nothing happens if there is none with that code."""
        self.update(alerts=tuple(alert for alert in self._snapshot.alerts if alert.code != code))

    def restore_loss(self, points: list[LossPoint]) -> None:
        """Put the curve of earlier starts (from the journal) in front of what is there."""
        for point in reversed(points):
            self._loss.setdefault(point.kind, []).insert(0, point)
        self._loss = {kind: _thinned(curve) for kind, curve in self._loss.items()}
        self._ring.clear()
        self._publish(_Change(fields=("status",)))

    def close(self) -> None:
        """End every stream promptly."""
        self.is_closed = True
        self.wake()

    def _publish(self, change: _Change) -> None:
        self._last_id += 1
        self._ring.append(change)
        self.wake()

    def wake(self) -> None:
        """Let every reader look again, for example because the server closes."""
        for wake in self._wakes:
            wake.set()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def last_id(self) -> int:
        return self._last_id

    def snapshot(self) -> Snapshot:
        """The present snapshot, its sentence rendered for the present moment."""
        status = self._snapshot.status
        now = self._explained(status.state, status.reason, status.ends_at, status.since)
        return self._snapshot.model_copy(update={"status": now})

    def loss(self) -> tuple[LossPoint, ...]:
        return tuple(point for curve in self._loss.values() for point in curve)

    def log_lines(self) -> tuple[LogLine, ...]:
        return tuple(self._lines)

    def snapshot_update(self) -> Update:
        """Everything, as the first event of a stream."""
        data = as_json(self.snapshot())
        data["loss"] = [as_json(point) for point in self.loss()]
        data["log"] = [as_json(line) for line in self._lines]
        return Update(self._last_id, "snapshot", data)

    def since(self, last_id: int | None) -> Update | None:
        """What happened after ``last_id``: None if nothing, a snapshot if that is unknown or too long ago."""
        if last_id is None or not self._last_id - len(self._ring) <= last_id <= self._last_id:
            return self.snapshot_update()
        num_new = self._last_id - last_id
        if num_new == 0:
            return None
        return Update(self._last_id, "change", self._merged(list(self._ring)[-num_new:]))

    def _merged(self, changes: list[_Change]) -> dict[str, Any]:
        now = self.snapshot()
        fields = dict.fromkeys(name for change in changes for name in change.fields)
        data: dict[str, Any] = {name: _field_json(getattr(now, name)) for name in fields}
        loss = [as_json(change.loss) for change in changes if change.loss]
        lines = [as_json(change.line) for change in changes if change.line]
        return data | ({"loss": loss} if loss else {}) | ({"log": lines} if lines else {})

    def subscribe(self) -> Subscription:
        """A wake-up for one reader; use as a context manager."""
        return Subscription(self._wakes)


def _thinned(curve: list[LossPoint]) -> list[LossPoint]:
    """Every second point of a curve that is too long; the last point stays, and so does what was not finite."""
    if len(curve) <= NUM_LOSS_POINTS:
        return curve
    last = len(curve) - 1
    kept = [point for index, point in enumerate(curve) if index % 2 == 0 or index == last or _is_lost(point)]
    return kept[-NUM_LOSS_POINTS:]


def _is_lost(point: LossPoint) -> bool:
    return point.value is None or not math.isfinite(point.value)


def _field_json(value: Value | tuple[Value, ...]) -> Any:
    return [as_json(item) for item in value] if isinstance(value, tuple) else as_json(value)


class Subscription:
    """Lets one reader sleep until the board changes or closes."""

    def __init__(self, wakes: set[asyncio.Event]) -> None:
        self._wakes = wakes
        self._wake = asyncio.Event()

    def __enter__(self) -> Self:
        self._wakes.add(self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        self._wakes.discard(self._wake)

    async def changed(self, timeout_s: float) -> bool:
        """Wait for the next change; False if ``timeout_s`` passed without one."""
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            return False
        self._wake.clear()
        return True
