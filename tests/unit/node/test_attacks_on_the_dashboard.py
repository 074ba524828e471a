"""The dashboard's server against hostile requests and hostile names: always a small answer, never a 500."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.node.journal import Journal
from atoll.node.snapshot import PeerInfo, clip_name
from atoll.node.telemetry import Telemetry, printable
from atoll.node.view import names_of

from .test_dashboard_api import Node, running

PATHS = (
    "/../../../../etc/passwd",
    "/static/../journal.sqlite",
    "/static/..%2f..%2fjournal.sqlite",
    "/static/%2e%2e/%2e%2e/identity.key",
    "/static//etc/passwd",
    "/static/%00",
    "/api/v1/../../identity.key",
    "/api/v1/status/%2e%2e/stop",
    "/api/v1/history?name=%00",
    "/api/v1/history?name=%ff%fe",
    "/api/v1/history?name=%ed%a0%80",
    "/api/v1/history?name=" + "a" * 5000,
    "/api/v1/history?name=x'%20OR%201=1--",
    "/api/v1/history?name=x&limit=-1",
    "/api/v1/history?name=x&limit=%D9%A1",
    "/api/v1/rounds?before=" + "0" * 20 + "9" * 40,
    "/api/v1/rounds?before=" + "0" * 5000,
    "/api/v1/events?after=99999999999999999999",
    "/api/v1/events?limit=1e3",
    "//evil.example/",
    "/%",
    "/" + "a/" * 2000,
)


async def raw(node: Node, request: bytes) -> bytes:
    """What the server says to these very bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            return await reader.read(1 << 16)
    finally:
        writer.transport.abort()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


async def get(node: Node, path: str, *headers: bytes) -> bytes:
    lines = (f"GET {path} HTTP/1.1".encode(), f"Host: 127.0.0.1:{node.server.port}".encode(), *headers)
    return await raw(node, b"\r\n".join((*lines, b"Connection: close", b"", b"")))


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture):
    """What the server logged as its own fault."""
    caplog.set_level(logging.ERROR)
    return caplog


async def test_sec_05_no_path_reaches_a_file_and_none_breaks_the_server(tmp_path: Path, faults):
    (tmp_path / "identity.key").write_bytes(b"SECRET")
    async with running(tmp_path) as node:
        for path in PATHS:
            answer = await get(node, path)
            assert status_of(answer) in (200, 400, 403, 404, 405, 414), (path, answer[:200])
            assert b"SECRET" not in answer
            assert b"root:" not in answer
        assert status_of(await get(node, "/livez")) == 200
    assert not faults.records


async def test_hostile_headers_get_a_refusal(tmp_path: Path, faults):
    async with running(tmp_path) as node:
        for header in (
            b"Origin: http://[",
            b"Origin: http://[::1",
            b"Origin: null",
            b"Origin: http://\xff\xfe",
            b"Authorization: Bearer \xff\xfe\x80",
            b"Authorization: " + b"B" * 4000,
            b"Last-Event-ID: " + b"9" * 4000,
            b"If-None-Match: \xff",
            b"Cookie: " + b"a=b;" * 1000,
            b"Content-Length: -1",
            b"Content-Length: 99999999999999999999",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        ):
            assert status_of(await get(node, "/api/v1/status", header)) in (200, 400, 403), header
        for host in (b"evil.example", b"127.0.0.1@evil.example", b"[", b"", b"127.0.0.1:99999", b"\xff"):
            answer = await raw(node, b"GET /api/v1/status HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            assert status_of(answer) in (400, 403), (host, answer[:200])
    assert not faults.records


async def test_a_bad_token_stops_nothing_whatever_its_bytes(tmp_path: Path, faults):
    async with running(tmp_path) as node:
        for token in (b"\xff\xfe", b"", b"null", b"undefined", node.server.access.token[:-1].encode(), b"x" * 4000):
            request = (
                b"POST /api/v1/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer " + token + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
            )
            assert status_of(await raw(node, request)) == 401, token
        assert node.stops == []
    assert not faults.records


async def test_bodies_that_never_end_or_are_huge_are_cut(tmp_path: Path, faults):
    async with running(tmp_path) as node:
        request = (
            b"POST /api/v1/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer wrong\r\nContent-Length: 10000000000\r\n\r\n"
        )
        assert status_of(await raw(node, request + b"x" * 200_000)) == 401
        assert status_of(await get(node, "/livez")) == 200
        assert node.stops == []
    assert not faults.records


async def test_a_hundred_half_open_requests_do_not_keep_others_waiting(tmp_path: Path):
    async with running(tmp_path) as node:
        lames = [await asyncio.open_connection("127.0.0.1", node.server.port) for _ in range(100)]
        for _, writer in lames:
            writer.write(b"GET /api/v1/status HTTP/1.1\r\nHost: loc")
        async with asyncio.timeout(1):
            assert status_of(await get(node, "/livez")) == 200
        for _, writer in lames:
            writer.transport.abort()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_names_of_strangers_obey_nobody(name: str):
    shown = clip_name(name)
    assert all(character.isprintable() for character in shown)
    assert len(shown) <= 64
    assert printable(name).isprintable()


HOSTILE_NAMES = ("\x1b[31mred\x1b[0m", "a\r\nadmin: ok", "\x9b2J", "x" * 64, "‮evil", '"} 1\natoll_up 1', "{peer}")


async def test_hostile_names_reach_neither_log_nor_metrics_nor_stream_as_control_characters(tmp_path: Path, caplog):
    caplog.set_level(logging.DEBUG, logger="atoll")
    async with running(tmp_path) as node:
        telemetry = Telemetry(node.board, node.journal, json_lines=False)
        for name in HOSTILE_NAMES:
            node.board.update(peers=(PeerInfo(peer_id="12D3KooWtest", name=name, version=name),))
            telemetry.say(f"peer {name} is late", "warning")
            for path in ("/metrics", "/api/v1/peers", "/api/v1/logs"):
                body = (await get(node, path)).partition(b"\r\n\r\n")[2].decode()
                assert "\x1b" not in body
                assert "\natoll_up 1" not in body.replace("\natoll_up 1\n", "", 1)
            assert not any(set("\x1b\x9b\r\n") & set(record.getMessage()) for record in caplog.records)


def test_names_in_sentences_are_clipped():
    from types import SimpleNamespace

    heartbeat = SimpleNamespace(name="\x1b[2Jx" + "y" * 100)
    names = names_of(SimpleNamespace(peer="me", name="me"), {"12D3KooWabcde": SimpleNamespace(heartbeat=heartbeat)})  # type: ignore[arg-type, dict-item]
    assert names["12D3KooWabcde"] == ("[2Jx" + "y" * 100)[:64]  # type: ignore[index]


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 100_000])
def test_a_damaged_journal_is_moved_aside(tmp_path: Path, content: bytes):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(content)
    journal = Journal(path)
    journal.point("started")
    assert [event["point"] for event in journal.events()] == ["started"]
    journal.close()
