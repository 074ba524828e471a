"""Which contributions to a span have arrived, who is in, and what can be reduced next. No I/O, no numbers.

Chunks arrive in order per member and are reduced in order. A member that fails before its last chunk is excluded from
the *whole* span: the generation goes up, everything reduced so far is void, and reduction starts again from what the
owner has kept, so that all chunks of a span are over the same members (S5). A member whose last chunk has arrived can
not fail the span any more; what it has sent may still turn out to be unfit, until the span is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Weigh: TypeAlias = Callable[[Sequence[bool]], Sequence[float]]
"""Weight of every member in a mean of those that are included (`weights.weights`); zero for the others."""


@dataclass
class SpanLedger:
    """Book-keeping of one span; members are named by their index in the plan."""

    num_members: int
    num_chunks: int
    weigh: Weigh
    generation: int = 0
    num_reduced: int = 0
    """Chunks reduced in this generation."""
    excluded: dict[int, str] = field(default_factory=dict[int, str])
    """Member -> rule that it broke, in the order of exclusion."""
    num_received: list[int] = field(init=False)
    """Per member, how many chunks have arrived and passed all checks."""

    def __post_init__(self) -> None:
        self.num_received = [0] * self.num_members

    @property
    def members(self) -> list[int]:
        """Those who are still in, in plan order."""
        return [member for member in range(self.num_members) if member not in self.excluded]

    @property
    def included(self) -> tuple[bool, ...]:
        return tuple(member not in self.excluded for member in range(self.num_members))

    @property
    def weights(self) -> list[float]:
        """Per member of `members`; rounded to float32 by the kernel."""
        each = self.weigh(self.included)
        return [each[member] for member in self.members]

    @property
    def is_hopeless(self) -> bool:
        """Nobody with any weight is left."""
        return not any(self.weights)

    @property
    def next_chunk(self) -> int | None:
        """The chunk to reduce now, if all its contributions are here."""
        chunk = self.num_reduced
        if chunk == self.num_chunks or self.is_hopeless:
            return None
        return chunk if all(self.num_received[member] > chunk for member in self.members) else None

    @property
    def is_complete(self) -> bool:
        return self.num_reduced == self.num_chunks

    def is_delivered(self, member: int) -> bool:
        """Whether the member's whole contribution to the span is here."""
        return self.num_received[member] == self.num_chunks

    def receive(self, member: int) -> None:
        """The member's next chunk has arrived and is sound."""
        if self.is_delivered(member):
            raise ValueError(f"member {member} has delivered all {self.num_chunks} chunks already")
        self.num_received[member] += 1

    def exclude(self, member: int, rule: str) -> bool:
        """Take a member out that fails; True if that changed anything. Whoever has delivered stays in."""
        return not self.is_delivered(member) and self.refuse(member, rule)

    def refuse(self, member: int, rule: str) -> bool:
        """Take a member out for what it has sent; True if that changed anything. Nobody leaves a complete span."""
        if member in self.excluded or self.is_complete:
            return False
        self.excluded[member] = rule
        self.generation += 1
        self.num_reduced = 0
        return True

    def reduce(self, generation: int) -> bool:
        """The next chunk was reduced in ``generation``; False (and no change) if that is void by now."""
        if generation != self.generation or self.is_complete:
            return False
        self.num_reduced += 1
        return True
