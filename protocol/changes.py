"""What an amendment can change: one small value per kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from .identity import PeerId, public_key_of
from .values import Count, Digest, Frozen, Name, Peer, Round

Peers = Annotated[tuple[Peer, ...], Field(min_length=1, max_length=64)]
LearningRateValue = Annotated[float, Field(gt=0, le=1e6)]


def _real_peers(peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    for peer in peers:
        public_key_of(peer)
    if len(set(peers)) != len(peers):
        raise ValueError("a peer is listed twice")
    return peers


class Seeds(Frozen):
    """Other addresses to bootstrap from."""

    kind: Literal["seeds"] = "seeds"
    seeds: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=64)]


class Timing(Frozen):
    """Other time limits, by their names in ``[timing]``."""

    kind: Literal["timing"] = "timing"
    values: Annotated[dict[Name, float], Field(min_length=1, max_length=32)]


class Limits(Frozen):
    """Other bounds, by their names in ``[limits]``."""

    kind: Literal["limits"] = "limits"
    values: Annotated[dict[Name, int], Field(min_length=1, max_length=32)]


class LearningRate(Frozen):
    """Another learning rate of the inner optimizer, the outer one, or both."""

    kind: Literal["learning_rate"] = "learning_rate"
    inner: LearningRateValue | None = None
    outer: LearningRateValue | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.inner is None and self.outer is None:
            raise ValueError("names neither inner nor outer")
        return self


class Pause(Frozen):
    """No round is planned until `Resume`."""

    kind: Literal["pause"] = "pause"


class Resume(Frozen):
    """Rounds go on."""

    kind: Literal["resume"] = "resume"


class Finish(Frozen):
    """The round from which this is in force is the last one."""

    kind: Literal["finish"] = "finish"


class Ban(Frozen):
    """Peers that are let in no more: not at the gate, not as members, not in a roster."""

    kind: Literal["ban"] = "ban"
    peers: Peers
    _real = field_validator("peers")(_real_peers)


class Allow(Frozen):
    """Peers that may join; lifts a ban."""

    kind: Literal["allow"] = "allow"
    peers: Peers
    _real = field_validator("peers")(_real_peers)


class Keys(Frozen):
    """Other operators. Later amendments need the signatures of these, whatever their rounds."""

    kind: Literal["keys"] = "keys"
    operators: Annotated[tuple[Peer, ...], Field(min_length=1, max_length=16)]
    threshold: Annotated[int, Field(ge=1, le=16)] = 1
    _real = field_validator("operators")(_real_peers)


class Upgrade(Frozen):
    """The protocol that a node must speak. One that does not stops before the round, its state untouched."""

    kind: Literal["upgrade"] = "upgrade"
    protocol_version: Annotated[int, Field(ge=2, le=1 << 16)]


class Rollback(Frozen):
    """A new lineage from the state after ``round``: whatever was committed later is forgotten."""

    kind: Literal["rollback"] = "rollback"
    lineage: Annotated[Count, Field(ge=1)]
    """The new one: one more than the last."""
    round: Round
    record: Digest
    """`content_id` of that round's record; the run id for round 0."""
    state_hash: Digest
    """After that round."""
    roster: Annotated[tuple[Peer, ...], Field(min_length=1, max_length=1024)]
    """Who votes on the round after it."""
    _real = field_validator("roster")(_real_peers)


class Reset(Rollback):
    """The same where a quorum is lost for good; the run's recovery delegates may sign it too."""

    kind: Literal["reset"] = "reset"  # type: ignore[assignment]


Change: TypeAlias = (
    Seeds | Timing | Limits | LearningRate | Pause | Resume | Finish | Ban | Allow | Keys | Upgrade | Rollback | Reset
)


def in_words(change: Change) -> str:
    """A change in a few words, for lists and logs; peers by the end of their ids."""
    match change:
        case Seeds():
            return f"{len(change.seeds)} seeds"
        case Timing() | Limits():
            return ", ".join(f"{name} = {value:g}" for name, value in change.values.items())
        case LearningRate():
            parts = {"inner": change.inner, "outer": change.outer}
            return ", ".join(f"{name} lr {value:g}" for name, value in parts.items() if value is not None)
        case Pause():
            return "pause"
        case Resume():
            return "resume"
        case Finish():
            return "last round"
        case Ban() | Allow():
            return f"{change.kind} {', '.join(f'…{peer[-5:]}' for peer in change.peers)}"
        case Keys():
            return f"{change.threshold} of {len(change.operators)} operators sign from now on"
        case Upgrade():
            return f"protocol {change.protocol_version}"
        case Rollback():
            return f"{change.kind}: lineage {change.lineage} goes on after round {change.round}"
