from __future__ import annotations

import pytest
from torch import nn

from atoll.training.config import InnerConfig
from atoll.training.optimizer import build_optimizer, learning_rate


def rates(steps, **fields):
    config = InnerConfig(lr=1.0, warmup_steps=4, **fields)
    return [round(learning_rate(config, step), 4) for step in steps]


def test_the_learning_rate_warms_up_linearly_and_then_stays():
    assert rates([0, 1, 2, 3, 4, 10_000]) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("wsd", [1.0, 1.0, 1.0, 0.5, 0.0, 0.0]),
        ("linear", [1.0, 0.5, 0.25, 0.125, 0.0, 0.0]),
        ("cosine", [1.0, 0.5, 0.1464, 0.0381, 0.0, 0.0]),
    ],
)
def test_falling_schedules_end_at_zero(schedule, expected):
    assert rates([4, 12, 16, 18, 20, 99], schedule=schedule, total_steps=20, decay_steps=4) == expected


def test_no_warm_up_starts_at_the_full_rate():
    assert learning_rate(InnerConfig(lr=0.5, warmup_steps=0), 0) == 0.5


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_only_matrices_decay(optimizer):
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    groups = build_optimizer(InnerConfig(optimizer=optimizer, weight_decay=0.3), model).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.3, 1), (0.0, 3)]
