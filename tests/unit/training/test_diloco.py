"""A lone run against DiLoCo written down independently, and resuming it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid, mean_of
from atoll.kernels.codec import codec
from atoll.kernels.outer_step import nesterov_step
from atoll.training.alone import train_alone
from atoll.training.config import InnerConfig, OuterConfig
from atoll.training.data import DataError
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.model import build_model, cross_entropy
from atoll.training.optimizer import learning_rate
from atoll.training.outer import apply_mean
from atoll.training.reducer import Evaluation, Progress, Saved, Warned

CHUNK = 512


def plain_model(config):
    flat = torch.from_numpy(initial_state(config.model))
    return build_model(config.model, FlatLayout.of(config.model), flat, torch.zeros_like(flat)), flat


def round_samples(config, data, round_):
    """The batches of a lone node's round: each round's lease holds four times the samples that its steps use."""
    inner = config.inner
    first = (round_ - 1) * 4 * inner.num_steps * inner.batch_size
    return [data.batch(range(s, s + inner.batch_size)) for s in range(first, first + inner.num_steps * 2, 2)]


def adamw_of(config, model):
    decays = [{"params": [p for p in model.parameters() if (p.ndim > 1) == d], "weight_decay": 0.1 * d} for d in (1, 0)]
    return torch.optim.AdamW(decays, betas=config.inner.betas, fused=True)


def train_round(config, data, model, optimizer, round_):
    """H steps as any torch user would write them."""
    for i, tokens in enumerate(round_samples(config, data, round_)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.inner, (round_ - 1) * config.inner.num_steps + i)
        optimizer.zero_grad(set_to_none=False)
        long = torch.from_numpy(tokens).long()
        cross_entropy(model(long[:, :-1]), long[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.inner.clip_norm)
        optimizer.step()


def test_a_lone_run_is_diloco_as_torch_computes_it(config, data):
    """torch.optim.AdamW inside, torch.optim.SGD(nesterov=True) outside, no codec."""
    model, flat = plain_model(config)
    inner, anchor = adamw_of(config, model), torch.nn.Parameter(flat.clone())
    outer = torch.optim.SGD([anchor], lr=0.7, nesterov=True, momentum=0.9)
    steady = config.model_copy(update={"outer": OuterConfig()})  # torch's momentum cannot warm up
    for round_ in range(1, 5):
        flat.copy_(anchor.detach())
        train_round(config, data, model, inner, round_)
        anchor.grad = anchor.detach() - flat
        outer.step()
    result = train_alone(steady, None, 4, codec="float32", chunk_elements=CHUNK)
    assert np.allclose(result.anchor, anchor.detach().numpy(), atol=2e-5)
    assert not np.allclose(result.anchor, initial_state(config.model), atol=1e-2)


def test_a_lone_run_is_bit_for_bit_the_plain_replay_of_its_kernels(config, data):
    """Inner loop, encode, decode, outer step with its momentum's warm-up, written out without sessions and reducers."""
    loop, int8 = InnerLoop(config, data), codec("int8")
    anchor, momentum = initial_state(config.model), np.zeros(FlatLayout.of(config.model).num_elements, np.float32)
    betas = (0.0, 0.45, 0.9, 0.9)
    for round_, beta in enumerate(betas, 1):
        loop.load(anchor)
        for tokens in round_samples(config, data, round_):
            loop.step(tokens)
        delta = anchor - loop.parameters()
        for start in range(0, len(delta), CHUNK):
            part = delta[start : start + CHUNK]
            data_ = np.empty(int8.nbytes(len(part)), np.uint8)
            int8.encode(part, data_)
            mean = np.empty_like(part)
            int8.decode(data_, mean)
            nesterov_step(anchor[start : start + CHUNK], momentum[start : start + CHUNK], mean, 0.7, beta)
    result = train_alone(config, None, len(betas), chunk_elements=CHUNK)
    assert result.anchor.tobytes() == anchor.tobytes()
    assert result.momentum.tobytes() == momentum.tobytes()


def test_the_loss_of_a_lone_run_goes_down(config):
    """AVG-05: five outer rounds alone."""
    losses = [evaluation.validation_loss for evaluation in train_alone(config, None, 5).evaluations]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("num_steps", [1, 3, 4, 6, 9, 11])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(config, tmp_path, num_steps):
    """AVG-03, CKP-07, DAT-05: killed after some steps, within and between rounds, with everything saved by then."""
    steps = []

    def stop_after(report):
        if isinstance(report, Saved):
            steps.append(report)
        if isinstance(report, Saved) and len(steps) == num_steps:
            raise Interrupted

    settings = {"chunk_elements": CHUNK, "save_interval_s": 0.0}
    with pytest.raises(Interrupted):
        train_alone(config, tmp_path, 3, on_report=stop_after, **settings)
    resumed = train_alone(config, tmp_path, 3, **settings)
    whole = train_alone(config, None, 3, chunk_elements=CHUNK)
    assert resumed.anchor.tobytes() == whole.anchor.tobytes()
    assert resumed.momentum.tobytes() == whole.momentum.tobytes()
    assert resumed.evaluations[-1] == whole.evaluations[-1]


