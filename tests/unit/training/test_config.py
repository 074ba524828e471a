from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from atoll.training.config import InnerConfig, ModelConfig, OuterConfig, TrainingConfig
from atoll.training.flat import FlatLayout


def test_the_defaults_are_the_demo_recipe():
    config = TrainingConfig()
    assert FlatLayout.of(config.model).num_elements == 139_584
    assert (config.inner.num_steps, config.inner.lease_steps, config.inner.lease_samples) == (50, 200, 1600)


def test_an_unknown_field_is_refused_and_named():
    with pytest.raises(ValidationError, match="num_layer\n"):
        ModelConfig(num_layer=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 30, "num_heads": 4}, "dim 30 must be"),
        ({"dim": 12, "num_heads": 4}, "even number"),
        ({"num_heads": 4, "num_kv_heads": 3}, "multiple of num_kv_heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**fields)


def test_a_lease_shorter_than_the_round_is_refused():
    with pytest.raises(ValidationError, match="max_steps 10 must be at least num_steps"):
        InnerConfig(num_steps=20, max_steps=10)


def test_a_falling_schedule_needs_its_end():
    with pytest.raises(ValidationError, match="needs total_steps"):
        InnerConfig(schedule="cosine")


def test_a_config_survives_json():
    config = TrainingConfig(outer=OuterConfig(lr=0.3))
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("module", ["config", "flat", "checkpoint", "data", "outer", "channel", "reducer", "local"])
def test_what_the_daemon_imports_does_not_load_torch_or_hivemind(module):
    code = f"import sys, atoll.training.{module}; print({{'torch', 'hivemind'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
