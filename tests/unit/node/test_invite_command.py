"""``atoll run invite`` and ``atoll join --invite``: what is written, what is kept, and what is refused in one line."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from atoll.node import cli, daemon
from atoll.node.chain import Chain
from atoll.node.errors import UserError
from atoll.node.invitation import kept_in, own_ticket, read_invite
from atoll.node.run_spec import load_run_spec
from atoll.protocol.identity import Identity
from atoll.protocol.invites import check, guests_after, make
from atoll.protocol.messages import Commit
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.standing import Standing
from atoll.protocol.tickets import Admission, Ticket


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signed run by invites; its operator's key is in tmp_path/one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return made(tmp_path / "run.toml", "invite")


def made(path: Path, mode: str) -> Path:
    folder = str(path.parent / "one")
    assert cli.run(["run", "new", str(path), "--set", f"membership.mode={mode}", "--folder", folder]) == 0
    assert cli.run(["run", "sign", str(path), "--folder", folder]) == 0
    return path


def invite(spec: Path, *words: str, key: str = "one", out: str = "invite.json") -> int:
    place = spec.parent
    return cli.run(["run", "invite", str(spec), "--out", str(place / out), "--folder", str(place / key), *words])


def join(spec: Path, *words: str, name: str = "two") -> int:
    return cli.run(["join", str(spec), "--folder", str(spec.parent / name), "--yes", *words])


def identity(spec: Path, name: str = "two") -> Identity:
    return Identity.load_or_create(spec.parent / name / "identity.key")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of the nodes that would have been started."""
    folders: list[Path] = []

    def run_node(settings, spec, **_: object) -> int:
        run = load_run_spec(spec)
        daemon._check_admitted(run, Identity.load_or_create(settings.identity_path), settings.folder)
        folders.append(settings.folder)
        return 0

    monkeypatch.setattr(daemon, "run_node", run_node)
    return folders


def test_an_invite_is_a_private_file_that_lets_its_holder_in(spec: Path, started: list[Path], capsys):
    assert invite(spec, "--owner", "Anna", "--rounds", "20", "--days", "3") == 0
    said = capsys.readouterr().out
    assert "Invite for Anna, until round 20 and until " in said
    path = spec.parent / "invite.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert join(spec, "--invite", str(path)) == 0
    assert started == [spec.parent / "two"]
    assert stat.S_IMODE(kept_in(started[0]).stat().st_mode) == 0o600
    genesis, me = load_run_spec(spec).genesis, identity(spec).peer_id
    ticket = own_ticket(started[0], me)
    assert ticket is not None
    check(genesis, Standing.of_genesis(genesis), me, ticket)
    assert join(spec) == 0  # the next start finds it in the folder