def test_a_finished_run_goes_on_when_more_rounds_are_asked_for(config, tmp_path):
    train_alone(config, tmp_path, 2, chunk_elements=CHUNK)
    further = train_alone(config, tmp_path, 4, chunk_elements=CHUNK)
    assert further.anchor.tobytes() == train_alone(config, None, 4, chunk_elements=CHUNK).anchor.tobytes()


@pytest.mark.parametrize(("table", "change"), [("model", {"hidden_dim": 32}), ("inner", {"lr": 0.5})])
def test_checkpoints_of_other_settings_are_refused(config, tmp_path, table, change):
    train_alone(config, tmp_path, 1)
    other = config.model_copy(update={table: getattr(config, table).model_copy(update=change)})
    with pytest.raises(ValueError, match="with other settings; choose another folder"):
        train_alone(other, tmp_path, 1)


def test_a_missing_text_is_one_clear_line(config):
    broken = config.model_copy(update={"data": config.data.model_copy(update={"source": "file:/no/such"})})
    with pytest.raises(DataError, match="/no/such does not exist"):
        train_alone(broken, None, 1)


def test_a_run_that_cannot_save_trains_on_and_says_so_once(config, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    reports = []
    result = train_alone(config, tmp_path / "file" / "x", 2, on_report=reports.append, save_interval_s=0.0)
    assert len(result.evaluations) == 3
    assert len([r for r in reports if isinstance(r, Warned)]) == 1
    assert not any(isinstance(r, Saved) for r in reports)


def test_every_step_and_every_anchor_is_reported(config):
    reports = []
    train_alone(config, None, 2, on_report=reports.append)
    assert [(r.round, r.step) for r in reports if isinstance(r, Progress)] == [
        (r, s) for r in (1, 2) for s in range(1, 5)
    ]
    assert [r.round for r in reports if isinstance(r, Evaluation)] == [0, 1, 2]


def test_two_peers_with_sgd_one_step_and_outer_rate_one_average_their_gradients(config, data):
    inner = InnerConfig(optimizer="sgd", lr=0.1, weight_decay=0, clip_norm=0, warmup_steps=0, batch_size=2, num_steps=1)
    config = config.model_copy(update={"inner": inner, "outer": OuterConfig(optimizer="sgd", lr=1.0)})
    loops = [InnerLoop(config, data) for _ in range(2)]
    grid = ChunkGrid(loops[0].layout.num_elements, CHUNK, codec("float32"))
    anchor, momentum = initial_state(config.model), np.zeros(grid.num_elements, np.float32)
    model, flat = plain_model(config)
    for step in range(10):
        batches = [data.batch(range(4 * step + 2 * peer, 4 * step + 2 * peer + 2)) for peer in range(2)]
        both = torch.from_numpy(np.concatenate(batches)).long()  # the mean over both batches is the mean gradient
        model.zero_grad(set_to_none=False)
        cross_entropy(model(both[:, :-1]), both[:, 1:]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        one_round(loops, batches, grid, anchor, momentum, config.outer.at(step + 1))
    assert np.abs(anchor - flat.numpy()).max() < 1e-6


def one_round(loops, batches, grid, anchor, momentum, settings):
    contributions = [np.empty(grid.total_encoded, np.uint8) for _ in loops]
    tokens = []
    for loop, batch, out in zip(loops, batches, contributions, strict=True):
        loop.load(anchor)
        tokens.append(loop.step(batch).num_tokens)
        grid.encode(loop.pseudo_gradient(anchor), out)
    mean = np.empty(grid.total_encoded, np.uint8)
    mean_of(contributions, tokens, grid, mean)
    apply_mean(anchor, momentum, mean, grid, settings)


def losses_of_two_peers(config, data, codec_name, num_rounds):
    """Validation loss after every round of two peers with samples of their own."""
    loops, chosen = [InnerLoop(config, data) for _ in range(2)], codec(codec_name)
    anchor = initial_state(config.model)
    momentum, grid = np.zeros_like(anchor), ChunkGrid(len(anchor), CHUNK, chosen)
    losses = [loops[0].evaluate(anchor).loss]
    for round_ in range(num_rounds):
        encoded = []
        for peer, loop in enumerate(loops):
            loop.load(anchor)
            first = (2 * round_ + peer) * config.inner.num_steps * 2
            for step in range(config.inner.num_steps):
                loop.step(data.batch(range(first + 2 * step, first + 2 * step + 2)))
            encoded.append(np.empty(grid.total_encoded, np.uint8))
            grid.encode(loop.pseudo_gradient(anchor), encoded[-1])
        mean = np.empty(grid.total_encoded, np.uint8)
        mean_of(encoded, [1, 1], grid, mean)
        apply_mean(anchor, momentum, mean, grid, config.outer.at(round_ + 1))
        losses.append(loops[0].evaluate(anchor).loss)
    return np.array(losses)


def test_qnt_15_two_peers_learn_with_int8_as_they_do_with_float32(config, data):
    calm = config.inner.model_copy(update={"lr": 2e-3, "num_steps": 2})  # where small differences stay small
    config = config.model_copy(update={"inner": calm})
    exact, coded = (losses_of_two_peers(config, data, name, 20) for name in ("float32", "int8"))
    learnt = exact[0] - exact[-1]
    assert learnt > 0.5
    assert np.abs(coded - exact).max() < 0.02 * learnt
    assert abs(coded[1] - exact[1]) < 0.1 * abs(exact[0] - exact[1]), "no leap in the first step"
