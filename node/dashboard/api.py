"""The handlers of the API and the health checks. They read snapshots and the journal, nothing live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ..journal import Journal
from ..snapshot import as_json
from ..status import StatusBoard
from ..version import VERSION
from .guard import Access, require_json, require_token
from .metrics import CONTENT_TYPE, metrics_text
from .problems import Problem, json_response
from .stream import Streams

API_VERSION = 1
MAX_LIMIT = 2_000

Read = Callable[[web.Request], Awaitable[Any]]


def _number(request: web.Request, name: str, default: int, *, maximum: int = 2**62) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > maximum:
        fix = f"Give {name} as a whole number from 0 to {maximum}."
        raise Problem(400, "bad_query", f"The query value {name} cannot be used.", fix)
    return int(text)


def _limit(request: web.Request) -> int:
    return _number(request, "limit", 100, maximum=MAX_LIMIT)


@dataclass(frozen=True)
class Api:
    """What handlers need. ``on_stop`` asks the daemon to save, leave and end; it returns at once."""

    board: StatusBoard
    journal: Journal | None
    access: Access
    streams: Streams
    on_stop: Callable[[], None]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def status(self, _request: web.Request) -> Any:
        return as_json(self.board.snapshot())

    async def round(self, _request: web.Request) -> Any:
        return as_json(self.board.snapshot().round)

    async def peers(self, _request: web.Request) -> Any:
        return [as_json(peer) for peer in self.board.snapshot().peers]

    async def logs(self, request: web.Request) -> Any:
        return [as_json(line) for line in self.board.log_lines()[-_limit(request) :]]

    async def history(self, request: web.Request) -> Any:
        """The loss curves of this start, or any metric of the journal with ``?name=``."""
        name = request.query.get("name")
        if name is None:
            return [as_json(point) for point in self.board.loss()]
        limit = _limit(request)
        return await self._journal(lambda journal: journal.metrics(name, limit=limit))

    async def rounds(self, request: web.Request) -> Any:
        limit, before = _limit(request), _number(request, "before", 2**62)
        return await self._journal(lambda journal: journal.rounds(limit=limit, before=before))

    async def events(self, request: web.Request) -> Any:
        limit, after = _limit(request), _number(request, "after", 0)
        return await self._journal(lambda journal: journal.events(limit=limit, after=after))

    async def _journal(self, read: Callable[[Journal], Any]) -> Any:
        return [] if self.journal is None else await asyncio.to_thread(read, self.journal)

    async def spec(self, _request: web.Request) -> Any:
        return self.board.spec

    async def version(self, _request: web.Request) -> Any:
        paths = [f"/api/v{API_VERSION}/{name}" for name in (*self.reads(), "stream", "stop")]
        return {"version": VERSION, "api": API_VERSION, "paths": paths}

    def reads(self) -> dict[str, Read]:
        """Name -> handler of everything that is read with GET."""
        named: tuple[Read, ...] = (
            self.status,
            self.round,
            self.rounds,
            self.history,
            self.peers,
            self.events,
            self.logs,
            self.spec,
            self.version,
        )
        return {handler.__name__: handler for handler in named}

    def read_handler(self, read: Read) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            self.check_reader(request)
            return json_response(await read(request))

        return handler

    def check_reader(self, request: web.Request) -> None:
        if self.access.reads_need_token:
            require_token(request, self.access)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.check_reader(request)
        return await self.streams.handle(request)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def stop(self, request: web.Request) -> web.StreamResponse:
        """Ask the node to end. 202: it has begun to."""
        require_token(request, self.access)
        require_json(request)
        self.on_stop()
        return json_response({"stopping": True}, status=202)

    # --- health -------------------------------------------------------------------------------------------------------

    async def livez(self, _request: web.Request) -> web.StreamResponse:
        return json_response({"live": True})

    async def readyz(self, _request: web.Request) -> web.StreamResponse:
        status = self.board.snapshot().status
        if status.is_ready:
            return json_response({"ready": True, "state": status.state})
        raise Problem(503, status.reason or status.state, status.sentence, status.fix)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        self.check_reader(request)
        return web.Response(body=metrics_text(self.board), headers={"Content-Type": CONTENT_TYPE})
