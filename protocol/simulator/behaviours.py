"""How a simulated peer behaves: honestly, or in one of the ways in which peers were seen or feared to misbehave.

A behaviour stands between a node's real round machine and the network: it may change or withhold what the node says. A
further one is a subclass that overrides what it changes, and a line in `BEHAVIOURS`.
"""

from __future__ import annotations

import hashlib

from ..identity import PeerId
from ..messages import Heartbeat, Message, PlanMessage, Prepare, Proposal, Ready, Vote
from ..record import SpanResult


class Behaviour:
    """Honest: everything passes unchanged."""

    donates = True
    """Whether it gives results to those that fetch them."""

    def contributes(self, ready: Ready) -> Ready | None:
        """What the node's trainer offers; None for nothing."""
        return ready

    def says(self, receiver: PeerId, body: Message) -> Message | None:
        """What is sent instead of ``body``; None for nothing."""
        return body

    def reduces(self, result: SpanResult) -> SpanResult:
        """What the node, as an owner, says a span's mean is."""
        return result

    def serves(self, result: SpanResult, receiver: PeerId) -> SpanResult | None:
        """What it really sends of a span's mean; None for nothing."""
        return result


class WeightInflation(Behaviour):
    """Claims a thousand times the tokens."""

    def contributes(self, ready: Ready) -> Ready:
        return ready.model_copy(update={"tokens": min(ready.tokens * 1000, 2**53)})


class LyingReducer(Behaviour):
    """The means of its spans are not the means of what it was sent, the same lie for everybody."""

    def reduces(self, result: SpanResult) -> SpanResult:
        return result.model_copy(update={"digest": _other(result.digest)})


class TwoFacedReducer(Behaviour):
    """Sends every second member other bytes than it tells the leader."""

    def serves(self, result: SpanResult, receiver: PeerId) -> SpanResult:
        is_fooled = hashlib.sha256(receiver.encode()).digest()[0] % 2 == 0
        return result.model_copy(update={"digest": _other(result.digest)}) if is_fooled else result


class SilentOwner(Behaviour):
    """Takes contributions and never returns a mean, neither in the exchange nor to those that ask for it later."""

    donates = False

    def serves(self, result: SpanResult, receiver: PeerId) -> SpanResult | None:
        return None


class SilentLeader(Behaviour):
    """Wants to lead and then says nothing to the others."""

    def says(self, receiver: PeerId, body: Message) -> Message | None:
        return None if isinstance(body, PlanMessage | Proposal | Prepare) else body


class NeverVotes(Behaviour):
    """Takes part in everything and withholds its vote."""

    def says(self, receiver: PeerId, body: Message) -> Message | None:
        return None if isinstance(body, Vote) else body


class Boaster(Behaviour):
    """Says that it is a million rounds ahead."""

    def says(self, receiver: PeerId, body: Message) -> Message:
        return body.model_copy(update={"round": body.round + 10**6}) if isinstance(body, Heartbeat) else body


BEHAVIOURS: dict[str, type[Behaviour]] = {
    "honest": Behaviour,
    "weight_inflation": WeightInflation,
    "lying_reducer": LyingReducer,
    "two_faced_reducer": TwoFacedReducer,
    "silent_owner": SilentOwner,
    "silent_leader": SilentLeader,
    "never_votes": NeverVotes,
    "boaster": Boaster,
}
"""Name in a trace → how such a peer behaves."""


def _other(digest: str) -> str:
    return hashlib.sha256(digest.encode()).hexdigest()
