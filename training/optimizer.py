"""Inner optimizers and their learning-rate schedules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from .config import InnerConfig


def learning_rate(config: InnerConfig, step: int) -> float:
    """Learning rate of a peer's ``step``-th inner step (from 0): linear warm-up, then the schedule. Pure."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    return config.lr * _decay(config, step)


def _decay(config: InnerConfig, step: int) -> float:
    if config.schedule == "constant" or config.total_steps is None:
        return 1.0
    start = config.total_steps - config.decay_steps if config.schedule == "wsd" else config.warmup_steps
    progress = min(1.0, max(0.0, (step - start) / max(1, config.total_steps - start)))
    return (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress


def build_optimizer(config: InnerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW (1711.05101; torch's fused one) or SGD over ``model``; only matrices decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use ``lr`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr
