"""The command line: one line per error, exit codes by state, nothing heavy loaded for help."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.node.cli import COMMANDS, run
from atoll.node.dashboard.server import DashboardServer
from atoll.node.endpoint import Endpoint, read_endpoint, remove_endpoint, write_endpoint
from atoll.node.reasons import Reason, State
from atoll.node.settings import NodeSettings
from atoll.node.snapshot import NodeInfo, RunInfo
from atoll.node.status import StatusBoard

MAX_HELP_CPU_S = 0.3


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("ATOLL_", "XDG_")) and name != "ATOLL_TEST_RUN"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        (line,) = self.err.splitlines()
        return line


@pytest.fixture
def atoll(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> Said:
        code = run(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


# --- help and cost ----------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_so_does_no_argument_at_all(atoll) -> None:
    for arguments in (("--help",), ()):
        said = atoll(*arguments)
        assert said.code == 0
        assert all(f"  {name} " in said.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(atoll, name: str) -> None:
    said = atoll(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Usage: atoll {name}" in said.out


def _cpu_s(*command: str) -> float:
    """CPU of one process; the least of three, as the machine may be busy."""

    def once() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-P", *command], check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    return min(once() for _ in range(3))


def test_help_costs_little_beyond_the_interpreter() -> None:
    assert _cpu_s("-m", "atoll.node.cli", "--help") - _cpu_s("-c", "pass") <= MAX_HELP_CPU_S


@pytest.mark.parametrize("line", ["--help", "status", "version", "identity show", "run --help", "join --help"])
def test_no_command_that_trains_nothing_loads_torch_or_hivemind(line: str) -> None:
    script = (
        "import sys; from atoll.node.cli import run; run(sys.argv[1:]); "
        "print([name for name in ('torch', 'hivemind', 'rich') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *line.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["statsu"], 2, "No such command 'statsu'. Did you mean 'status'"),
        (["status", "--foo"], 2, "No such option: --foo"),
        (["join"], 2, "Missing argument"),
        (["run"], 2, "Missing command"),
        (["join", "gone.toml", "--yes"], 1, "gone.toml"),
        (["run", "validate", "gone.toml"], 1, "run spec: gone.toml: No such file or directory; "),
        (["stop"], 6, "no node is running: "),
        (["dashboard"], 6, "no node is running: "),
        (["status", "--config", "gone.toml"], 2, "settings file does not exist: gone.toml; "),
        (["demo", "--nodes", "0"], 2, "--nodes"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(atoll, arguments: list[str], code: int, expected: str) -> None:
    said = atoll(*arguments)
    assert said.code == code
    assert said.error.startswith("atoll: ")
    assert expected in said.error
    assert "Traceback" not in said.err


def test_with_json_the_error_is_json_too(atoll) -> None:
    said = atoll("stop", "--json")
    assert json.loads(said.error)["code"] == "stopped"
    assert set(json.loads(said.error)) == {"code", "error", "where", "fix"}


@pytest.mark.parametrize("content", [b"", b"\x08\x01\x12\x40half"])
def test_a_truncated_key_file_is_an_error_and_never_replaced(atoll, home: Path, content: bytes) -> None:
    path = home / "node" / "identity.key"
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    said = atoll("identity", "show", "--folder", str(path.parent))
    assert said.code == 1
    assert str(path) in said.error
    assert "restore it from a backup" in said.error
    assert path.read_bytes() == content


def test_several_mistakes_in_a_spec_are_a_line_each(atoll, home: Path) -> None:
    assert atoll("run", "new", "b.toml").code == 0
    spec = home / "b.toml"
    spec.write_text(spec.read_text().replace("num_steps", "num_stpes").replace("[outer]", "[outer]\nfoo = 1"))
    said = atoll("run", "validate", "b.toml")
    lines = said.err.splitlines()
    assert said.code == 1
    assert len(lines) == 2
    assert all(line.startswith("atoll: run spec: b.toml: unknown key ") for line in lines)


# --- runs and identity ------------------------------------------------------------------------------------------------


def test_a_run_is_made_signed_and_validated_as_the_readme_shows(atoll, home: Path) -> None:
    assert atoll("run", "new", "bible.toml").code == 0
    assert "not signed yet" in atoll("run", "validate", "bible.toml").out
    made = json.loads(atoll("run", "sign", "bible.toml", "--json").out)
    checked = json.loads(atoll("run", "validate", "bible.toml", "--json").out)
    assert checked["signed"] is True
    assert checked["run_id"] == made["run_id"]
    assert made["signer"] == json.loads(atoll("identity", "show", "--json").out)["peer_id"]


def test_an_existing_file_is_not_replaced_without_force(atoll, home: Path) -> None:
    (home / "b.toml").write_text("mine")
    said = atoll("run", "new", "b.toml")
    assert "file exists: b.toml; " in said.error
    assert (home / "b.toml").read_text() == "mine"
    assert atoll("run", "new", "b.toml", "--force").code == 0


def test_joining_asks_and_without_a_terminal_says_what_to_add(atoll, monkeypatch: pytest.MonkeyPatch) -> None:
    atoll("run", "new", "b.toml")
    atoll("run", "sign", "b.toml")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    said = atoll("join", "b.toml")
    assert said.code == 2
    assert "privacy  the run’s peers see your IP address" in said.err
    assert said.err.splitlines()[-1].endswith("add --yes")


def test_the_identity_shows_the_public_part_only(atoll, home: Path) -> None:
    said = atoll("identity", "show", "--folder", "node")
    key = (home / "node" / "identity.key").read_bytes()
    assert said.out.strip().startswith("12D3KooW")
    assert key[4:36].hex() not in said.out + said.err
    assert (home / "node" / "identity.key").stat().st_mode & 0o777 == 0o600


# --- the running node -------------------------------------------------------------------------------------------------


@dataclass
class Running:
    board: StatusBoard
    folder: Path
    loop: asyncio.AbstractEventLoop
    stops: list[str]

    def set_state(self, state: State, reason: Reason | None = None, **values: object) -> None:
        done = threading.Event()

        def change() -> None:
            self.board.set_state(state, reason, **values)
            done.set()

        self.loop.call_soon_threadsafe(change)
        assert done.wait(5)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A dashboard in a thread, as another process would have it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    settings = NodeSettings(folder=tmp_path / "node", dashboard_port=0)
    board, stops = StatusBoard(), list[str]()
    server = DashboardServer(settings, board, on_stop=lambda: stops.append("stop"))
    url = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    write_endpoint(settings.endpoint_path, url, server.access.token)
    board.update(node=NodeInfo(name="petrel", peer_id="12D3KooW9fKq2"), run=RunInfo(name="reef-1b"))
    yield Running(board, settings.folder, loop, stops)
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        (State.TRAINING, None, 0),
        (State.WAITING, Reason.WAITING_MIN_PEERS, 3),
        (State.PAUSED, Reason.USER_PAUSED, 4),
        (State.TRAINING, Reason.ALONE, 5),
    ],
)
def test_status_says_the_sentence_and_exits_by_state(
    atoll, running: Running, state: State, reason: Reason | None, code: int
) -> None:
    running.set_state(state, reason, round=3, device="the CPU", num_peers=1, min_peers=2)
    said = atoll("status", "--folder", str(running.folder))
    assert said.code == code
    assert running.board.snapshot().status.sentence in said.out
    assert "petrel …9fKq2" in said.out
    as_json = atoll("status", "--folder", str(running.folder), "--json")
    assert as_json.code == code
    assert json.loads(as_json.out)["status"]["state"] == state


def test_without_a_node_the_status_is_stopped(atoll) -> None:
    said = atoll("status")
    assert (said.code, said.out) == (6, "Stopped: This node is stopped.\n")
    assert json.loads(atoll("status", "--json").out)["status"]["exit_code"] == 6


def test_a_node_that_was_killed_leaves_a_record_that_fools_nobody(atoll, tmp_path: Path) -> None:
    write_endpoint(tmp_path / "node" / "endpoint.json", "http://127.0.0.1:9/", "t")
    assert atoll("status", "--folder", "node").code == 6
    assert "no node is running" in atoll("stop", "--folder", "node").error


def test_stop_asks_the_node_with_the_token_and_waits_for_its_end(
    atoll, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.node.commands.stop._is_running", lambda _pid: not running.stops)
    said = atoll("stop", "--folder", str(running.folder))
    assert (said.code, said.out) == (0, "Stopped. What was trained is saved.\n")
    assert running.stops == ["stop"]


def test_the_dashboards_link_carries_the_token_where_no_server_sees_it(atoll, running: Running) -> None:
    endpoint = read_endpoint(running.folder / "endpoint.json")
    assert endpoint is not None
    said = atoll("dashboard", "--folder", str(running.folder))
    assert said.out.strip() == f"{endpoint.url}#token={endpoint.token}"
    assert endpoint.token not in repr(endpoint)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"url": 5, "token": "t", "pid": 1}', "{}", '{"url": null}', "\x00"])
def test_a_damaged_endpoint_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoint.json").write_text(text)
    assert read_endpoint(tmp_path / "endpoint.json") is None


def test_the_endpoint_is_private_and_only_its_owner_removes_it(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    write_endpoint(path, "http://127.0.0.1:1/", "secret")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1}))
    remove_endpoint(path)
    assert read_endpoint(path) == Endpoint("http://127.0.0.1:1/", "secret", 1)
    write_endpoint(path, "http://127.0.0.1:1/", "secret")
    remove_endpoint(path)
    assert read_endpoint(path) is None
