"""Real training with poisoned contributions, through the code that nodes run (SEC-01); `make attacks` has the table."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def attacks():
    torch.set_num_threads(1)
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("attacks_benchmark", BENCHMARKS / "attacks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCHMARKS))
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def small(attacks):
    return attacks.Setting(num_rounds=4, num_steps=8, batch_size=4)


def test_a_fifth_of_flipped_signs_hurts_a_plain_mean_and_not_the_defended_one(attacks, small, capsys):
    results = attacks.Results()
    off = results.cost(attacks.Cell("sign_flip", 0.2, attacks.NO_DEFENCE, small), 0)
    on = results.cost(attacks.Cell("sign_flip", 0.2, attacks.TrustConfig(), small), 0)
    assert off > 0.02
    assert abs(on) < 0.02
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1]["refused"]["disagreement"] == 2 * small.num_rounds
    assert rows[1]["honest_left_out"] == 0


def test_honest_runs_are_the_plain_mean_bit_for_bit(attacks, small):
    assert attacks.Results().cost(attacks.Cell(None, 0.0, attacks.TrustConfig(), small), 0) == 0.0


@pytest.mark.parametrize("attack", ["stale_mean", "stale_own", "stale_other"])
def test_free_riders_that_send_work_again_are_refused_and_nobody_else_is(attacks, attack):
    setting = attacks.Setting(num_rounds=3, num_steps=4, batch_size=4)
    outcome = attacks.Results().of(attacks.Cell(attack, 0.2, attacks.TrustConfig(), setting), 0)
    assert outcome.refused["copy"] == 2 * (setting.num_rounds - 1)
    assert outcome.honest_left_out == 0


def test_of_two_members_that_send_one_work_with_noise_one_counts(attacks):
    setting = attacks.Setting(num_rounds=2, num_steps=4, batch_size=4)
    outcome = attacks.Results().of(attacks.Cell("near_copies", 0.2, attacks.TrustConfig(), setting), 0)
    assert outcome.refused["copy"] == setting.num_rounds
    assert outcome.honest_left_out == 0


def test_finished_cells_are_read_back_and_not_measured_again(attacks, tmp_path):
    cell = attacks.Cell("zeros", 0.2, attacks.TrustConfig(), attacks.Setting(num_rounds=1, num_steps=1, batch_size=1))
    first = attacks.Results(tmp_path / "results").of(cell, 0)
    again = attacks.Results(tmp_path / "results")
    assert again.known == {cell.key(0): first}
    again.forget(["zeros"])
    assert again.known == {}


@pytest.mark.parametrize(("attack", "rule"), [("nan", "invalid encoding"), ("zeros", "empty contribution")])
def test_what_is_no_contribution_is_refused_by_name_in_every_round(attacks, attack, rule):
    setting = attacks.Setting(num_rounds=2, num_steps=2, batch_size=2)
    outcome = attacks.Results().of(attacks.Cell(attack, 0.2, attacks.TrustConfig(), setting), 0)
    assert outcome.refused[rule] == 2 * setting.num_rounds
