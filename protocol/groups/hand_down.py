"""From whom a follower gets the spans of a decided round, so that its delegate gives each away about once. Pure.

Per span, the followers that can be dialled stand in a binary tree whose root asks the delegate and everybody else its
parent; the root is another one for each span. So a delegate's uplink carries about one vector for its whole group, and
a follower's at most two, where each span travels log₂(group) steps. Those that nobody can dial are leaves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..identity import PeerId
from ..record import Plan


@dataclass(frozen=True)
class Crew:
    """The followers of a group in one round, in the same order for all of them."""

    delegate: PeerId
    dialable: tuple[PeerId, ...]
    others: tuple[PeerId, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> Crew:
        """By the plan that the group has reduced by: who owned a span in it can be dialled."""
        followers = [member.peer for member in plan.members if member.peer != plan.leader]
        owners = {span.owner for span in plan.spans}
        dialable = tuple(peer for peer in followers if peer in owners)
        return cls(plan.leader, dialable, tuple(peer for peer in followers if peer not in owners))

    def line(self, span: int, me: PeerId) -> tuple[PeerId, ...]:
        """Whom ``me`` may ask for a span: its parent, that one's parent, and so on; last the delegate."""
        order = [*self._rotated(span), *self.others]
        if me not in order or not self.dialable:
            return (self.delegate,)
        line: list[PeerId] = []
        place = order.index(me)
        while place > 0:
            place = (place - 1) // 2 % len(self.dialable)
            line.append(order[place])
        return (*line, self.delegate)

    def _rotated(self, span: int) -> tuple[PeerId, ...]:
        first = span % len(self.dialable) if self.dialable else 0
        return self.dialable[first:] + self.dialable[:first]


def sources(line: tuple[PeerId, ...], gone: Collection[PeerId], *, is_patient: bool) -> tuple[PeerId, ...]:
    """Whom to ask now: while patient only the nearest that is there, since it is getting the span itself."""
    present = tuple(peer for peer in line if peer not in gone) or line[-1:]
    return present[:1] if is_patient else present
