"""A Llama-type decoder made of small parts, each replaceable alone.

RMSNorm (1910.07467), rotary positions (2104.09864), grouped-query attention (2305.13245), SwiGLU (2002.05202). A part
is a function of `ModelConfig` that returns a module; `Parts` names those of one model, so an experiment swaps one
field. Parameter names and shapes are those of `training.flat`, and values come from there: modules are made without
storage and `bind` lays them over a flat vector.

Axes: B batch, S sequence, D dim, N query heads, K key-value heads, H head_dim, F hidden_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from .config import ModelConfig
    from .flat import FlatLayout

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (S, H) each


@lru_cache(maxsize=8)
def rotation(head_dim: int, theta: float, length: int, device: torch.device) -> Rotation:
    """Cosines and sines (length, head_dim) of positions 0 … length − 1, halves repeated."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles_SH = torch.outer(torch.arange(length, device=device, dtype=torch.float32), theta**-exponents).repeat(1, 2)
    return angles_SH.cos(), angles_SH.sin()


def rotate(
    x: Tensor,  # (B, N, S, H)
    by: Rotation,
) -> Tensor:
    """Rotate each pair (i, i + H/2) of the last axis by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return x * by[0] + torch.cat((-second, first), dim=-1) * by[1]


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last axis, in float32."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.dim))
        self.eps = config.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal attention with rotary positions; ``num_heads / num_kv_heads`` query heads share one key-value head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.is_grouped = config.num_heads != config.num_kv_heads
        kv_dim = config.num_kv_heads * config.head_dim
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, kv_dim, bias=False)
        self.value = nn.Linear(config.dim, kv_dim, bias=False)
        self.output = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, by: Rotation) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        query, key = rotate(query, by).to(value.dtype), rotate(key, by).to(value.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.is_grouped)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (B, N, S, H) -> (B, S, N·H)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, S, N·H) -> (B, N, S, H)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.up = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.down = nn.Linear(config.hidden_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D), through (B, S, F)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


@dataclass(frozen=True)
class Parts:
    """What a model is made of. A replacement takes the same inputs and returns the same shapes."""

    norm: Callable[[ModelConfig], nn.Module] = RMSNorm
    attention: Callable[[ModelConfig], nn.Module] = Attention
    feed_forward: Callable[[ModelConfig], nn.Module] = SwiGLU


class Block(nn.Module):
    """Pre-norm residual block: attention, then feed-forward."""

    def __init__(self, config: ModelConfig, parts: Parts) -> None:
        super().__init__()
        self.attention_norm = parts.norm(config)
        self.attention = parts.attention(config)
        self.feed_forward_norm = parts.norm(config)
        self.feed_forward = parts.feed_forward(config)

    def forward(self, x: Tensor, by: Rotation) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        x = x + self.attention(self.attention_norm(x), by)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Tokens to logits. Made on the meta device and given its values by `bind`."""

    def __init__(self, config: ModelConfig, parts: Parts = Parts()) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config, parts) for _ in range(config.num_layers))
        self.norm = parts.norm(config)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make head and embedding one parameter, where the configuration says so."""
        if self.config.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) integers to (B, S, V) logits."""
        config = self.config
        by = rotation(config.head_dim, config.rope_theta, tokens.shape[1], tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, by)
        return self.head(self.norm(x))


MODELS: dict[str, Callable[[ModelConfig, Parts], Llama]] = {"llama": Llama}
"""Architecture -> its module."""


def bind(model: Llama, layout: FlatLayout, flat: Tensor, gradient: Tensor) -> None:
    """Make every parameter a view of ``flat`` and its gradient a view of ``gradient``, (num_elements,) float32 each.

    Raises ValueError if the model's parameters are not exactly the layout's.
    """
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    expected = {p.name: p.shape for p in layout.parameters}
    if shapes != expected:
        differing = sorted(name for name in shapes | expected if shapes.get(name) != expected.get(name))
        raise ValueError(f"model and flat layout differ in {', '.join(differing)}")
    for p in layout.parameters:
        parameter = nn.Parameter(flat[p.range].view(p.shape))
        parameter.grad = gradient[p.range].view(p.shape)
        owner, _, leaf = p.name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, parameter)
    model.tie()


def build_model(
    config: ModelConfig, layout: FlatLayout, flat: Tensor, gradient: Tensor, parts: Parts = Parts()
) -> Llama:
    """A model over ``flat`` and ``gradient``; see `bind`."""
    with torch.device("meta"):
        model = MODELS[config.architecture](config, parts)
    bind(model, layout, flat, gradient)
    return model


def cross_entropy(
    logits: Tensor,  # (B, S, V)
    targets: Tensor,  # (B, S)
) -> Tensor:
    """Mean negative log-likelihood in nats per token, computed in float32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
