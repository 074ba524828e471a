"""What a round asks of this node's trainer, where that does not follow from a roster: samples, and inner steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..protocol.budget import target_steps
from ..protocol.gossip.leases import first_sample
from ..protocol.identity import PeerId
from ..protocol.spec import Genesis
from ..training.config import InnerConfig
from ..training.data import Lease
from .own_state import OwnState


class Work(Protocol):
    """Of the round after the head."""

    def lease(self, last_round: int) -> Lease | None:
        """This node's samples; None if it is not a member, or ``last_round`` (0: none) is applied."""
        ...

    def num_steps(self, own_tokens_per_s: float) -> int:
        """Inner steps until the contribution."""
        ...


@dataclass(frozen=True)
class GossipWork:
    """By the peer's own key and round, and the speeds that peers state in their heartbeats."""

    replica: OwnState
    me: PeerId
    inner: InnerConfig
    genesis: Genesis
    """As it was signed."""
    speeds: Callable[[], Mapping[PeerId, float]]
    """Of other peers that are heard from, in tokens per second; 0: unknown."""

    def lease(self, last_round: int = 0) -> Lease | None:
        head_round, samples = self.replica.head_round, self.inner.lease_samples
        if 0 < last_round <= head_round:
            return None
        return Lease(first=first_sample(self.genesis, self.me, head_round + 1, samples), count=samples)

    def num_steps(self, own_tokens_per_s: float) -> int:
        if not self.inner.adaptive_steps or own_tokens_per_s <= 0:
            return self.inner.num_steps
        speeds = {**self.speeds(), self.me: own_tokens_per_s}
        return target_steps(speeds, self.me, num_steps=self.inner.num_steps, max_steps=self.inner.lease_steps)
