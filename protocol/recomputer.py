"""What a node brings to spot checks: training, which the protocol knows nothing of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .identity import PeerId
from .spec import Genesis
from .transport import Buffer


@dataclass(frozen=True)
class Work:
    """What a member says that it has done, to be done again."""

    rules: Genesis
    """In force in its round."""
    round: int
    peer: PeerId
    first_sample: int
    """Of its lease."""
    num_steps: int
    chunks: tuple[int, ...]
    """Wanted, of the grid."""
    inner_state: Path
    """Verified copy of what it began with."""


@dataclass(frozen=True)
class Recomputed:
    """What an honest member would have sent."""

    encoded: tuple[Buffer, ...]
    """Of the wanted chunks, in their order."""
    num_tokens: int
    end: Path
    """Copy of the inner state after the steps."""
    fault: str = ""
    """Why what the member began with is no state, or leads nowhere; then the rest says nothing."""


class Recomputer(Protocol):
    """Recomputes others' inner steps, and knows where this node's own inner states lie."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of a copy of an inner state without and with the optimizer's moments."""
        ...

    def own_state(self, round_number: int) -> Path:
        """Where this node's own copy of a round lies."""
        ...

    async def keep_anchor(self, round_number: int) -> bool:
        """Copy the anchor after a round, from which the next one is trained. False if it is gone already."""
        ...

    async def recompute(self, work: Work) -> Recomputed | None:
        """Do the steps again from the kept anchor, beside everything else; None if that fails here."""
        ...

    def continuity(self, end: Path, start: Path) -> float | None:
        """Cosine between where the optimizer ended and where it goes on; None if it begins anew. Blocking.

        0 if ``start`` is no state or belongs to another number of steps.
        """
        ...
