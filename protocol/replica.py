"""What the protocol needs of a node's copy of the model. Implemented by `atoll.node.replica`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .messages import Commit
from .standing import Standing
from .transport import Buffer


class Replica(Protocol):
    """The committed state (anchor and outer optimizer) with the chain of commits that led to it."""

    @property
    def head_round(self) -> int:
        """Last applied commit; 0 for the genesis state."""
        ...

    @property
    def standing(self) -> Standing:
        """What that commit leaves in force for the next round."""
        ...

    @property
    def state_hash(self) -> str:
        """Root of the state's hash tree, computed from the buffers that are used."""
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

    async def begin_lineage(self) -> None:
        """The rules have got a new lineage: go back to the state from which it goes on, or to an older one.

        Commits that it leaves behind are forgotten; then `standing` is of the new lineage. Raises OSError.
        """
        ...
