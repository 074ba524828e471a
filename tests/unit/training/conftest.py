"""A model, a text and a run small enough that a whole run takes a fraction of a second."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.training.config import DataConfig, InnerConfig, ModelConfig, OuterConfig, TrainingConfig
from atoll.training.data import TextData


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("In the beginning was the word, and the word was a small one.\n" * 120)
    return path


@pytest.fixture(scope="session")
def config(text_file):
    return TrainingConfig(
        model=ModelConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, hidden_dim=24, sequence_length=16),
        data=DataConfig(source=f"file:{text_file}", validation_fraction=0.1, validation_batches=1),
        inner=InnerConfig(lr=1e-2, warmup_steps=3, batch_size=2, num_steps=4),
        outer=OuterConfig(momentum_warmup_rounds=3),
    )


@pytest.fixture(scope="session")
def data(config):
    return TextData.load(config.data, config.model.sequence_length)


@pytest.fixture
def batch(data):
    return np.array(data.batch(range(2)))
