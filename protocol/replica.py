"""What the protocol needs of a node's copy of the model. Implemented by `atoll.node.replica`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .identity import PeerId
from .messages import Commit
from .transport import Buffer


class Replica(Protocol):
    """The committed state (anchor and outer optimizer) with the chain of commits that led to it."""

    @property
    def head_round(self) -> int:
        """Last applied commit; 0 for the genesis state."""
        ...

    @property
    def head_record_id(self) -> str:
        """`content_id` of that commit's record; the run id for the genesis state."""
        ...

    @property
    def state_hash(self) -> str:
        """Root of the state's hash tree, computed from the buffers that are used."""
        ...

    @property
    def data_cursor(self) -> int:
        """First sample index of the next round's leases."""
        ...

    @property
    def roster(self) -> Sequence[str]:
        """Who votes on the next round."""
        ...

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        """Take the outer step of ``commit`` and return the new state hash; durable when it returns.

        Raises ValueError if the commit does not follow the head, OSError if it cannot be kept; nothing has changed then
        and the same commit may be applied again.
        """
        ...

    def commits(self, first: int, count: int) -> Sequence[Commit]:
        """Commits ``first``, ``first + 1``, … with their certificates, as far as they are here."""
        ...


def next_roster(replica: Replica) -> tuple[PeerId, ...]:
    """The replica's roster as peer ids."""
    return tuple(PeerId(peer) for peer in replica.roster)
