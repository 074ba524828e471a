"""The flat view of a model: ordered, named parameters at known offsets of one float32 vector.

The layout follows from the model's configuration alone, so neither torch nor the model is needed to make, slice or hash
a state. Tied parameters appear once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from ..kernels.initial import fill_normal, parameter_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .config import ModelConfig


@dataclass(frozen=True)
class Parameter:
    """One named tensor of a model and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    init_std: float
    """Standard deviation of its initial values; 0: all ones (norms)."""
    offset: int = 0

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def range(self) -> slice:
        """Its elements in the flat vector."""
        return slice(self.offset, self.offset + self.num_elements)


@dataclass(frozen=True)
class FlatLayout:
    """Parameters in their order, end to end without gaps."""

    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, model: ModelConfig) -> Self:
        """Layout of a configured model; equal on every machine."""
        placed: list[Parameter] = []
        offset = 0
        for parameter in PARAMETERS[model.architecture](model):
            placed.append(Parameter(parameter.name, parameter.shape, parameter.init_std, offset))
            offset += parameter.num_elements
        return cls(tuple(placed))

    @property
    def num_elements(self) -> int:
        """Length of the flat vector."""
        return self.parameters[-1].range.stop

    def views(self, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Every parameter as a shaped view of ``flat`` (num_elements,); nothing is copied."""
        return {p.name: flat[p.range].reshape(p.shape) for p in self.parameters}

    def fill_initial(self, out: NDArray[np.float32], seed: int, start: int = 0) -> None:
        """Initial values of elements [start, start + len(out)); any range alone has the bits of the whole."""
        stop = start + len(out)
        for p in self.parameters:
            low, high = max(start, p.range.start), min(stop, p.range.stop)
            if low < high:
                _fill(p, out[low - start : high - start], low - p.offset, seed)


def initial_state(model: ModelConfig) -> NDArray[np.float32]:
    """The flat vector (num_elements,) that a run starts from: a function of the configuration, no torch needed."""
    layout = FlatLayout.of(model)
    values = np.empty(layout.num_elements, np.float32)
    layout.fill_initial(values, model.init_seed)
    return values


def _fill(parameter: Parameter, out: NDArray[np.float32], start: int, seed: int) -> None:
    if parameter.init_std == 0:
        out.fill(1.0)
    else:
        fill_normal(out, parameter_key(seed, parameter.name), start, parameter.init_std)


def _llama_parameters(model: ModelConfig) -> Iterator[Parameter]:
    """Names as `training.model` gives them, in depth order, so that neighbours in the vector are used together."""
    yield Parameter("embedding.weight", (model.vocab_size, model.dim), model.weight_std)
    for layer in range(model.num_layers):
        yield from _block_parameters(model, f"blocks.{layer}.")
    yield Parameter("norm.weight", (model.dim,), 0)
    if not model.tie_embeddings:
        yield Parameter("head.weight", (model.vocab_size, model.dim), model.weight_std)


PARAMETERS: dict[str, Callable[[ModelConfig], Iterator[Parameter]]] = {"llama": _llama_parameters}
"""Architecture -> its parameters in order, offsets still 0."""


def _block_parameters(model: ModelConfig, prefix: str) -> Iterator[Parameter]:
    dim, kv_dim, std = model.dim, model.num_kv_heads * model.head_dim, model.weight_std
    back_std = std / math.sqrt(2 * model.num_layers)  # keeps the residual stream's variance flat in depth (GPT-2)
    yield Parameter(prefix + "attention_norm.weight", (dim,), 0)
    yield Parameter(prefix + "attention.query.weight", (dim, dim), std)
    yield Parameter(prefix + "attention.key.weight", (kv_dim, dim), std)
    yield Parameter(prefix + "attention.value.weight", (kv_dim, dim), std)
    yield Parameter(prefix + "attention.output.weight", (dim, dim), back_std)
    yield Parameter(prefix + "feed_forward_norm.weight", (dim,), 0)
    yield Parameter(prefix + "feed_forward.gate.weight", (model.hidden_dim, dim), std)
    yield Parameter(prefix + "feed_forward.up.weight", (model.hidden_dim, dim), std)
    yield Parameter(prefix + "feed_forward.down.weight", (dim, model.hidden_dim), back_std)
