"""What both sides of a group work with; all of it is the round driver's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from ..chunks import ChunkGrid
from ..identity import PeerId
from ..mail import Mail
from ..peers import PeerTable
from ..points import Points
from ..reduction import Reduction
from ..replica import Replica
from ..results import ResultStore
from .ledger import GroupLedger


@dataclass(frozen=True)
class GroupParts:
    """Of one node, for as long as it lives."""

    grid: ChunkGrid
    replica: Replica
    mail: Mail
    peers: PeerTable
    points: Points
    reduction: Reduction
    store: ResultStore
    """Means of groups, apart from those of rounds: nobody else ever asks for them."""
    ledger: GroupLedger
    executor: Executor
    greet: Callable[[PeerId], None]
    """Sends a heartbeat to one peer."""
    clock: Callable[[], float]

    @property
    def me(self) -> PeerId:
        return self.mail.me