def test_by_default_it_ends_after_a_week_and_with_json_it_is_said_in_json(spec: Path, capsys):
    capsys.readouterr()
    assert invite(spec, "--owner", "Anna", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["owner"], shown["until_round"]) == ("Anna", None)
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--owner", ""), "--owner"),
        (("--owner", "x" * 65), "--owner"),
        (("--owner", "Anna", "--peer", "me"), "not an Ed25519 peer id"),
        (("--owner", "Anna", "--out", "run.toml"), "file exists"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(spec: Path, words, said, capsys, monkeypatch):
    monkeypatch.chdir(spec.parent)
    capsys.readouterr()
    assert invite(spec, *words) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_stranger_invites_nobody_and_a_listed_run_takes_no_invites(spec: Path, capsys):
    assert invite(spec, "--owner", "Anna", key="other") != 0
    assert "you may not invite" in capsys.readouterr().err
    listed = made(spec.parent / "listed.toml", "listed")
    assert invite(listed, "--owner", "Anna") != 0
    assert "this run takes no invites" in capsys.readouterr().err


def refused(spec: Path, capsys, path: Path | None = None) -> str:
    capsys.readouterr()
    assert join(spec, "--invite", str(path or spec.parent / "invite.json")) != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert not kept_in(spec.parent / "two").exists()
    return error


def test_an_invite_for_another_peer_is_refused(spec: Path, started, capsys):
    assert invite(spec, "--owner", "Anna", "--peer", identity(spec, "three").peer_id) == 0
    assert "it is for another peer" in refused(spec, capsys)
    assert not started


def test_an_invite_of_another_run_is_refused(spec: Path, started, capsys):
    other = made(spec.parent / "other.toml", "invite")
    assert invite(other, "--owner", "Anna") == 0
    assert "for another run" in refused(spec, capsys)


def test_an_expired_invite_is_refused(spec: Path, started, capsys, monkeypatch):
    assert invite(spec, "--owner", "Anna", "--days", "1") == 0
    now = __import__("time").time()
    monkeypatch.setattr("time.time", lambda: now + 86_400 + 3_700)
    assert "has expired" in refused(spec, capsys)


def test_a_truncated_or_missing_file_is_refused(spec: Path, started, capsys):
    assert invite(spec, "--owner", "Anna") == 0
    path = spec.parent / "invite.json"
    path.write_bytes(path.read_bytes()[:-40])
    assert "not all of one" in refused(spec, capsys)
    assert "No such file" in refused(spec, capsys, spec.parent / "none.json")


def test_without_an_invite_joining_says_how_to_get_one(spec: Path, started, capsys):
    with pytest.raises(UserError, match="ask the operator for an invite"):
        daemon._check_admitted(load_run_spec(spec), identity(spec), spec.parent / "two")


def commit_that_lets_in(spec: Path, peer: str, ticket: Ticket) -> Commit:
    """Round 1, by which ``peer`` has entered, as a node's chain has it."""
    genesis = load_run_spec(spec).genesis
    roster = genesis.membership.roster
    admissions = (Admission(peer=peer, ticket=ticket),)
    plan = Plan(
        lineage=0,
        fragment=0,
        round=1,
        ballot=0,
        leader=roster[0],
        parent=genesis.run_id,
        parent_state=genesis.initial_state,
        members=(Member(peer=roster[0], tokens=1, commitment="00" * 32),),
        spans=(Span(first_chunk=0, num_chunks=1, owner=roster[0]),),
        roster=roster,
        next_roster=(*roster, peer),
        data_cursor=0,
        admissions=admissions,
        guests=guests_after(Standing.of_genesis(genesis), (*roster, peer), admissions),
        rules=genesis.rules_id,
        attempt_timeout_s=1.0,
    )
    result = SpanResult(plan=plan.content_id(), span=0, included=(True,), digest="00" * 32)
    return Commit(record=Record(plan=plan, results=(result,)), ballot=0, votes=())


def test_what_the_folders_chain_says_of_an_invite_is_said_before_the_node_starts(spec: Path, started, capsys):
    assert invite(spec, "--owner", "Anna") == 0
    file, other = read_invite(spec.parent / "invite.json"), identity(spec, "three").peer_id
    folder = spec.parent / "two"
    folder.mkdir(exist_ok=True)
    Chain(folder / "chain.jsonl").append(commit_that_lets_in(spec, other, file.ticket(other)))
    assert "used already, by another peer" in refused(spec, capsys)
    own = make(
        identity(spec, "one"),
        run_id=load_run_spec(spec).genesis.run_id,
        owner="Anna",
        bearer=identity(spec).peer_id,
        until_round=9,
    )
    second = spec.parent / "second.json"
    second.write_text(json.dumps({"invite": own.model_dump(mode="json"), "secret": None}))
    assert "Anna has 1 member already" in refused(spec, capsys, second)


def test_a_guest_that_has_lost_its_invite_is_let_in_by_its_chain(spec: Path, started):
    assert invite(spec, "--owner", "Anna") == 0
    me, folder = identity(spec).peer_id, spec.parent / "two"
    file = read_invite(spec.parent / "invite.json")
    Chain(folder / "chain.jsonl").append(commit_that_lets_in(spec, me, file.ticket(me)))
    assert join(spec) == 0
    assert started == [folder]
