"""Who leads: a permutation of the roster per round, and the ballots that belong to each member.

Ballot b belongs to ``permutation[b % n]``, so no two members ever use the same ballot. Ballot 0 needs no promises:
nothing can have been accepted below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache

from .identity import PeerId


def permutation(run_id: str, lineage: int, fragment: int, round_number: int, roster: Iterable[PeerId]) -> list[PeerId]:
    """``roster`` in the order in which its members lead, the same on every machine whatever the roster's order."""
    return list(_permutation(run_id, lineage, fragment, round_number, tuple(roster)))


@lru_cache(maxsize=64)
def _permutation(
    run_id: str, lineage: int, fragment: int, round_number: int, roster: tuple[PeerId, ...]
) -> tuple[PeerId, ...]:
    def rank(peer: PeerId) -> bytes:
        return hashlib.sha256(f"{run_id}/{lineage}/{fragment}/{round_number}/{peer}".encode()).digest()

    return tuple(sorted(roster, key=rank))


def next_ballot(me: PeerId, order: list[PeerId], above: int) -> int:
    """Smallest ballot of ``me`` that is greater than ``above`` (-1 for the very first)."""
    first = above + 1
    return first + (order.index(me) - first) % len(order)


def successor(order: list[PeerId], leader: PeerId, can_lead: Callable[[PeerId], bool]) -> PeerId | None:
    """First member after ``leader``, cyclically and ``leader`` itself last, that can lead; None if nobody can."""
    start = order.index(leader) + 1
    return next((peer for peer in order[start:] + order[:start] if can_lead(peer)), None)


def distance(order: list[PeerId], leader: PeerId, me: PeerId) -> int:
    """Steps from ``leader`` to ``me``, 1..n: later members wait longer before they take over from a stalled leader."""
    return (order.index(me) - order.index(leader) - 1) % len(order) + 1
