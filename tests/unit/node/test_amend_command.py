"""``atoll run amend`` as an operator meets it: what it writes, what it refuses, and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.node import cli
from atoll.node.amendment_store import AmendmentStore, companion
from atoll.node.run_spec import load_run_spec


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signed run of one operator, whose key is in tmp_path/one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "run.toml"
    assert cli.run(["run", "new", str(path), "--folder", str(tmp_path / "one")]) == 0
    assert cli.run(["run", "sign", str(path), "--folder", str(tmp_path / "one")]) == 0
    return path


def amend(spec: Path, *words: str, key: str = "one") -> int:
    folder = str(spec.parent / key)
    return cli.run(["run", "amend", words[0], str(spec), *words[1:], "--folder", folder])


def test_what_is_signed_is_beside_the_spec_and_where_the_node_finds_it(spec: Path):
    assert amend(spec, "learning-rate", "--outer", "0.3", "--from-round", "5") == 0
    assert amend(spec, "pause") == 0
    assert amend(spec, "resume") == 0
    rules = load_run_spec(spec).rules
    assert [amendment.change.kind for amendment in rules.amendments] == ["learning_rate", "pause", "resume"]
    assert [amendment.from_round for amendment in rules.amendments] == [5, 2, 2]
    assert AmendmentStore(spec.parent / "one").collect() == list(rules.amendments)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("learning-rate",), "give --inner, --outer or both"),
        (("learning-rate", "--inner", "-1"), "greater than 0"),
        (("timing", "--set", "ready_grace_s=fast"), "not name=number: ready_grace_s=fast"),
        (("timing", "--set", "ready_grace_s=900"), "must be shorter than timing.quorum_timeout_s"),
        (("ban", "me"), "not an Ed25519 peer id"),
        (("rollback", "--to-round", "3"), "no rounds are known here"),
        (("sign",), "no amendment to sign"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_written(spec, words, said, capsys):
    capsys.readouterr()
    assert amend(spec, *words) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not companion(spec).exists()


def test_a_stranger_cannot_amend(spec: Path, capsys: pytest.CaptureFixture[str]):
    assert amend(spec, "pause", key="other") != 0
    assert "is no operator of this run" in capsys.readouterr().err


def test_two_operators_sign_one_after_the_other(spec: Path, capsys: pytest.CaptureFixture[str]):
    cli.run(["identity", "show", "--folder", str(spec.parent / "two"), "--json"])
    shown = capsys.readouterr().out.strip().splitlines()[-1]
    own = load_run_spec(spec).signer
    assert amend(spec, "keys", own, json.loads(shown)["peer_id"], "--threshold", "2") == 0
    assert amend(spec, "finish", "--from-round", "9") == 0
    assert "1 of 2 signatures" in capsys.readouterr().out
    assert len(load_run_spec(spec).amendments) == 1
    assert amend(spec, "sign", key="two") == 0
    assert load_run_spec(spec).rules.at(9).stop.num_rounds == 9


def test_a_damaged_file_beside_the_spec_is_said_before_anything_starts(spec: Path, capsys):
    assert amend(spec, "pause") == 0
    text = companion(spec).read_text()
    companion(spec).write_text(text.replace('"from_round":2', '"from_round":3'))
    capsys.readouterr()
    assert cli.run(["run", "amendments", str(spec)]) != 0
    assert "does not match" in capsys.readouterr().err
