"""``atoll simulate``: figures as text and as JSON, the same for the same seed; bad input ends in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.node.cli import run

SPEC = str(Path(__file__).parents[3] / "runs" / "bible.toml")


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["simulate", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_it_prints_what_an_operator_asks_of_a_run(simulate):
    code, out, _ = simulate(SPEC, "--peers", "12", "--trace", "mass-failure", "--rounds", "3")
    assert code == 0
    assert out.startswith("bible over mass-failure: 12 peers, seed 0\n")
    for word in ("commit rate", "utilisation", "round time", "sent", "left out", "down"):
        assert word in out


def test_as_json_it_has_every_round_and_the_same_seed_gives_the_same(simulate):
    arguments = (SPEC, "--peers", "5", "--trace", "homes", "--rounds", "3", "--seed", "7", "--json")
    (code, out, err), again = simulate(*arguments), simulate(*arguments)
    figures = json.loads(out)
    assert (code, err) == (0, "")
    assert out == again[1]
    assert (figures["commit_rate"], figures["peers"], len(figures["rounds"])) == (1.0, 5, 3)
    assert json.loads(simulate(*arguments[:-2], "8", "--json")[1])["simulated_s"] != figures["simulated_s"]


def test_sizes_are_those_of_the_specs_model(simulate):
    """139,584 parameters of 8.0625 bits; of four equal peers each sends 2 × 3/4 of them."""
    _, out, _ = simulate(SPEC, "--peers", "3", "--trace", "lan", "--rounds", "1", "--json")
    sent = json.loads(out)["sent_bytes_per_peer_and_round"]
    assert sent == pytest.approx(2 * 2 / 3 * 139_584 * 8.0625 / 8, rel=0.01)


def test_thousands_gossip(simulate):
    code, out, _ = simulate(SPEC, "--peers", "2000", "--topology", "gossip", "--rounds", "5", "--json")
    assert code == 0
    assert json.loads(out)["contraction"] < 0.7


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["nothing.toml"], "nothing.toml: No such file"),
        ([SPEC, "--trace", "nowhere"], "nowhere: there is no such trace"),
        ([SPEC, "--topology", "ring"], "unknown topology: ring; choose one of: flat, two_tier, gossip"),
        ([SPEC, "--peers", "0"], "Invalid value for '--peers'"),
        ([SPEC, "--peers", "500"], "limits.max_peers is 128"),
    ],
)
def test_bad_input_is_one_line(simulate, arguments, fault):
    code, out, err = simulate(*arguments)
    (line,) = err.splitlines()
    assert code != 0
    assert not out
    assert line.startswith("atoll: ")
    assert fault in line
