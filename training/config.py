"""What a run trains: model, data, inner and outer method, as frozen values. Does not load torch.

The four tables of a run spec (``[model]``, ``[data]``, ``[inner]``, ``[outer]``) are exactly the fields below; an
unknown field is an error that names it. The defaults are the recipe of the demo (139,584 parameters).
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .outer import OuterConfig as OuterConfig


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(_Frozen):
    """A Llama-type decoder over bytes or tokens."""

    architecture: Literal["llama"] = "llama"
    vocab_size: int = Field(default=256, gt=1)
    dim: int = Field(default=64, gt=0)
    """Width of the residual stream."""
    num_layers: int = Field(default=2, gt=0)
    num_heads: int = Field(default=4, gt=0)
    num_kv_heads: int = Field(default=4, gt=0)
    """Heads of keys and values, shared by groups of query heads (grouped-query attention, 2305.13245)."""
    hidden_dim: int = Field(default=192, gt=0)
    """Width inside the feed-forward part."""
    sequence_length: int = Field(default=64, gt=0)
    """Tokens a sample predicts."""
    tie_embeddings: bool = False
    rope_theta: float = Field(default=10_000.0, gt=0)
    norm_eps: float = Field(default=1e-5, gt=0)
    init_std: float | None = Field(default=None, gt=0)
    """Standard deviation of initial weights, None: 1/√dim; projections back into the residual stream have it divided by
    √(2·layers).

    At the demo's size 1/√dim learns faster than 0.02: validation 1.68 instead of 1.78 nats/byte after 10 rounds.
    """
    init_seed: int = Field(default=0, ge=0, lt=2**64)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.num_heads

    @property
    def weight_std(self) -> float:
        """`init_std` with its default. The square root is correctly rounded on every machine."""
        return self.init_std or 1 / math.sqrt(self.dim)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.dim % self.num_heads or self.head_dim % 2:
            raise ValueError(f"dim {self.dim} must be num_heads ({self.num_heads}) times an even number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be a multiple of num_kv_heads ({self.num_kv_heads})")
        return self


class DataConfig(_Frozen):
    """Where text comes from and how it is cut."""

    source: str = Field(default="builtin:kjv", pattern=r"^(builtin:[a-z0-9_]+|file:.+)$")
    """``builtin:NAME``, a corpus that ships with the program, or ``file:PATH``, text or xz-compressed text."""
    tokenizer: Literal["bytes"] = "bytes"
    validation_fraction: float = Field(default=0.03, gt=0, lt=1)
    """The end of the text that is held out."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Keys the order of samples."""
    validation_batches: int = Field(default=16, gt=0)
    """An evaluation reads this many batches of 32 windows, spread evenly over the held-out text."""


class InnerConfig(_Frozen):
    """What a peer does between two exchanges."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = Field(default=4e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled; matrices only."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest norm of the whole gradient; 0: not clipped."""
    warmup_steps: int = Field(default=20, ge=0)
    """The learning rate rises linearly over this many of a peer's own first steps."""
    schedule: Literal["constant", "wsd", "cosine", "linear"] = "constant"
    """After the warm-up: constant; cosine or linear to 0; ``wsd``: constant, then linear to 0 in `decay_steps`."""
    total_steps: int | None = Field(default=None, gt=0)
    """Where a falling schedule ends, in steps since the run's start; not used by ``constant``."""
    decay_steps: int = Field(default=0, ge=0)
    batch_size: int = Field(default=8, gt=0)
    """Samples of one step."""
    num_steps: int = Field(default=50, gt=0)
    """H: inner steps of a round, of a peer of average speed."""
    adaptive_steps: bool = True
    """Whether a peer's steps follow its measured speed, so that slow and fast peers finish together."""
    max_steps: int | None = Field(default=None, gt=0)
    """Steps that a round's lease allows, for fast peers and for rounds that must be tried again.

    None: four times `num_steps`, which holds a peer four times as fast as the average; twice without `adaptive_steps`.
    """

    @property
    def lease_steps(self) -> int:
        """`max_steps` with its default."""
        return self.max_steps or (4 if self.adaptive_steps else 2) * self.num_steps

    @property
    def lease_samples(self) -> int:
        """Samples that one peer's lease of one round holds."""
        return self.lease_steps * self.batch_size

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        if self.lease_steps < self.num_steps:
            raise ValueError(f"max_steps {self.max_steps} must be at least num_steps ({self.num_steps})")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {self.betas} must be in [0, 1)")
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"schedule {self.schedule!r} needs total_steps")
        return self


class TrainingConfig(_Frozen):
    """The part of a run spec that training reads."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    inner: InnerConfig = InnerConfig()
    outer: OuterConfig = OuterConfig(momentum_warmup_rounds=10)


class TrainerSpec(_Frozen):
    """What a trainer process is told when it starts, as one JSON file."""

    training: TrainingConfig
    chunk_elements: int = Field(gt=0)
    """Elements of one chunk of the exchange's grid."""
    codec: str
    """Name in `atoll.kernels.codec`."""
    save_interval_s: float = Field(default=60.0, ge=0)
    """Inner checkpoints are at least this far apart."""
    num_threads: int = Field(default=1, gt=0)
    """Threads of one inner step on a CPU; with 1 a run is reproducible bit for bit."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu`` or a torch device name."""
    shows_inner_state: bool = False
    """Whether a copy of the inner optimizer's state is kept at the start of each round, for spot checks by others."""
    nan_round: int = Field(default=0, ge=-1)
    """Fault injection: the first contribution to this round gets a NaN; 0: never; -1: every contribution."""
