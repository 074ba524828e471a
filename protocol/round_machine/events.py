"""What the round machine is told, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..identity import PeerId
from ..messages import Commit, Message, Ready
from ..record import Plan, Record, SpanResult
from .values import Acceptor, RoundState

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A verified message for this round (or a heartbeat). ``raw`` is its envelope, which certificates quote."""

    sender: PeerId
    body: Message
    raw: bytes


@dataclass(frozen=True)
class Tick:
    """Time has passed. Needed a few times per heartbeat interval."""


@dataclass(frozen=True)
class Woke:
    """This process did not run for a while (suspended): silence of the others proves nothing."""


@dataclass(frozen=True)
class Contributed:
    """Our contribution is encoded and kept until the round ends or is given up."""

    ready: Ready


@dataclass(frozen=True)
class SpanReduced:
    """We own a span and have finished it."""

    result: SpanResult


@dataclass(frozen=True)
class SpanLost:
    """The owner of a span is lost to us."""

    plan_id: str
    span: int
    why: str


@dataclass(frozen=True)
class ExchangeEnded:
    """Our part of a plan's all-reduce is over, complete or not (an owner may have gone on without us)."""

    plan_id: str


@dataclass(frozen=True)
class ResultsHeld:
    """Every span result of a plan is durable here: exchanged, fetched, or found on disk after a restart."""

    plan_id: str
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Distrusted:
    """The owner of a span does not show what its result is over, or has lied."""

    plan_id: str
    span: int
    why: str


@dataclass(frozen=True)
class Proven:
    """Evidence of a peer's misconduct is verified and durable here."""

    peer: PeerId


Event: TypeAlias = (
    Received | Tick | Woke | Contributed | SpanReduced | SpanLost | ExchangeEnded | ResultsHeld | Distrusted | Proven
)

# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Write the acceptor to disk, fsync included, before any later action of the same list."""

    acceptor: Acceptor


@dataclass(frozen=True)
class Send:
    """Send a message to peers; one to ourselves comes back as `Received`. Best effort: the machine repeats itself."""

    to: tuple[PeerId, ...]
    message: Message


@dataclass(frozen=True)
class StartExchange:
    """Run the plan's all-reduce, and feed back `SpanReduced`, `SpanLost`, `ResultsHeld`, `ExchangeEnded`."""

    plan: Plan


@dataclass(frozen=True)
class CancelExchange:
    """Stop the plan's all-reduce; keep what it has written until the round is decided."""

    plan_id: str


@dataclass(frozen=True)
class FetchResults:
    """Get the record's span results from whoever has them, by digest, and feed back `ResultsHeld`."""

    record: Record


@dataclass(frozen=True)
class Decide:
    """The round is decided: fetch what is missing and apply it. The machine is finished."""

    commit: Commit


@dataclass(frozen=True)
class GiveUp:
    """Our contribution is withdrawn (S3: nothing has changed); a later one may follow in the same round."""

    reason: str


Action: TypeAlias = Persist | Send | StartExchange | CancelExchange | FetchResults | Decide | GiveUp
Step: TypeAlias = tuple[RoundState, tuple[Action, ...]]
