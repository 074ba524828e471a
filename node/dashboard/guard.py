"""Who may ask what: Host allow-list, Origin check, bearer token, and the headers of every answer.

The dashboard listens on loopback, where any web page that the user has open can send requests. A foreign page is kept
out by the Host header (DNS rebinding), by the Origin header (cross-site requests, every method) and, for anything
that changes state, by a token that only this user can read from a file.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..errors import EXIT_USAGE, UserError
from .problems import Problem, of_http_error

logger = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """The rules of one start. ``token`` is never logged or shown by `repr`."""

    hosts: frozenset[str]
    token: str
    reads_need_token: bool = False
    """Set if the page can be reached from other machines."""

    def __repr__(self) -> str:
        return f"Access(hosts={sorted(self.hosts)}, reads_need_token={self.reads_need_token})"


def is_loopback(host: str) -> bool:
    """Whether a bind address is reachable from this machine only."""
    return host in LOOPBACK_NAMES or host.startswith("127.")


def new_token() -> str:
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """The bearer token in a file. Raises `UserError` if it is missing, short or readable by others."""

    def refuse(what: str, todo: str) -> UserError:
        return UserError(what, str(path), todo, code="dashboard_token", exit_code=EXIT_USAGE)

    try:
        text = path.read_text(encoding="utf-8").strip()
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise refuse(f"dashboard token file: {error.strerror}", "create it with mode 0600") from None
    except UnicodeDecodeError:
        raise refuse("dashboard token file is not text", "write one line of text into it") from None
    if mode & 0o077:
        raise refuse(f"dashboard token file can be read by others (mode {mode:04o})", f"run: chmod 600 {path}")
    if len(text) < MIN_TOKEN_CHARS or not text.isprintable() or " " in text:
        raise refuse("dashboard token is too short", f"write at least {MIN_TOKEN_CHARS} characters without spaces")
    return text


def access_for(host: str, token_file: Path | None, allowed_hosts: tuple[str, ...]) -> Access:
    """Rules for a bind address. Raises `UserError` for an address beyond loopback without a token."""
    beyond_loopback = not is_loopback(host)
    if beyond_loopback and token_file is None:
        raise UserError(
            "dashboard would be open to the network",
            f"dashboard_host {host}",
            "name a token file with --dashboard-token-file, or keep localhost",
            code="dashboard_exposed",
            exit_code=EXIT_USAGE,
        )
    own = {host.lower()} if host not in ("0.0.0.0", "::", "") else set[str]()
    names = LOOPBACK_NAMES | own | {name.lower() for name in allowed_hosts}
    return Access(frozenset(names), read_token(token_file) if token_file else new_token(), beyond_loopback)


def host_name(authority: str) -> str | None:
    """Host of ``name:port`` or ``[v6]:port`` in lower case; None if it cannot be one."""
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == authority and not parts.path and "@" not in authority else None


def _check_host(request: web.Request, access: Access) -> None:
    names = request.headers.getall("Host", [])
    if len(names) == 1 and host_name(names[0]) in access.hosts:
        return
    fix = "Ask for localhost, or add the name to dashboard_allowed_hosts in this node's settings."
    raise Problem(403, "foreign_host", "This node does not answer under that name.", fix)


def _check_origin(request: web.Request, access: Access) -> None:
    """Any method: a request that another site's page sends carries its Origin."""
    origin = request.headers.get("Origin")
    if origin is not None and not _is_own_origin(origin, request.headers["Host"], access):
        fix = "Open the dashboard itself; other sites cannot use its API."
        raise Problem(403, "foreign_origin", "The request comes from a page of another site.", fix)


def _is_own_origin(origin: str, host: str, access: Access) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    if parts.netloc.lower() == host.lower():
        return True
    # Behind a proxy the Host is often the proxy's upstream name; only names that the settings add may differ.
    return parts.hostname in access.hosts - LOOPBACK_NAMES


def has_token(request: web.Request, access: Access) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = given.strip().encode(errors="surrogateescape")
    return scheme.lower() == "bearer" and hmac.compare_digest(token, access.token.encode())


def require_token(request: web.Request, access: Access) -> None:
    if not has_token(request, access):
        fix = "Send Authorization: Bearer with the token of this node; atoll dashboard prints a link that has it."
        challenge = {"WWW-Authenticate": 'Bearer realm="atoll"'}
        raise Problem(401, "no_token", "This needs the node's token.", fix, headers=challenge)


def require_json(request: web.Request) -> None:
    """A page of another site cannot send this type without being asked first (CORS preflight)."""
    if request.content_type != "application/json":
        raise Problem(415, "not_json", "The body must be JSON.", "Send Content-Type: application/json.")


def guard(access: Access) -> Middleware:
    """Middleware: checks, then the handler, then problem documents and security headers."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_host(request, access)
            _check_origin(request, access)
            return await handler(request)
        except Problem as problem:
            return problem.response()
        except web.HTTPRedirection:
            raise
        except web.HTTPException as error:
            return of_http_error(error).response()
        except Exception:
            logger.exception("dashboard: %s %s failed", request.method, request.path)
            fix = "This is a fault of atoll; the node goes on. See the log."
            return Problem(500, "internal", "The node could not answer.", fix).response()

    return middleware


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """``on_response_prepare`` signal: also covers streams and errors."""
    response.headers.update(_HEADERS)
    response.headers.popall("Server", None)
