from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from atoll.training.config import ModelConfig
from atoll.training.flat import FlatLayout, initial_state

MODELS = [
    ModelConfig(),
    ModelConfig(tie_embeddings=True),
    ModelConfig(dim=32, num_layers=3, num_heads=4, num_kv_heads=2, hidden_dim=40),
]


@pytest.mark.parametrize("model", MODELS)
def test_every_element_belongs_to_exactly_one_parameter(model):
    layout = FlatLayout.of(model)
    owners = np.zeros(layout.num_elements, int)
    for parameter in layout.parameters:
        owners[parameter.range] += 1
    assert (owners == 1).all()


def test_names_are_distinct_and_tied_parameters_appear_once():
    names = [p.name for p in FlatLayout.of(ModelConfig(tie_embeddings=True)).parameters]
    assert len(set(names)) == len(names)
    assert "embedding.weight" in names
    assert "head.weight" not in names


def test_views_share_the_flat_memory():
    layout = FlatLayout.of(ModelConfig())
    flat = np.zeros(layout.num_elements, np.float32)
    layout.views(flat)["norm.weight"].fill(3.0)
    assert flat.sum() == 3.0 * 64


def test_the_initial_state_is_the_same_everywhere():
    """AVG-02: A committed vector: a change of any bit would split a run between versions."""
    assert blake3(initial_state(ModelConfig(init_seed=1)).tobytes()).hexdigest()[:16] == "356ff6493ae246ad"


def test_initial_values_have_their_standard_deviation_and_norms_are_one():
    views = FlatLayout.of(ModelConfig()).views(initial_state(ModelConfig()))
    assert views["embedding.weight"].std() == pytest.approx(1 / 8, rel=0.02)
    assert views["blocks.1.feed_forward.down.weight"].std() == pytest.approx(1 / 16, rel=0.02)
    assert (views["blocks.0.attention_norm.weight"] == 1).all()


def test_another_seed_gives_another_state_and_parameters_differ():
    first, second = initial_state(ModelConfig()), initial_state(ModelConfig(init_seed=1))
    views = FlatLayout.of(ModelConfig()).views(first)
    assert (first != second).mean() > 0.9
    assert (views["embedding.weight"] != views["head.weight"]).mean() > 0.9


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (16_383, 16_386), (20_000, 45_000), (139_583, 139_584)])
def test_any_range_materialises_alone_with_the_bits_of_the_whole(start, stop):
    part = np.empty(stop - start, np.float32)
    FlatLayout.of(ModelConfig()).fill_initial(part, 0, start)
    assert part.tobytes() == initial_state(ModelConfig())[start:stop].tobytes()
