"""What the node's other parts need of its copy of the model, whatever the run's topology."""

from __future__ import annotations

from typing import Protocol

from ..protocol.messages import Commit
from ..protocol.standing import Standing


class OwnState(Protocol):
    """`replica.Replica`, or `gossip_replica.GossipReplica`. Properties are cheap and never wait."""

    @property
    def head(self) -> Commit | None:
        """The last round that is applied; None: the initial state."""
        ...

    @property
    def head_round(self) -> int:
        """Its number; 0: the initial state."""
        ...

    @property
    def standing(self) -> Standing:
        """What it leaves in force."""
        ...

    @property
    def state_hash(self) -> str:
        """Of the state after it."""
        ...
