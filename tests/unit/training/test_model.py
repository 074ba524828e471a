from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from atoll.training.config import ModelConfig
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.model import Parts, SwiGLU, build_model, cross_entropy

MODEL = ModelConfig(dim=24, num_layers=2, num_heads=6, num_kv_heads=2, hidden_dim=20, sequence_length=12)


def build(config=MODEL, parts=None):
    layout = FlatLayout.of(config)
    flat = torch.from_numpy(initial_state(config))
    return build_model(config, layout, flat, torch.zeros_like(flat), parts or Parts()), flat


def reference_logits(config, weights, tokens):
    """The same model written plainly: rotary positions as complex numbers, heads one by one, attention spelled out."""
    num_tokens, head_dim, group = len(tokens), config.head_dim, config.num_heads // config.num_kv_heads

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.norm_eps) * weight

    def rotated(x):  # (S, H)
        half = head_dim // 2
        speeds = torch.tensor([config.rope_theta ** (-2 * i / head_dim) for i in range(half)])
        turns = torch.polar(torch.ones(num_tokens, half), torch.arange(num_tokens)[:, None] * speeds)
        turned = torch.complex(x[:, :half], x[:, half:]) * turns
        return torch.cat((turned.real, turned.imag), 1)

    def head(x, w, index):
        keys = slice(index // group * head_dim, (index // group + 1) * head_dim)
        q = rotated(x @ w["query"][index * head_dim : (index + 1) * head_dim].T)
        k, v = rotated(x @ w["key"][keys].T), x @ w["value"][keys].T
        scores = (q @ k.T / math.sqrt(head_dim)).masked_fill(torch.ones(num_tokens, num_tokens).triu(1) > 0, -torch.inf)
        return scores.softmax(-1) @ v

    x = weights["embedding.weight"][tokens]
    for layer in range(config.num_layers):
        p = f"blocks.{layer}."
        w = {n: weights[f"{p}attention.{n}.weight"] for n in ("query", "key", "value", "output")}
        y = norm(x, weights[p + "attention_norm.weight"])
        x = x + torch.cat([head(y, w, i) for i in range(config.num_heads)], 1) @ w["output"].T
        y = norm(x, weights[p + "feed_forward_norm.weight"])
        gate, up, down = (weights[f"{p}feed_forward.{n}.weight"] for n in ("gate", "up", "down"))
        x = x + (nn.functional.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return norm(x, weights["norm.weight"]) @ weights.get("head.weight", weights["embedding.weight"]).T


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_computes_what_the_papers_say(tied):
    config = MODEL.model_copy(update={"tie_embeddings": tied})
    model, flat = build(config)
    weights = {n: torch.from_numpy(v) for n, v in FlatLayout.of(config).views(flat.numpy()).items()}
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    expected = reference_logits(config, weights, tokens)
    assert torch.allclose(model(tokens[None])[0], expected, atol=1e-5)


def test_a_token_never_sees_later_ones():
    model, _ = build()
    tokens = torch.arange(12)[None]
    changed = tokens.clone()
    changed[0, 8] = 99
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert (difference[:8] == 0).all()
    assert (difference[8:] > 0).all()


def test_parameters_and_gradients_are_views_of_flat_vectors():
    layout = FlatLayout.of(MODEL)
    flat, gradient = torch.from_numpy(initial_state(MODEL)), torch.zeros(layout.num_elements)
    model = build_model(MODEL, layout, flat, gradient)
    cross_entropy(model(torch.arange(12)[None]), torch.arange(12)[None]).backward()
    for p in layout.parameters:
        owner = model.get_parameter(p.name)
        assert owner.data_ptr() == flat[p.range].data_ptr()
        assert owner.grad is not None
        assert torch.equal(owner.grad.flatten(), gradient[p.range])
    assert gradient.abs().sum() > 0


def test_a_model_that_is_not_the_layout_is_refused_and_the_parameter_named():
    flat, wider = torch.zeros(FlatLayout.of(MODEL).num_elements), MODEL.model_copy(update={"hidden_dim": 21})
    with pytest.raises(ValueError, match=r"differ in blocks\.0\.feed_forward\.down\.weight"):
        build_model(wider, FlatLayout.of(MODEL), flat, flat.clone())


def test_a_part_can_be_replaced_alone():
    class Scaled(SwiGLU):
        def forward(self, x):
            return 0.0 * super().forward(x)

    plain, _ = build()
    replaced, _ = build(parts=Parts(feed_forward=Scaled))
    tokens = torch.arange(12)[None]
    assert not torch.equal(plain(tokens), replaced(tokens))


def test_tied_weights_stay_one_storage_through_training(config, data, batch):
    """MDL-02: twenty steps and two loads of an anchor."""
    tied = config.model_copy(update={"model": config.model.model_copy(update={"tie_embeddings": True})})
    loop = InnerLoop(tied, data)
    loop.load(initial_state(tied.model))
    for _ in range(2):
        for _ in range(10):
            loop.step(batch)
        loop.load(loop.parameters())
    model = loop._model
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.data_ptr() == loop._flat.data_ptr()


def test_the_loss_at_first_is_near_that_of_guessing():
    model, _ = build()
    loss = cross_entropy(model(torch.randint(256, (8, 12))), torch.randint(256, (8, 12)))
    assert math.log(256) - 0.2 < loss.item() < math.log(256) + 1.5
