"""The dashboard's API: what it answers, to whom, and that it ends promptly. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atoll.node.dashboard import stream as stream_module
from atoll.node.dashboard.guard import host_name, read_token
from atoll.node.dashboard.server import DashboardServer
from atoll.node.dashboard.sockets import listen
from atoll.node.errors import UserError
from atoll.node.journal import Journal
from atoll.node.reasons import Reason, State
from atoll.node.settings import NodeSettings
from atoll.node.snapshot import PeerInfo, TrainingInfo
from atoll.node.status import StatusBoard

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")


@dataclass
class Node:
    """A dashboard without a daemon."""

    server: DashboardServer
    board: StatusBoard
    journal: Journal
    client: aiohttp.ClientSession
    stops: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any, aiohttp.ClientResponse]:
        async with self.client.request(method, self.server.url + path, **options) as response:
            text = await response.text()
            try:
                content = json.loads(text, parse_constant=_refuse_constant)
            except json.JSONDecodeError:
                content = text
            return response.status, content, response

    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.access.token}"}


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Node]:
    board, journal = StatusBoard(), Journal(folder / "journal.sqlite")
    stops: list[str] = []
    server = DashboardServer(
        NodeSettings(folder=folder, dashboard_port=0, **settings), board, journal, on_stop=lambda: stops.append("stop")
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            yield Node(server, board, journal, client, stops)
    finally:
        await server.close()
        journal.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(tmp_path) as node:
        yield node


# --- what it answers --------------------------------------------------------------------------------------------------


async def test_status_is_the_snapshot(node: Node) -> None:
    node.board.set_state(State.TRAINING, round=3, device="the CPU")
    status, content, response = await node.ask("GET", "api/v1/status")
    assert status == 200
    assert content["status"]["sentence"] == "Training for round 3 on the CPU."
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", ["status", "round", "rounds", "history", "peers", "events", "logs", "spec", "version"])
async def test_every_read_answers_with_json(node: Node, name: str) -> None:
    status, content, _ = await node.ask("GET", f"api/v1/{name}")
    assert status == 200
    assert isinstance(content, dict | list)


async def test_journal_reads_page_and_refuse_nonsense(node: Node) -> None:
    for number in range(1, 6):
        node.journal.round(number, "committed")
        node.journal.metric("validation_loss", 2.0 / number, round=number)
    _, rounds, _ = await node.ask("GET", "api/v1/rounds?limit=2&before=5")
    assert [row["round"] for row in rounds] == [3, 4]
    _, history, _ = await node.ask("GET", "api/v1/history?name=validation_loss")
    assert len(history) == 5
    for query in ("limit=-1", "limit=x", "limit=999999", "before=1e5"):
        status, problem, _ = await node.ask("GET", f"api/v1/rounds?{query}")
        assert (status, problem["code"]) == (400, "bad_query")


async def test_numbers_that_json_cannot_carry_become_null_everywhere(node: Node) -> None:
    node.board.update(training=TrainingInfo(loss=math.nan, gradient_norm=math.inf))
    node.board.add_loss("local", 1.0, -math.inf)
    node.journal.metric("loss", math.nan)
    node.journal.point("p", data={"norm": None})
    for path in ("status", "history", "history?name=loss", "events"):
        status, _, _ = await node.ask("GET", f"api/v1/{path}")
        assert status == 200
    _, content, _ = await node.ask("GET", "api/v1/status")
    assert content["training"]["loss"] is None


async def test_health_says_whether_the_node_lives_and_is_where_it_should_be(node: Node) -> None:
    assert (await node.ask("GET", "livez"))[0] == 200
    status, problem, response = await node.ask("GET", "readyz")
    assert (status, problem["code"], response.content_type) == (503, "starting", "application/problem+json")
    node.board.set_state(State.WAITING, Reason.WAITING_MIN_PEERS, num_peers=1, min_peers=2)
    assert (await node.ask("GET", "readyz"))[0] == 200
    node.board.set_state(State.CONNECTING, Reason.SEEDS_UNREACHABLE, num_seeds=1, causes="refused")
    status, problem, _ = await node.ask("GET", "readyz")
    assert (status, problem["code"]) == (503, "seeds_unreachable")
    assert problem["fix"].startswith("To fix: ")


async def test_metrics_leave_out_what_is_unknown(node: Node) -> None:
    node.board.update(training=TrainingInfo(tokens_per_s=4123.0), peers=(PeerInfo(peer_id="p", state="done"),))
    _, text, response = await node.ask("GET", "metrics")
    assert response.content_type == "text/plain"
    assert "atoll_tokens_per_second 4123.0" in text
    assert 'atoll_state{state="starting"} 1.0' in text
    assert "atoll_peers 1.0" in text
    assert "atoll_validation_loss" not in text


async def test_what_does_not_exist_is_a_problem_document(node: Node) -> None:
    for path, method, expected in (("api/v1/nothing", "GET", 404), ("api/v1/status", "DELETE", 405)):
        status, problem, response = await node.ask(method, path)
        assert (status, response.content_type) == (expected, "application/problem+json")
        assert {"type", "title", "status", "detail", "code", "reason", "fix"} <= set(problem)


# --- the page ---------------------------------------------------------------------------------------------------------


async def test_the_page_and_all_its_files_come_from_the_node_with_strict_headers(node: Node) -> None:
    _, page, response = await node.ask("GET", "")
    assert response.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "http://" not in page
    assert "https://" not in page
    assert 'style="' not in page
    assert "<script>" not in page
    for name in ("app.js", "style.css", "atoll.svg"):
        status, _, found = await node.ask("GET", f"static/{name}")
        assert status == 200
        etag = found.headers["ETag"]
        assert (await node.ask("GET", f"static/{name}", headers={"If-None-Match": etag}))[0] == 304


def test_no_script_of_the_page_writes_markup_or_styles() -> None:
    static = Path(stream_module.__file__).parent / "static"
    for script in static.glob("*.js"):
        text = script.read_text()
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", ".style.", "eval("):
            assert forbidden not in text, f"{forbidden} in {script.name}"


@pytest.mark.parametrize(
    "path",
    [
        "static/../api.py",
        "static/..%2fapi.py",
        "static/%2e%2e/%2e%2e/settings.py",
        "static//etc/passwd",
        "%2fetc%2fpasswd",
        "api/v1/logs/../../../etc/passwd",
        "static/.",
        "static/",
    ],
)
async def test_no_path_reaches_a_file_that_is_not_the_pages(node: Node, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.split()[1] in (b"400", b"403", b"404")
    assert b"root:" not in answer


async def test_behind_a_proxy_that_keeps_its_prefix_everything_is_there_too(tmp_path: Path) -> None:
    async with running(tmp_path, dashboard_prefix="/node1") as node:
        assert node.server.url.endswith("/node1/")
        for path in ("", "static/app.js", "api/v1/status", "livez"):
            assert (await node.ask("GET", path))[0] == 200
        bare = node.server.url.removesuffix("/")
        async with node.client.get(bare, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (308, "/node1/")


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "[::2]", "a@localhost"]
)
@pytest.mark.parametrize("path", ["", "api/v1/status", "api/v1/stream", "metrics", "livez", "static/app.js"])
async def test_a_foreign_host_header_gets_403(node: Node, host: str, path: str) -> None:
    status, problem, _ = await node.ask("GET", path, headers={"Host": host})
    assert status in (400, 403)
    assert problem["code"] == "foreign_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
async def test_loopback_by_any_name_is_answered(node: Node, host: str) -> None:
    assert (await node.ask("GET", "api/v1/status", headers={"Host": host}))[0] == 200


async def test_a_name_that_the_settings_allow_is_answered_for_host_and_origin(tmp_path: Path) -> None:
    async with running(tmp_path, dashboard_allowed_hosts=("node.example",)) as node:
        assert (await node.ask("GET", "api/v1/status", headers={"Host": "node.example"}))[0] == 200
        headers = {**node.token(), "Origin": "https://node.example"}
        assert (await node.ask("POST", "api/v1/stop", json={}, headers=headers))[0] == 202


@pytest.mark.parametrize("method", [*WRITE_METHODS, "GET"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "file://"])
async def test_a_foreign_origin_is_refused_whatever_the_method_even_with_the_token(
    node: Node, method: str, origin: str
) -> None:
    """SEC-07."""
    status, problem, _ = await node.ask(method, "api/v1/stop", json={}, headers={**node.token(), "Origin": origin})
    assert (status, problem["code"]) == (403, "foreign_origin")
    assert node.stops == []


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Basic x", "Bearer"])
async def test_a_write_without_the_token_gets_401_and_changes_nothing(node: Node, given: str) -> None:
    headers = {"Authorization": given} if given else {}
    status, problem, response = await node.ask("POST", "api/v1/stop", json={}, headers=headers)
    assert (status, problem["code"]) == (401, "no_token")
    assert "Bearer" in response.headers["WWW-Authenticate"]
    assert node.stops == []


async def test_a_write_is_json_only_and_reading_changes_nothing(node: Node) -> None:
    """SEC-07."""
    assert (await node.ask("POST", "api/v1/stop", data="x", headers=node.token()))[0] == 415
    assert (await node.ask("GET", "api/v1/stop", headers=node.token()))[0] == 405
    assert node.stops == []
    own = {**node.token(), "Origin": node.server.url.removesuffix("/")}
    status, content, _ = await node.ask("POST", "api/v1/stop", json={}, headers=own)
    assert (status, content) == (202, {"stopping": True})
    assert node.stops == ["stop"]


async def test_a_body_that_is_too_large_is_refused(node: Node) -> None:
    assert (await node.ask("POST", "api/v1/stop", json={"x": "y" * 100_000}, headers=node.token()))[0] in (202, 413)


def token_file(folder: Path, text: str = "a-long-enough-token", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_beyond_loopback_without_a_token_is_refused_before_it_is_bound(host: str) -> None:
    """SEC-06."""
    with pytest.raises(UserError, match=r"open to the network: .*--dashboard-token-file"):
        DashboardServer(NodeSettings(folder=Path("/nowhere"), dashboard_host=host), StatusBoard())


async def test_beyond_loopback_reading_needs_the_token_too_but_not_the_health_checks(tmp_path: Path) -> None:
    async with running(tmp_path, dashboard_host="0.0.0.0", dashboard_token_file=token_file(tmp_path)) as node:
        for path in ("api/v1/status", "api/v1/stream", "metrics"):
            assert (await node.ask("GET", path))[0] == 401
        assert (await node.ask("GET", "api/v1/status", headers=node.token()))[0] == 200
        assert (await node.ask("GET", "livez"))[0] == 200


def test_a_token_file_must_be_private_and_long_enough(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path)) == "a-long-enough-token"
    with pytest.raises(UserError, match=r"read by others \(mode 0644\).*chmod 600"):
        read_token(token_file(tmp_path, mode=0o644))
    with pytest.raises(UserError, match="too short"):
        read_token(token_file(tmp_path, "short"))
    with pytest.raises(UserError, match="No such file"):
        read_token(tmp_path / "gone")


async def test_the_token_is_in_no_answer_and_no_text_form(node: Node) -> None:
    token = node.server.access.token
    assert token not in repr(node.server.access)
    for path in ("", "api/v1/status", "api/v1/version", "api/v1/logs", "metrics"):
        assert token not in str((await node.ask("GET", path))[1])


@pytest.mark.parametrize(
    ("authority", "host"),
    [("localhost:80", "localhost"), ("[::1]:80", "::1"), ("a:b", None), ("x@localhost", None), ("localhost/x", None)],
)
def test_host_names_are_taken_apart_strictly(authority: str, host: str | None) -> None:
    assert host_name(authority) == host


# --- sockets ----------------------------------------------------------------------------------------------------------


def has_ipv6_loopback() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])
def test_both_families_share_one_port(host: str) -> None:
    """NET-09."""
    listeners = listen(host, 0)
    ports = {listener.getsockname()[1] for listener in listeners}
    assert len(ports) == 1
    assert len(listeners) == (2 if has_ipv6_loopback() else 1)
    for listener in listeners:
        listener.close()


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no IPv6 here")
async def test_the_dashboard_answers_on_both_loopback_addresses(node: Node) -> None:
    """NET-08."""
    for host in ("127.0.0.1", "[::1]"):
        async with node.client.get(f"http://{host}:{node.server.port}/livez") as response:
            assert response.status == 200


def test_a_port_in_use_is_named_with_its_option_if_it_was_asked_for() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"port is in use: localhost:{port}; .*--dashboard-port"):
            listen("localhost", port)


def test_without_a_wish_a_free_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """NET-10."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr("atoll.node.dashboard.sockets.DEFAULT_DASHBOARD_PORT", taken)
        listeners = listen("localhost", None)
        assert listeners[0].getsockname()[1] != taken
        for listener in listeners:
            listener.close()


