from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid, mean_of, normalised_weights
from atoll.kernels.codec import codec
from atoll.kernels.dense import DenseCodec
from atoll.kernels.device import encode_with_torch
from atoll.training.outer import OuterConfig, OuterSettings, apply_mean


def encoded(grid, values):
    data = np.empty(grid.total_encoded, np.uint8)
    grid.encode(np.asarray(values, np.float32), data)
    return data


def decoded(grid, data):
    values = np.empty(grid.num_elements, np.float32)
    grid.decode(data, values)
    return values


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_momentum_rises_linearly_from_zero_to_its_value():
    outer = OuterConfig(lr=0.7, momentum=0.9, momentum_warmup_rounds=10)
    assert [round(outer.at(r).beta, 6) for r in (1, 2, 9, 10, 11)] == [0.0, 0.1, 0.8, 0.9, 0.9]
    assert outer.at(1).lr == 0.7


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warm_up_the_momentum_is_whole_from_the_start(warmup):
    assert OuterConfig(momentum_warmup_rounds=warmup).at(1).beta == 0.9


def test_plain_sgd_has_no_momentum_and_rounds_count_from_one():
    assert OuterConfig(optimizer="sgd", lr=1.0).at(5) == OuterSettings(1.0, 0.0)
    with pytest.raises(ValueError, match="counted from 1"):
        OuterConfig().at(0)


def test_the_new_global_weight_lies_where_the_peers_ended():
    """AVG-01: global 1.0, both peers end at 0.5, outer SGD with lr 1 gives 0.5 and not 1.5."""
    grid = ChunkGrid(4, 256, codec("float32"))
    anchor, momentum = np.ones(4, np.float32), np.zeros(4, np.float32)
    delta = encoded(grid, anchor - np.float32(0.5))
    mean = np.empty_like(delta)
    mean_of([delta, delta], [10, 10], grid, mean)
    apply_mean(anchor, momentum, mean, grid, OuterConfig(optimizer="sgd", lr=1.0).at(1))
    assert np.array_equal(anchor, np.full(4, 0.5, np.float32))


def test_the_outer_step_is_torchs_nesterov(random):
    grid = ChunkGrid(1000, 256, codec("float32"))
    parameter = torch.nn.Parameter(torch.from_numpy(random.standard_normal(1000).astype(np.float32)))
    anchor, momentum = parameter.detach().numpy().copy(), np.zeros(1000, np.float32)
    reference = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(4):
        delta = random.standard_normal(1000).astype(np.float32)
        parameter.grad = torch.from_numpy(delta)
        reference.step()
        apply_mean(anchor, momentum, encoded(grid, delta), grid, OuterSettings(0.7, 0.9))
    assert np.allclose(anchor, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_the_mean_is_weighted_by_tokens(random):
    grid = ChunkGrid(600, 256, codec("float32"))
    first, second = random.standard_normal((2, 600)).astype(np.float32)
    out = np.empty(grid.total_encoded, np.uint8)
    mean_of([encoded(grid, first), encoded(grid, second)], [300, 100], grid, out)
    assert np.allclose(decoded(grid, out), 0.75 * first + 0.25 * second, atol=1e-6)


def test_nothing_contributed_is_refused_and_changes_nothing():
    """AVG-04: a round in which everybody reports 0 samples."""
    with pytest.raises(ValueError, match=r"no mean of contributions with tokens \[0, 0\]"):
        normalised_weights([0, 0])


def test_the_grid_covers_everything_once_with_a_shorter_last_chunk():
    grid = ChunkGrid(1000, 300, codec("int8"))
    assert grid.num_chunks == 4
    assert [grid.elements(c).stop - grid.elements(c).start for c in range(4)] == [300, 300, 300, 100]
    ranges = [grid.encoded_range(c) for c in range(4)]
    assert all(a.stop == b.start for a, b in pairwise(ranges))
    assert grid.total_encoded == ranges[-1].stop == 3 * (300 + 4) + 100 + 2


def test_values_on_a_device_are_encoded_there(random, monkeypatch):
    """With torch's kernels for the device's: the vector is handed over chunk by chunk, never as float32 on the host."""
    grid, values = ChunkGrid(1000, 256, codec("int8")), random.standard_normal(1000).astype(np.float32)
    lengths = []

    def encode_tensor(self, part, out):
        lengths.append(len(part))
        data, first_bad = encode_with_torch(self.layout, part)
        assert first_bad == -1
        out[:] = data.numpy()

    monkeypatch.setattr(DenseCodec, "encode_tensor", encode_tensor)
    out = np.empty(grid.total_encoded, np.uint8)
    grid.encode(torch.from_numpy(values), out)
    assert lengths == [256, 256, 256, 232]
    assert np.array_equal(out, encoded(grid, values))


def test_a_mean_over_one_is_that_one(random):
    """The second rounding of an already rounded contribution changes no bit."""
    grid = ChunkGrid(5000, 1024, codec("int8"))
    data = encoded(grid, random.standard_normal(5000))
    out = np.empty_like(data)
    mean_of([data], [7], grid, out)
    assert np.array_equal(out, data)
