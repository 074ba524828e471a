"""``/api/v1/stream``: a snapshot, then changes, as server-sent events whose ids a reader may resume from.

A ping every two seconds carries the node's clock; without one for five seconds the page calls itself stale, and no
proxy's idle limit is met. Updates go out five times a second at most, later values replacing earlier ones.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime

from aiohttp import web

from ..status import StatusBoard, Subscription, Update
from .problems import Problem, strict_json

PING_INTERVAL_S = 2.0
MIN_INTERVAL_S = 0.2
MAX_STREAMS = 64
WRITE_TIMEOUT_S = 30.0
"""A reader that takes nothing for so long is dropped; it may come back and resume."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def _event(kind: str, data: object, event_id: int | None = None) -> bytes:
    lines = [f"event: {kind}", f"data: {strict_json(data)}"]
    if event_id is not None:
        lines.insert(0, f"id: {event_id}")
    return ("\n".join(lines) + "\n\n").encode()


def _clock() -> dict[str, str]:
    return {"at": datetime.now(UTC).isoformat()}


def _resume_id(request: web.Request) -> int | None:
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


class Streams:
    """All open streams of one server."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closing = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One reader, until it leaves, stops reading, or the node stops."""
        if len(self._tasks) >= MAX_STREAMS or self._is_closing:
            fix = "Close other tabs of this page, or wait until the node has restarted."
            raise Problem(503, "too_many_streams", "No further stream can be opened.", fix, {"Retry-After": "10"})
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._serve(request)
        finally:
            self._tasks.discard(task)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS)
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        with suppress(ConnectionError, TimeoutError), self._board.subscribe() as subscription:
            await self._feed(response, subscription, _resume_id(request))
            await self._write(response, _event("bye", {"reason": "The node stops."}))
        return response

    async def _feed(self, response: web.StreamResponse, subscription: Subscription, last_id: int | None) -> None:
        # The clock goes first, so that the reader can place the times in what follows.
        await self._write(response, b"retry: 2000\n\n" + _event("ping", _clock()))
        last_ping = time.monotonic()
        while not self._is_closing and not self._board.is_closed:
            update = self._board.since(last_id)
            if update:
                last_id = update.id
                await self._write(response, _event(update.kind, update.data, update.id))
                await self._pause(subscription, update)
            else:
                await subscription.changed(max(0.0, last_ping + PING_INTERVAL_S - time.monotonic()))
            if time.monotonic() - last_ping >= PING_INTERVAL_S:
                await self._write(response, _event("ping", _clock()))
                last_ping = time.monotonic()
        if last := self._board.since(last_id):  # why the node stops
            await self._write(response, _event(last.kind, last.data, last.id))

    async def _pause(self, subscription: Subscription, update: Update) -> None:
        """Let changes gather; a board that is being closed ends the pause at once."""
        if not self._is_closing and not self._board.is_closed and update.kind == "change":
            await asyncio.sleep(MIN_INTERVAL_S)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        await asyncio.wait_for(response.write(data), WRITE_TIMEOUT_S)

    async def close(self, grace_s: float = 0.5) -> None:
        """Say goodbye to every reader, then cut those that do not read."""
        self._is_closing = True
        if not self._tasks:
            return
        self._board.wake()
        _, pending = await asyncio.wait(set(self._tasks), timeout=grace_s)
        for task in pending:
            task.cancel()
