"""What must outlive a restart: a delegate's seats, and in which groups a follower has let its work be used. Blocking.

A delegate that gave a seat to somebody else after a restart would let samples enter a round twice; a follower that had
forgotten that its work was used would carry it into the next round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field

from ..durable import replace_durably
from ..identity import PeerId
from ..parsing import Unreadable, parse
from ..values import Count, Frozen, Peer, Round
from .seats import Seated, Seats

_ROUNDS_KEPT = 8

_Taken: TypeAlias = tuple[Annotated[int, Field(ge=1, le=1023)], Peer, Round]
"""Seat, follower, and since when it has been in the group."""


class _SeatsFile(Frozen):
    lineage: Count
    round: Round
    is_closed: bool
    taken: Annotated[tuple[_Taken, ...], Field(max_length=1023)]

    def seats(self, num_seats: int) -> Seats:
        taken = {seat: Seated(peer, since) for seat, peer, since in self.taken}
        return Seats(self.lineage, self.round, num_seats, taken, is_closed=self.is_closed)


class _PartsFile(Frozen):
    parts: Annotated[tuple[tuple[Round, Peer], ...], Field(max_length=1024)]


class SeatStore:
    """The seats of the last round in which this node has given any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def load(self, lineage: int, number: int, num_seats: int) -> Seats:
        """Seats of round ``number``, or of the earlier one that was written last.

        Without a file, or with a damaged one, nobody knows what this node has said in the present round: it gives none
        in that round (`Seats.is_closed`), also after another restart.
        """
        try:
            known = parse(_SeatsFile, self._path.read_bytes()).seats(num_seats)
        except (OSError, Unreadable):
            known = None
        if known is not None and known.lineage == lineage and known.round <= number:
            return known
        if known is not None and known.lineage < lineage:
            return Seats(lineage, number, num_seats)
        closed = Seats(lineage, number, num_seats, is_closed=True)
        self.save(closed)
        return closed

    def save(self, seats: Seats) -> None:
        """Before anybody is told of a seat. Raises OSError."""
        taken = tuple((seat, seated.peer, seated.since) for seat, seated in sorted(seats.taken.items()))
        content = _SeatsFile(lineage=seats.lineage, round=seats.round, is_closed=seats.is_closed, taken=taken)
        replace_durably(self._path, content.canonical())


class PartStore:
    """Round → the delegate whose group has had this node's work, or some of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._parts = dict(parse(_PartsFile, path.read_bytes()).parts)
        except (OSError, Unreadable):
            self._parts: dict[int, PeerId] = {}  # no file yet; or with the disk, what was trained is lost as well

    def delegate_of(self, number: int) -> PeerId | None:
        return self._parts.get(number)

    def note(self, number: int, delegate: PeerId) -> None:
        """Before a byte of the contribution leaves. Raises OSError."""
        if self._parts.get(number) == delegate:
            return
        kept = {known: peer for known, peer in self._parts.items() if number - _ROUNDS_KEPT < known < number}
        kept[number] = delegate
        replace_durably(self._path, _PartsFile(parts=tuple(kept.items())).canonical())
        self._parts = kept
