"""What gossip rounds need of a node's copy of the model, beside `protocol.replica`. Implemented by `atoll.node`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..messages import Commit
from ..replica import Replica
from ..transport import Buffer


@dataclass(frozen=True)
class Used:
    """A partner's vectors as they are used: encoded, and how much of each counts, 0 … 1."""

    delta: Buffer
    weights: Buffer
    """float32."""
    delta_factor: float
    pull_factor: float


class GossipReplica(Replica, Protocol):
    """This node's own weights and outer state, which no other node need have."""

    def weights(self) -> Buffer:
        """The weights after the last round, float32, in place: they do not change before `step`."""
        ...

    async def step(self, account: Commit, delta: Buffer, partner: Used | None) -> str:
        """Take the outer step and make ``account`` the head; returns the new state hash, durable when it does.

        ``delta``: our own contribution, encoded. Raises OSError if it cannot be kept; nothing has changed then.
        """
        ...
