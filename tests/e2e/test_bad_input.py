"""What a user can get wrong is refused in one clear line, with nothing half-done, through the real command line."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.node.demo import free_port
from atoll.protocol.identity import Identity
from atoll.protocol.spec import sign

from .lab import Event, Node, run_atoll, swarm

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A signed run with one listed node."""
    with swarm(tmp_path_factory.mktemp("run"), 1, num_rounds=0) as nodes:
        yield nodes[0]


@pytest.fixture
def node(run: Node, tmp_path: Path) -> Node:
    """A node that may join the run, not started, with a folder that the test may spoil."""
    return replace(run, folder=shutil.copytree(run.folder, tmp_path / "node"))


def join(node: Node, *extra: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    arguments = ("--folder", str(folder or node.folder), "--host", node.host, "--port", str(node.port), "--yes")
    return run_atoll("join", str(node.spec_path), *arguments, "--dashboard-port", "0", *extra, check=False)


def error_lines(finished: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines on standard error that are not the log of a node that was starting."""
    assert finished.returncode not in (0, -6, -11)
    assert "Traceback" not in finished.stderr
    log_line = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ (DEBUG|INFO|WARNING) ")
    return [line for line in finished.stderr.splitlines() if not log_line.match(line)]


def edit(node: Node, before: str, after: str) -> None:
    text = node.spec_path.read_text()
    assert before in text
    node.spec_path.write_text(text.replace(before, after, 1))


def sign_blindly(node: Node) -> None:
    """As the operator's own, other version of atoll would."""
    text = node.spec_path.read_text().partition("[signature]")[0]
    operator = Identity.load(node.folder / "identity.key")
    text = re.sub("^operators = .*$", f'operators = ["{operator.peer_id}"]', text, flags=re.MULTILINE)
    node.spec_path.write_text(sign(text, operator))


FAULTY_SPECS = {
    "unknown key": ('name = "test"', 'name = "test"\ncolour = "red"', "colour"),
    "wrong signature": ("lr = 0.004", "lr = 0.005", "signature"),
    "other protocol version": ("protocol_version = 1", "protocol_version = 2", "protocol_version"),
    "no TOML": ("\n[model]", "\n[model", "line "),
    "cut in the middle": ("\n[exchange]", '\n"', "line "),
}


@pytest.mark.parametrize(("before", "after", "named"), FAULTY_SPECS.values(), ids=FAULTY_SPECS)
def test_a_faulty_spec_is_refused_in_one_line_before_anything_is_made(
    node: Node, tmp_path: Path, before: str, after: str, named: str
) -> None:
    edit(node, before, after)
    assert_refused(node, tmp_path / "fresh", named)


def test_a_signed_spec_with_a_model_field_that_this_version_does_not_know_is_refused(
    node: Node, tmp_path: Path
) -> None:
    edit(node, "\ndim = 64", "\nnum_wings = 2\ndim = 64")
    sign_blindly(node)
    assert_refused(node, tmp_path / "fresh", "model.num_wings")


def assert_refused(node: Node, fresh: Path, named: str) -> None:
    for finished in (join(node, folder=fresh), run_atoll("run", "validate", str(node.spec_path), check=False)):
        lines = error_lines(finished)
        assert len(lines) == 1, lines
        assert lines[0].startswith("atoll: ")
        assert named in lines[0]
        assert str(node.spec_path) in lines[0]
        assert finished.stdout == ""
    assert not fresh.exists()


def test_every_mistake_of_a_spec_has_a_line_of_its_own(node: Node) -> None:
    edit(node, "\ndim = 64", "\nnum_wings = 2\ndim = 64")
    edit(node, "\nnum_steps = 50", "\nnum_legs = 4\nnum_steps = -1")
    sign_blindly(node)
    lines = error_lines(run_atoll("run", "validate", str(node.spec_path), check=False))
    assert [re.findall(r"model\.\w+|inner\.\w+", line)[0] for line in lines] == [
        *("model.num_wings", "inner.num_steps", "inner.num_legs")
    ]


@pytest.mark.parametrize("kept", [0, 0.5], ids=["empty", "half"])
def test_a_truncated_key_file_is_named_and_never_replaced(node: Node, kept: float) -> None:
    key = node.folder / "identity.key"
    damaged = key.read_bytes()[: int(kept * key.stat().st_size)]
    key.write_bytes(damaged)
    lines = error_lines(join(node))
    assert len(lines) == 1, lines
    assert str(key) in lines[0]
    assert key.read_bytes() == damaged


def test_a_port_in_use_is_named_with_its_option_and_nothing_stays(node: Node) -> None:
    """NET-10."""
    with socket.create_server((node.host, 0)) as taken:
        node.port = taken.getsockname()[1]
        finished = join(node, "--json")
    lines = error_lines(finished)
    assert len(lines) == 1, lines
    assert str(node.port) in json.loads(lines[0])["error"]
    assert "--port" in lines[0]
    assert not list(node.folder.glob("atoll-*"))
    assert not (node.folder / "endpoint.json").exists()


def test_a_peer_that_the_run_does_not_list_is_told_its_id_and_whom_to_ask(node: Node, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    peer_id = json.loads(run_atoll("identity", "show", "--folder", str(stranger), "--json").stdout)["peer_id"]
    lines = error_lines(join(node, folder=stranger))
    assert len(lines) == 1, lines
    assert peer_id in lines[0]
    assert "operator" in lines[0]
    assert {path.name for path in stranger.iterdir()} == {"identity.key", "lock"}


def test_dead_seeds_are_named_one_by_one_with_their_causes_and_the_node_keeps_trying(tmp_path: Path) -> None:
    with swarm(tmp_path, 2, num_rounds=1, settings=("inner.num_steps=2",)) as (seed, node):
        unnamed = f"/dns4/seed.invalid/tcp/4001/p2p/{seed.peer_id}"
        malformed = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/12D3KooWbroken"
        node.start("--seed", unnamed, "--seed", malformed)
        state = node.wait_for("the reason", unreachable, 60)[0]
        for cause in ("refused", "name not found", "invalid address"):
            assert cause in state["sentence"]
        log = (node.folder / "stderr.log").read_text()
        assert "Traceback" not in log
        causes = {seed.address: "nothing listens on that port", unnamed: "does not resolve", malformed: "reads like"}
        for address, cause in causes.items():
            assert any(address in line and cause in line for line in log.splitlines()), log
        seed.start()
        assert node.wait_for_exit(90) == 0, node.log_tail()


def unreachable(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("reason") == "seeds_unreachable"]
