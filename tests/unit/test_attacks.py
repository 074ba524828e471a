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
    off = attacks.show(attacks.Cell("sign_flip", 0.2, attacks.NO_DEFENCE, small), (0,))
    on = attacks.show(attacks.Cell("sign_flip", 0.2, attacks.TrustConfig(), small), (0,))
    assert off > 0.02
    assert abs(on) < 0.02
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1]["refused"]["disagreement"] == 2 * small.num_rounds
    assert rows[1]["honest_chunks_left_out"] == 0


def test_honest_runs_are_the_plain_mean_bit_for_bit(attacks, small):
    assert attacks.Cell(None, 0.0, attacks.TrustConfig(), small).measure((0,))[0] == attacks.clean_loss(small, (0,))


@pytest.mark.parametrize(("attack", "rule"), [("nan", "invalid encoding"), ("zeros", "empty contribution")])
def test_what_is_no_contribution_is_refused_by_name_in_every_round(attacks, attack, rule):
    setting = attacks.Setting(num_rounds=2, num_steps=2, batch_size=2)
    _, swarm = attacks.Cell(attack, 0.2, attacks.TrustConfig(), setting).measure((0,))
    assert swarm.num_refused[rule] == 2 * setting.num_rounds
