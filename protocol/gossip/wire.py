"""A ``swap`` stream: two peers agree on a pair, commit to their vectors, and send them to each other.

    dialler    → offer                     what it has: round, tokens, two commitments; a nonce
    listener   → answer                    no, and why; or its own offer, with the dialler's nonce
    dialler    → confirm                   the listener's nonce: both are here, now, for each other
    both       → leaves and chunks of the pseudo-gradient, then of the weights, at the same time in both directions
    both       → verdict                   ``T``: taken; ``X`` and a reason: abandoned

Nonces make an answer and a confirmation good for one conversation only. Lengths follow from the grid.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..commitments import Root
from ..parsing import Unreadable, parse
from ..values import Count, Digest, Frozen, Round, Speed, SquaredNorm
from .search import Why

PROTOCOL = "swap"
MAX_GREETING_BYTES = 4096
MAX_VERDICT_BYTES = 256
TAKEN, ABANDONED = b"T", b"X"

Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Commitment(Frozen):
    """Root over the chunks of an encoded vector."""

    digest: Digest
    squared_norm: SquaredNorm

    @classmethod
    def of(cls, root: Root) -> Commitment:
        return cls(digest=root.digest, squared_norm=root.squared_norm)

    @property
    def root(self) -> Root:
        return Root(self.digest, self.squared_norm)


class Terms(Frozen):
    """What a peer has for its partner."""

    lineage: Count
    round: Annotated[Round, Field(ge=1)]
    """That it works on."""
    tokens: Count
    num_inner_steps: Count = 0
    tokens_per_s: Speed = 0.0
    delta: Commitment
    weights: Commitment


class Offer(Frozen):
    """The dialler's first frame."""

    kind: Literal["offer"] = "offer"
    nonce: Nonce
    terms: Terms


class Answer(Frozen):
    """The listener's: ``terms`` if it accepts, else ``why`` not."""

    kind: Literal["answer"] = "answer"
    echo: Nonce
    """The dialler's."""
    nonce: Nonce
    terms: Terms | None = None
    why: Why | None = None


class Confirm(Frozen):
    """The dialler's second frame."""

    kind: Literal["confirm"] = "confirm"
    echo: Nonce
    """The listener's."""


def read_offer(frame: bytes) -> Offer:
    """Raises `Unreadable`."""
    return parse(Offer, frame)


def read_answer(frame: bytes) -> Answer:
    """Raises `Unreadable`, also for an answer that neither accepts nor declines."""
    answer = parse(Answer, frame)
    if (answer.terms is None) == (answer.why is None):
        raise Unreadable("an answer accepts or declines")
    return answer


def read_confirm(frame: bytes) -> Confirm:
    """Raises `Unreadable`."""
    return parse(Confirm, frame)


def read_verdict(frame: bytes) -> str | None:
    """None: taken; else why it was abandoned. Raises `Unreadable`."""
    if frame == TAKEN:
        return None
    if frame[:1] != ABANDONED:
        raise Unreadable("no verdict")
    text = frame[1:].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text) or "no reason given"


def verdict(why: str | None) -> bytes:
    """Inverse of `read_verdict`."""
    return TAKEN if why is None else ABANDONED + why.encode()[: MAX_VERDICT_BYTES - 1]
