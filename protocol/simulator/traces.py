"""Traces: who takes part, over which links, at which speed, and what befalls them, as TOML files.

A trace names no peers: it is laid over any number of them. Those that ship lie in ``traces/``, by name.
"""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from ..parsing import canonical_json
from ..spec import SpecError, TimingConfig
from ..spec_text import explain, read_text
from ..values import Frozen
from .behaviours import BEHAVIOURS

_PACKAGE = "atoll.protocol.simulator"
Positive = Annotated[float, Field(gt=0, le=1e18)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Interval = tuple[NotNegative, NotNegative]
"""Low and high; values are drawn evenly between them."""


class PeerGroup(Frozen):
    """Peers of one kind."""

    name: str
    """Also their region, for `paths`."""
    share: Positive = 1.0
    """Of all peers, relative to the other groups."""
    speeds: Annotated[tuple[Positive, ...], Field(max_length=1024)] = (1.0,)
    """Relative training speeds, dealt out in turn."""
    up_bps: tuple[Positive, Positive] = (1e18, 1e18)
    down_bps: tuple[Positive, Positive] = (1e18, 1e18)
    dial_out_only: bool = False
    behaviour: str = "honest"

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.speeds:
            raise ValueError("speeds: there must be at least one")
        if self.behaviour not in BEHAVIOURS:
            raise ValueError(f"behaviour {self.behaviour!r} is not one of: {', '.join(BEHAVIOURS)}")
        return self


class PathConfig(Frozen):
    """Between two groups, or within one."""

    between: tuple[str, str]
    latency_s: NotNegative
    bps: Positive = 1e18
    """Per pair of peers and direction."""


class NetworkConfig(Frozen):
    """What all links have in common."""

    latency_s: Interval = (0.02, 0.05)
    """One way; drawn for every message."""
    loss: Fraction = 0.0
    duplication: Fraction = 0.0
    relay: bool = True
    """Messages between dial-out-only peers go through a relay."""
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a link's rate that our exchange reaches."""


class ComputeConfig(Frozen):
    """How long training takes."""

    step_s: Positive = 1.0
    """One inner step at speed 1."""
    num_steps: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Instead of the spec's."""
    drift: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """A round's speed is within (1 ± drift) × the peer's."""
    encode_s: NotNegative = 0.0


class ChurnConfig(Frozen):
    """Peers that come and go."""

    leaving_per_round: Fraction = 0.0
    """Share of the peers that crash in a round, each at some moment of it."""
    away_s: Interval = (0.0, 0.0)
    """How long one of them stays away."""
    day_s: NotNegative = 0.0
    """Length of a day; 0: peers do not keep hours."""
    awake_share: Fraction = 1.0
    """Of the day that a peer is there; each has hours of its own."""


class EventConfig(Frozen):
    """Something that happens once."""

    what: Literal["crash", "start", "sleep", "wake", "join", "partition", "heal"]
    round: Annotated[int, Field(ge=1, le=2**20)]
    """Happens while this round is worked on…"""
    after_s: NotNegative = 0.0
    """…so long after it has begun."""
    num_peers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Of how many; with ``partition``, on the smaller side. ``start`` and ``wake`` are of those longest down."""


class PublishedConfig(Frozen):
    """What another system was measured at on these links, for comparison."""

    system: str
    num_peers: Annotated[int, Field(ge=2, le=1024)]
    all_reduce_s: Positive
    utilisation: Fraction
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a link's rate that its exchange reaches."""
    bits_per_value: Positive = 8.0


class Trace(Frozen):
    """A trace file."""

    description: str
    num_parameters: Positive | None = None
    """Instead of the spec's model."""
    groups: Annotated[tuple[PeerGroup, ...], Field(max_length=64)]
    paths: Annotated[tuple[PathConfig, ...], Field(max_length=256)] = ()
    network: NetworkConfig = NetworkConfig()
    compute: ComputeConfig = ComputeConfig()
    churn: ChurnConfig = ChurnConfig()
    timing: TimingConfig | None = None
    """Instead of the spec's."""
    events: Annotated[tuple[EventConfig, ...], Field(max_length=256)] = ()
    published: PublishedConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.groups:
            raise ValueError("groups: there must be at least one")
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("groups: a name twice")
        unknown = [name for path in self.paths for name in path.between if name not in names]
        if unknown:
            raise ValueError(f"paths: there is no group {unknown[0]!r}")
        return self

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Trace of a TOML text. Raises `SpecError`: one line per fault."""
        try:
            table = tomllib.loads(text)
            return cls.model_validate_json(canonical_json(table))
        except ValidationError as error:
            raise SpecError(explain(error, cls, source)) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise SpecError([f"{source}: not a trace: {str(error).splitlines()[0][:200]}"]) from None

    @classmethod
    def load(cls, name: str) -> Self:
        """A trace that ships, by name, or a file. Raises `SpecError`."""
        if name in names():
            return cls.parse((files(_PACKAGE) / "traces" / f"{name}.toml").read_text(encoding="utf-8"), name)
        path = Path(name)
        if path.suffix != ".toml" and not path.exists():
            raise SpecError([f"{name}: there is no such trace; name a file, or one of: {', '.join(names())}"])
        return cls.parse(read_text(path), name)

    def counts(self, num_peers: int) -> list[int]:
        """Peers of each group: by share, with what rounding leaves going to the largest remainders."""
        total = math.fsum(group.share for group in self.groups)
        wanted = [num_peers * group.share / total for group in self.groups]
        counts = [int(number) for number in wanted]
        by_remainder = sorted(range(len(counts)), key=lambda index: counts[index] - wanted[index])
        for index in by_remainder[: num_peers - sum(counts)]:
            counts[index] += 1
        return counts


def names() -> list[str]:
    """Traces that ship."""
    folder = files(_PACKAGE) / "traces"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
