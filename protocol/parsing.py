"""JSON from the network: how much a parser may make of it is bounded before anything is parsed.

One byte of JSON can become a hundred of memory: ``[]`` is an empty list, and each key that no model knows becomes an
entry of the error. So the separators are counted first, which costs a scan of the bytes, and a text with more of them
than the largest honest message is refused. Length is bounded by whoever reads the frame.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

MAX_ITEMS = 1 << 17
"""Items of all lists and objects together. A record of 300 members with its flags per span has 100,000."""
MAX_KEYS = 1 << 14
"""Keys of all objects together. A record of 1,024 members and as many spans has 14,000."""

M = TypeVar("M", bound=BaseModel)


class Unreadable(ValueError):
    """Bytes that are no value of the expected type, or more than one may hold. The message is one short line."""


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces. Floats use Python's shortest round-trip form; NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def split_canonical(raw: bytes, first: str, second: str) -> tuple[bytes, bytes]:
    """Canonical JSON of the two values of an object that has exactly these keys, in this order.

    Raises `Unreadable` for anything but the canonical form: what is signed, kept and shown as evidence cannot be padded
    with spaces, repeated keys or further fields.
    """
    check_shape(raw)
    try:
        content = json.loads(raw)
        values = canonical_json(content[first]), canonical_json(content[second])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(_one_line(str(error) or type(error).__name__)) from None
    if raw != b'{"%b":%b,"%b":%b}' % (first.encode(), values[0], second.encode(), values[1]):
        raise Unreadable("not in canonical form")
    return values


def check_shape(raw: bytes) -> None:
    """Raise `Unreadable` for a text with more items or keys than any honest message has."""
    num_items = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if num_items > MAX_ITEMS or raw.count(b":") > MAX_KEYS:
        raise Unreadable("too many values")


def parse(kind: type[M], raw: bytes) -> M:
    """The model that ``raw`` is the JSON of. Raises `Unreadable`; memory is bounded by the length of ``raw``."""
    check_shape(raw)
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise Unreadable(first_fault(error)) from None


def parse_any(adapter: TypeAdapter[Any], raw: bytes) -> Any:
    """As `parse`, for one of several models."""
    check_shape(raw)
    try:
        return adapter.validate_json(raw)
    except ValidationError as error:
        raise Unreadable(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Place and kind of the first fault in one line; `str` of an error with thousands of faults takes megabytes."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:40] for part in fault["loc"][:8])
    text = f"{place}: {fault['msg']}" if place else fault["msg"]
    return _one_line(text)


def _one_line(text: str) -> str:
    """Errors quote what a peer sent: no control characters, and not too long."""
    return "".join(character if character.isprintable() else " " for character in text[:200])
