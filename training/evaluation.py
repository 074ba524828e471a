"""Validation loss on held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .model import cross_entropy

if TYPE_CHECKING:
    from torch import nn

    from .data import TextData


@dataclass(frozen=True)
class Validation:
    """A model's loss on held-out text. With the byte tokenizer a token is a byte."""

    loss: float
    """Nats per byte."""
    num_tokens: int

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per byte."""
        return self.loss / math.log(2)


@torch.no_grad()
def evaluate(model: nn.Module, data: TextData, num_batches: int, device: torch.device) -> Validation:
    """Mean loss over ``num_batches`` batches of held-out windows; deterministic, changes nothing."""
    total, num_tokens = 0.0, 0
    for batch in range(num_batches):
        windows = data.validation_batch(batch, num_batches)
        if len(windows) == 0:
            break
        tokens = torch.from_numpy(windows).to(device, torch.long)
        with autocast(device):
            loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        count = windows.shape[0] * (windows.shape[1] - 1)
        total += loss.item() * count
        num_tokens += count
    return Validation(total / num_tokens, num_tokens)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU; float32 on a CPU, where bfloat16 without its instructions is 35 × slower."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
