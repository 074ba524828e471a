"""Serves the page, the API and the stream; see `guard` for who may ask.

The page's files are read once at the start and served from memory under their exact names, so that no path in a
request ever reaches the file system.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ..journal import Journal
from ..settings import NodeSettings
from ..status import StatusBoard
from .api import API_VERSION, Api
from .guard import Access, access_for, add_headers, guard
from .sockets import BACKLOG, listen
from .stream import Streams

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _http_logger() -> logging.Logger:
    """aiohttp's own messages, without a traceback for everybody who sends something else than HTTP."""
    http_logger = logger.getChild("http")
    http_logger.addFilter(_is_our_fault)
    return http_logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


@dataclass(frozen=True)
class PageFile:
    body: bytes
    content_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Name -> file of the page, from the installed package."""
    folder = resources.files(__package__ or "atoll.node.dashboard") / "static"
    found: dict[str, PageFile] = {}
    for entry in folder.iterdir():
        content_type = _TYPES.get(PurePosixPath(entry.name).suffix)
        if content_type:
            body = entry.read_bytes()
            found[entry.name] = PageFile(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def _file_handler(file: PageFile) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)

    return handler


def _slash_handler(prefix: str) -> Handler:
    """The page's links are relative, so it must be asked for with a final slash."""

    async def handler(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPPermanentRedirect(f"{prefix}/")

    return handler


def _add_routes(app: web.Application, api: Api, prefix: str) -> None:
    files = page_files()
    router = app.router
    router.add_get(f"{prefix}/", _file_handler(files["index.html"]))
    for name, file in files.items():
        router.add_get(f"{prefix}/static/{name}", _file_handler(file))
    for name, read in api.reads().items():
        router.add_get(f"{prefix}/api/v{API_VERSION}/{name}", api.read_handler(read))
    # No HEAD for the stream: it would be answered with a body that never ends.
    router.add_get(f"{prefix}/api/v{API_VERSION}/stream", api.stream, allow_head=False)
    router.add_post(f"{prefix}/api/v{API_VERSION}/stop", api.stop)
    router.add_get(f"{prefix}/livez", api.livez)
    router.add_get(f"{prefix}/readyz", api.readyz)
    router.add_get(f"{prefix}/metrics", api.metrics)


def build_app(api: Api, *, prefix: str = "") -> web.Application:
    """The application with all routes, under ``prefix`` too if a proxy keeps it."""
    app = web.Application(middlewares=[guard(api.access)], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_headers)
    _add_routes(app, api, "")
    if prefix:
        app.router.add_get(prefix, _slash_handler(prefix))
        _add_routes(app, api, prefix)
    return app


class DashboardServer:
    """One running dashboard. `start` binds, `close` ends every stream and connection within about a second."""

    def __init__(
        self,
        settings: NodeSettings,
        board: StatusBoard,
        journal: Journal | None = None,
        *,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises `UserError` if the settings would open the dashboard to the network without a token."""
        self._settings = settings
        self.access: Access = access_for(
            settings.dashboard_host, settings.dashboard_token_file, settings.dashboard_allowed_hosts
        )
        self._streams = Streams(board)
        self._api = Api(board, journal, self.access, self._streams, on_stop)
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Address for this machine's browser, with the final slash."""
        host = self._settings.dashboard_host
        name = "127.0.0.1" if host in ("localhost", "0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}{self._settings.dashboard_prefix}/"

    async def start(self) -> str:
        """Listen and return `url`. Raises `UserError` if the port cannot be had."""
        listeners = listen(self._settings.dashboard_host, self._settings.dashboard_port)
        self.port = listeners[0].getsockname()[1]
        app = build_app(self._api, prefix=self._settings.dashboard_prefix)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, handle_signals=False, logger=_http_logger()
        )
        await self._runner.setup()
        for listener in listeners:
            await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        return self.url

    async def close(self) -> None:
        """Idempotent. Streams get a goodbye first, so that pages say that the node stopped."""
        runner, self._runner = self._runner, None
        if runner:
            await self._streams.close()
            await runner.cleanup()
