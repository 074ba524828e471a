from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.inner_loop import InnerLoop, choose_device
from atoll.training.model import build_model, cross_entropy
from atoll.training.optimizer import learning_rate


@pytest.fixture
def loop(config, data):
    loop = InnerLoop(config, data)
    loop.load(initial_state(config.model))
    return loop


def batches(data, count):
    return [data.batch(range(2 * i, 2 * i + 2)) for i in range(count)]


def test_steps_are_those_of_torchs_adamw_with_clipping(config, data, loop):
    flat = torch.from_numpy(initial_state(config.model))
    model = build_model(config.model, FlatLayout.of(config.model), flat, torch.zeros_like(flat))
    decayed = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    for step, tokens in enumerate(batches(data, 6)):
        for group in reference.param_groups:
            group["lr"] = learning_rate(config.inner, step)
        reference.zero_grad(set_to_none=False)
        long = torch.from_numpy(tokens).long()
        cross_entropy(model(long[:, :-1]), long[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        reference.step()
        loop.step(tokens)
    assert np.allclose(loop.parameters(), flat.numpy(), atol=2e-6)


def test_training_is_reproducible_bit_for_bit(config, data, loop):
    other = InnerLoop(config, data)
    other.load(initial_state(config.model))
    for tokens in batches(data, 5):
        assert loop.step(tokens) == other.step(tokens)
    assert loop.parameters().tobytes() == other.parameters().tobytes()


def test_a_step_reports_what_it_did(config, batch, loop):
    step = loop.step(batch)
    assert step.num_tokens == 2 * config.model.sequence_length
    assert step.lr == learning_rate(config.inner, 0)
    assert step.gradient_norm > 0
    assert 4 < step.loss < 8


def test_the_pseudo_gradient_points_uphill(config, batch, loop):
    """AVG-01: anchor minus parameters, and neither is changed."""
    anchor = initial_state(config.model)
    loop.step(batch)
    before = loop.parameters()
    delta = loop.pseudo_gradient(anchor)
    assert np.array_equal(delta, anchor - before)
    assert np.array_equal(anchor, initial_state(config.model))
    assert np.array_equal(loop.parameters(), before)


def test_a_gradient_with_a_nan_changes_nothing(config, batch, loop):
    loop.step(batch)
    poisoned = loop.parameters()
    poisoned[0:16] = np.nan  # the row of byte 0, which the batch is made to read
    loop.load(poisoned)
    moments = loop.optimizer_tensors()
    step = loop.step(np.zeros_like(batch))
    assert step.num_tokens == 0
    assert np.array_equal(loop.parameters(), poisoned, equal_nan=True)
    assert all(np.array_equal(moments[name], value) for name, value in loop.optimizer_tensors().items())
    assert loop.num_steps_done == 1


def test_a_restored_optimizer_goes_on_with_the_same_bits(config, data, loop):
    """CKP-07: same learning rate, loss and weights after a resume."""
    first, rest = batches(data, 9)[:4], batches(data, 9)[4:]
    for tokens in first:
        loop.step(tokens)
    resumed = InnerLoop(config, data)
    resumed.load(loop.parameters())
    resumed.restore_optimizer(loop.optimizer_tensors(), loop.num_steps_done)
    for tokens in rest:
        assert resumed.step(tokens) == loop.step(tokens)
    assert resumed.parameters().tobytes() == loop.parameters().tobytes()


def test_a_reset_optimizer_warms_up_again(config, data, loop):
    for tokens in batches(data, 5):
        loop.step(tokens)
    loop.reset_optimizer()
    assert loop.optimizer_tensors() == {}
    assert loop.step(batches(data, 1)[0]).lr == learning_rate(config.inner, 0)


def test_evaluating_leaves_no_trace(config, data, loop):
    undisturbed = InnerLoop(config, data)
    undisturbed.load(initial_state(config.model))
    for tokens in batches(data, 3):
        loop.evaluate(np.zeros_like(initial_state(config.model)))
        assert loop.step(tokens) == undisturbed.step(tokens)


def test_evaluation_is_in_nats_and_bits_per_byte(config, loop):
    validation = loop.evaluate(np.zeros_like(initial_state(config.model)))  # all logits equal
    assert validation.loss == pytest.approx(np.log(256))
    assert validation.bits_per_byte == pytest.approx(8)
    assert validation.num_tokens == 32 * config.model.sequence_length


def test_the_cpu_is_chosen_where_there_is_no_gpu():
    assert choose_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu").type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_encodes_its_pseudo_gradient_with_the_bits_of_the_cpu(config, data, batch):
    loop, anchor = InnerLoop(config, data, torch.device("cuda")), initial_state(config.model)
    loop.load(anchor)
    loop.step(batch)
    delta = loop.pseudo_gradient(anchor)
    grid = ChunkGrid(len(anchor), 1024, codec("int8"))
    on_gpu, on_cpu = (np.empty(grid.total_encoded, np.uint8) for _ in range(2))
    grid.encode(delta, on_gpu)
    grid.encode(delta.cpu().numpy(), on_cpu)
    assert np.array_equal(on_gpu, on_cpu)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_learns_as_the_cpu_does(config, data, loop):
    on_gpu = InnerLoop(config, data, torch.device("cuda"))
    on_gpu.load(initial_state(config.model))
    for tokens in batches(data, 5):
        assert on_gpu.step(tokens).loss == pytest.approx(loop.step(tokens).loss, rel=0.02)
