"""Inner training: forward, backward, clip, optimizer step, over one flat vector.

All parameters are views of one vector and all gradients of another, so that loading an anchor, the pseudo-gradient and
the gradient's norm are one pass over memory each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .evaluation import Validation, autocast, evaluate
from .flat import FlatLayout
from .model import Parts, build_model, cross_entropy
from .optimizer import build_optimizer, learning_rate, set_learning_rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..kernels.chunk_grid import FlatValues
    from .config import TrainingConfig
    from .data import TextData

_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's; SGD without momentum keeps nothing


@dataclass(frozen=True)
class StepResult:
    """What one inner step did."""

    loss: float
    """Nats per token of this step's batch, before the step."""
    gradient_norm: float
    """Before clipping."""
    lr: float
    num_tokens: int
    """0 if the gradient was not finite and the step was left out."""


def choose_device(name: str = "auto") -> torch.device:
    """``auto``: a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


class InnerLoop:
    """A model in training, one inner step at a time. With one CPU thread every result is reproducible bit for bit."""

    def __init__(
        self, config: TrainingConfig, data: TextData, device: torch.device | None = None, parts: Parts | None = None
    ) -> None:
        self.config, self.data = config, data
        self.device = device or torch.device("cpu")
        self.layout = FlatLayout.of(config.model)
        self.num_steps_done = 0
        """Optimizer steps since the optimizer's state was last reset; drives warm-up and schedule."""
        self._inner = config.inner
        """As it is in force now; see `use_lr`."""
        self._flat = torch.zeros(self.layout.num_elements, device=self.device)
        self._gradient = torch.zeros_like(self._flat)
        self._model = build_model(config.model, self.layout, self._flat, self._gradient, parts or Parts())
        self._optimizer = build_optimizer(config.inner, self._model)

    def step(
        self,
        tokens: NDArray[np.uint8],  # (batch, sequence_length + 1)
    ) -> StepResult:
        """One inner step. A gradient that is not finite changes nothing and counts no tokens."""
        loss = self._backward(tokens)
        norm = self._clip()
        lr = learning_rate(self._inner, self.num_steps_done)
        if not math.isfinite(norm):
            return StepResult(loss, norm, lr, 0)
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        self.num_steps_done += 1
        return StepResult(loss, norm, lr, tokens.shape[0] * (tokens.shape[1] - 1))

    def use_lr(self, lr: float | None) -> None:
        """Take ``lr`` for the run spec's inner learning rate from now on (None: the spec's own); warm-up and schedule
        are relative to it."""
        self._inner = self.config.inner if lr is None else self.config.inner.model_copy(update={"lr": lr})

    def load(
        self,
        parameters: NDArray[np.float32],  # (num_elements,)
    ) -> None:
        """Set all parameters; the optimizer keeps its state."""
        self._flat.copy_(torch.from_numpy(np.array(parameters)))

    def parameters(self) -> NDArray[np.float32]:
        """A copy of all parameters, (num_elements,)."""
        return self._flat.detach().to("cpu", copy=True).numpy()

    def pseudo_gradient(
        self,
        anchor: NDArray[np.float32],  # (num_elements,)
    ) -> FlatValues:
        """anchor − parameters, (num_elements,): points uphill, so that the outer step subtracts it.

        A new array; on a GPU a tensor, which stays there until it is encoded.
        """
        if self.device.type == "cpu":
            return anchor - self._flat.numpy()
        return torch.from_numpy(anchor).to(self.device) - self._flat

    def evaluate(self, parameters: NDArray[np.float32] | None = None) -> Validation:
        """Validation loss of ``parameters``, or of the current ones. Training goes on as if nothing had happened."""
        if parameters is None:
            return evaluate(self._model, self.data, self.config.data.validation_batches, self.device)
        current = self._flat.clone()
        self.load(parameters)
        try:
            return self.evaluate()
        finally:
            self._flat.copy_(current)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's state and warm up again: after a state sync, or once a NaN may be in it."""
        self._optimizer.state.clear()
        self.num_steps_done = 0

    def optimizer_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The optimizer's state as flat vectors, (num_elements,) each; none before the first step."""
        states = [self._optimizer.state.get(parameter) for parameter in self._parameters()]
        if not all(states):
            return {}
        return {m: np.concatenate([s[m].detach().cpu().numpy().ravel() for s in states if s]) for m in _MOMENTS}

    def restore_optimizer(self, tensors: dict[str, NDArray], num_steps_done: int) -> None:
        """Inverse of `optimizer_tensors`."""
        self.reset_optimizer()
        self.num_steps_done = num_steps_done
        if not all(moment in tensors for moment in _MOMENTS):
            return
        for p, parameter in zip(self.layout.parameters, self._parameters(), strict=True):
            # Fused AdamW keeps its step count as a float32 tensor beside the parameter.
            state = {"step": torch.tensor(float(num_steps_done), device=self.device)}
            state |= {m: torch.from_numpy(tensors[m][p.range].copy()).view(p.shape).to(self.device) for m in _MOMENTS}
            self._optimizer.state[parameter] = state

    def _parameters(self) -> list[torch.nn.Parameter]:
        named = dict(self._model.named_parameters())
        return [named[p.name] for p in self.layout.parameters]

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        """Gradient of the batch into `_gradient`; returns the loss."""
        batch = torch.from_numpy(tokens).to(self.device, torch.long)
        self._gradient.zero_()
        with autocast(self.device):
            loss = cross_entropy(self._model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        return loss.item()

    def _clip(self) -> float:
        """Scale the gradient down to ``clip_norm``; returns its norm before."""
        norm = torch.linalg.vector_norm(self._gradient).item()
        clip_norm = self.config.inner.clip_norm
        if clip_norm and norm > clip_norm:
            self._gradient.mul_(clip_norm / norm)
        return norm