# --- the stream -------------------------------------------------------------------------------------------------------


class Reader:
    """Reads server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def event(self, wanted: str | None = None) -> dict[str, Any]:
        """The next event that is no ping, or the next of a kind."""
        fields: dict[str, Any] = {}
        while line := (await asyncio.wait_for(self._response.content.readline(), 5)).decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields.get("event") and (fields["event"] == wanted or (wanted is None and fields["event"] != "ping")):
                return {**fields, "data": json.loads(fields["data"])}
            else:
                fields = {}
        return {"event": "end"}


@asynccontextmanager
async def stream(node: Node, **headers: str) -> AsyncIterator[Reader]:
    async with node.client.get(node.server.url + "api/v1/stream", headers=headers) as response:
        assert response.content_type == "text/event-stream"
        yield Reader(response)


async def test_a_stream_begins_with_the_clock_then_a_snapshot_then_changes(node: Node) -> None:
    async with stream(node) as reader:
        assert "at" in (await reader.event("ping"))["data"]
        first = await reader.event()
        assert first["event"] == "snapshot"
        node.board.patch("training", step=7)
        change = await reader.event()
        assert (change["event"], change["data"]["training"]["step"]) == ("change", 7)
        assert int(change["id"]) > int(first["id"])


async def test_a_broken_stream_resumes_where_it_was(node: Node) -> None:
    async with stream(node) as reader:
        last_id = (await reader.event())["id"]
    node.board.log("while nobody listened")
    async with stream(node, **{"Last-Event-ID": last_id}) as reader:
        change = await reader.event()
    assert change["event"] == "change"
    assert change["data"]["log"][0]["text"] == "while nobody listened"


async def test_nonsense_as_last_id_gets_a_snapshot(node: Node) -> None:
    for nonsense in ("x", "-1", "9" * 40, "٣"):
        async with stream(node, **{"Last-Event-ID": nonsense}) as reader:
            assert (await reader.event())["event"] == "snapshot"


async def test_an_idle_stream_pings_well_within_any_proxys_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_module.PING_INTERVAL_S < 5
    monkeypatch.setattr(stream_module, "PING_INTERVAL_S", 0.05)
    async with stream(node) as reader:
        await reader.event()
        for _ in range(3):
            assert (await reader.event("ping"))["event"] == "ping"


async def test_many_changes_arrive_merged(node: Node) -> None:
    async with stream(node) as reader:
        await reader.event()
        for step in range(1, 201):
            node.board.patch("training", step=step)
            node.board.add_loss("local", step / 100, 1.0)
        num_points, step = 0, 0
        while step < 200:
            data = (await reader.event())["data"]
            step, num_points = data["training"]["step"], num_points + len(data["loss"])
        assert num_points == 200


async def test_closing_says_goodbye_and_does_not_wait_for_open_streams(node: Node) -> None:
    loop = asyncio.get_running_loop()
    async with stream(node) as reader, stream(node) as other:
        await reader.event()
        await other.event()
        began = loop.time()
        await node.server.close()
        assert loop.time() - began < 2
        assert (await reader.event())["event"] == "bye"
        assert (await other.event())["event"] == "bye"


async def test_too_many_streams_are_refused_with_a_reason(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_STREAMS", 1)
    async with stream(node) as reader:
        await reader.event()
        status, problem, response = await node.ask("GET", "api/v1/stream")
        assert (status, problem["code"]) == (503, "too_many_streams")
        assert "Retry-After" in response.headers
