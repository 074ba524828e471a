"""Errors of the API as RFC 9457 problem documents, each with ``code``, ``reason`` and ``fix``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web


def finite(value: Any) -> Any:
    """The same value with every float that JSON cannot carry replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return value


def strict_json(value: Any) -> str:
    """JSON that every parser accepts: no NaN, no infinity; what has no JSON form is written as text."""
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=str)


def json_response(value: Any, *, status: int = 200) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=strict_json(value), status=status, content_type="application/json", headers=headers)


class Problem(Exception):
    """Raised by a handler; the outermost middleware turns it into the document."""

    def __init__(self, status: int, code: str, reason: str, fix: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.fix = fix
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.reason,
            "code": self.code,
            "reason": self.reason,
            "fix": self.fix,
        }
        headers = {"Cache-Control": "no-store", **self.headers}
        text = strict_json(body)
        return web.Response(text=text, status=self.status, content_type="application/problem+json", headers=headers)


def of_http_error(error: web.HTTPException) -> Problem:
    """What aiohttp itself refuses (unknown path, wrong method, body too large)."""
    code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status, "http_error")
    fix = {404: "See /api/v1/version for what this node serves.", 405: "Use the method that the Allow header names."}
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return Problem(error.status, code, error.reason, fix.get(error.status, "Correct the request."), headers)
