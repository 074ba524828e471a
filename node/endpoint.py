"""Where a running node answers: a file with mode 0600 in its folder, and a small client for it.

The file holds the dashboard's address and token. It is written when the dashboard listens and removed when it stops; a
node that was killed leaves it behind, which the client notices because nobody answers.
"""

from __future__ import annotations

import http.client
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import UserError
from .reasons import EXIT_STOPPED

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Endpoint:
    """Address and token of a running node. The token is left out of `repr`."""

    url: str
    token: str
    pid: int

    def __repr__(self) -> str:
        return f"Endpoint({self.url}, pid {self.pid})"

    @property
    def link(self) -> str:
        """Opens the page with the right to stop the node. The token is in the fragment, which is never sent."""
        return f"{self.url}#token={self.token}"


def write_endpoint(path: Path, url: str, token: str) -> None:
    """Record a running node, replacing what an earlier start left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(Endpoint(url, token, os.getpid())), file)
    temporary.replace(path)


def remove_endpoint(path: Path) -> None:
    """Forget the record if it is this process' own."""
    endpoint = read_endpoint(path)
    if endpoint and endpoint.pid == os.getpid():
        with suppress(OSError):
            path.unlink()


def read_endpoint(path: Path) -> Endpoint | None:
    """The recorded node, or None if there is none or the record is damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        is_whole = all(isinstance(content[key], kind) for key, kind in (("url", str), ("token", str), ("pid", int)))
        return Endpoint(**content) if is_whole else None
    except FileNotFoundError:
        return None
    except PermissionError:
        todo = "run this as the user who started the node"
        raise UserError("the node's address cannot be read", str(path), todo, code="permission") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


class NodeStopped(UserError):
    """No node answers for this folder."""

    def __init__(self, folder: Path) -> None:
        todo = "start it with atoll join, or name another with --folder"
        super().__init__("no node is running", str(folder), todo, code="stopped", exit_code=EXIT_STOPPED)


def ask(path: Path, method: str, resource: str, *, body: Any = None) -> Any:
    """One request to the running node: ``ask(path, "GET", "api/v1/status")``.

    Raises `NodeStopped` if nobody answers, `UserError` with the node's own reason and fix if it refuses.
    """
    endpoint = read_endpoint(path)
    if endpoint is None:
        raise NodeStopped(path.parent)
    parts = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, parts.path + resource, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return _answer(response.status, response.read(), endpoint)
    except ConnectionError:
        raise NodeStopped(path.parent) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        todo = f"wait a moment; if it stays so, end process {endpoint.pid}"
        raise UserError(f"the node does not answer ({error})", endpoint.url, todo, code="no_answer") from None
    finally:
        connection.close()


def _answer(status: int, data: bytes, endpoint: Endpoint) -> Any:
    """What the node says; ValueError for what is none of its answers."""
    try:
        content = json.loads(data)
        if status < 400:
            return content
        reason, fix, code = (str(content[key]) for key in ("reason", "fix", "code"))
    except (KeyError, TypeError, RecursionError):
        raise ValueError(f"something else than a node answers, with status {status}") from None
    raise UserError(reason, endpoint.url, fix, code=code)
