"""Inputs: known bombs, and random changes of valid examples. All from a seed, so that a failure fails again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from atoll.protocol.parsing import MAX_ITEMS, MAX_KEYS

INTERESTING = (
    b"\0", b"\xff" * 4, b"-1", b"1e999", b"NaN", b"-0.0", b"1000000000000", b"9" * 400, b"1" + b"0" * 5000, b"null",
    b"true", b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b"\xe2\x80\xae", b"\xf0\x9f\x98\x80", b"[" * 300, b'{"a":' * 300,
    b"\x80\x04\x95\x10", b"%s%n", b"../" * 8, b"__class__", b"\x1b[2J", b"\r\n\r\n", b"=", b"/p2p/", b",", b":", b'"',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**53 + 1, 10**12, 2**64, 10**400, -0.0, 1e308, float("nan"), float("inf"), "", "\0",
    "\ud800", "x" * 5000, "00" * 32, [], {}, [[]] * 50, {"a": {"a": {}}}, "12D3KooW" + "1" * 44,
)  # fmt: skip

MOST_ITEMS, MOST_KEYS = MAX_ITEMS - 5000, MAX_KEYS - 1000
"""As many as a parser lets through beside those of the example itself: more are refused at a glance."""


def bombs(max_bytes: int) -> Iterator[bytes]:
    """Small causes of large effects, each as long as the parser's caller lets through."""
    size = max_bytes - 64
    yield b""
    yield b"\0" * size
    yield b"\xff" * size
    for opening in (b"[", b'{"a":', b"(", b"\x91", b"\x81\xa1a"):
        yield opening * (size // len(opening))
    for item in (b"[],", b"{},", b"0,", b"true,", b'"",', b"1e1,", b"null,", b"9" * 4299 + b","):
        yield b"[" + item * (size // len(item)) + b"0]"
    keys, position = [], 0
    while position < size:
        keys.append(b'"%x":0' % len(keys))
        position += len(keys[-1]) + 1
    yield b"{" + b",".join(keys[:-1]) + b"}"
    yield b'{"a":1,' + b'"a":1,' * (size // 6 - 2) + b'"a":2}'
    yield b'"' + "\U0001f600".encode() * (size // 4) + b'"'
    yield b'"' + b"\\u0000" * (size // 6) + b'"'
    yield b"0." + b"9" * size
    yield b"9" * size
    yield b"1" * size
    yield b"\n" * size
    yield b"a." * (size // 2) + b"b = 1"
    yield (0xFFFFFFFF).to_bytes(4, "big") + b"\0" * 16
    yield (0x7FFFFFFF).to_bytes(4, "little") * 4
    yield b"\xdd\xff\xff\xff\xff"  # msgpack: an array of four thousand million items
    yield b"\xc6\xff\xff\xff\xff"
    yield b"\x80\x04\x95\x23\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x08echo pwn\x94\x85\x94R\x94."


def in_place(example: bytes, rng: random.Random, max_bytes: int) -> Iterator[bytes]:
    """Bombs inside an otherwise valid JSON text: in place of each of some values."""
    try:
        content = json.loads(example)
    except (ValueError, RecursionError):
        return
    places = list(_places(content))
    room = max(64, max_bytes - len(example) - 64)
    fillers = (
        b"[" * 500,
        b"[" + b"0," * (room // 2 - 2) + b"0]",
        b"[" + b"0," * min(room // 2 - 2, MOST_ITEMS) + b"0]",
        b"[" + b"{}," * min(room // 3 - 2, MOST_ITEMS // 2) + b"{}]",
        b"{" + b",".join(b'"%x":0' % key for key in range(min(room // 10, MOST_KEYS))) + b"}",
        b"9" * 5000,
        b'"' + b"x" * (room - 2) + b'"',
        b"NaN",
    )
    for path in rng.sample(places, min(3, len(places))):
        marker = "@@@ here @@@"
        text = json.dumps(_replaced(content, path, marker), separators=(",", ":"), sort_keys=True).encode()
        for filler in fillers:
            yield text.replace(json.dumps(marker).encode(), filler, 1)


def mutated(examples: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random, max_bytes: int) -> bytes:
    """One random change, or several, of one of the examples."""
    data = rng.choice(examples) if examples else b""
    if rng.random() < 0.4 and (changed := _json_mutation(data, rng)) is not None:
        data = changed
    for _ in range(rng.choice((0, 1, 1, 2, 4)) if data else 1):
        data = _byte_mutation(data, (*INTERESTING, *tokens), examples, rng)
    return data[:max_bytes]


def _byte_mutation(data: bytes, tokens: Sequence[bytes], examples: Sequence[bytes], rng: random.Random) -> bytes:
    start = rng.randint(0, len(data))
    stop = min(len(data), start + rng.choice((0, 1, 2, 4, 8, 64, len(data))))
    match rng.randrange(7):
        case 0:
            return data[:start] + data[stop:]
        case 1:
            return data[:start] + rng.choice(tokens) + data[stop:]
        case 2:
            return data[:start] + rng.randbytes(rng.choice((1, 2, 4, 32))) + data[stop:]
        case 3:
            return data[:start] + data[start:stop] * rng.choice((2, 3, 100)) + data[stop:]
        case 4:
            other = rng.choice(examples) if examples else b""
            return data[:start] + other[rng.randint(0, len(other)) :]
        case 5 if start < len(data):
            return data[:start] + bytes((data[start] ^ (1 << rng.randrange(8)),)) + data[start + 1 :]
        case _:
            number = rng.choice((0, 1, 255, 2**31 - 1, 2**32 - 1, len(data)))
            return data[:start] + number.to_bytes(4, rng.choice(("big", "little"))) + data[start + 4 :]


def _json_mutation(data: bytes, rng: random.Random) -> bytes | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(content))
    changed = _replaced(content, rng.choice(places), rng.choice(VALUES)) if places else rng.choice(VALUES)
    if isinstance(changed, dict) and rng.random() < 0.2:
        changed = {**changed, rng.choice(("x", "kind", "__class__", "\0")): rng.choice(VALUES)}
    text = json.dumps(changed, separators=(",", ":"), sort_keys=rng.random() < 0.9, ensure_ascii=rng.random() < 0.5)
    return text.encode(errors="surrogatepass")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy
