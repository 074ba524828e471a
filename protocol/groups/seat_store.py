"""What must outlive a restart: a delegate's seats, and in which groups a follower has let its work be used. Blocking.

A delegate that gave a seat to somebody else after a restart would let samples enter a round twice; a follower that had
forgotten that its work was used would carry it into the next round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..durable import replace_durably
from ..identity import PeerId
from ..parsing import canonical_json
from .seats import Seated, Seats

_ROUNDS_KEPT = 8


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
            content = _read(self._path)
            if content["lineage"] == lineage and content["round"] <= number:
                return _seats_of(content, num_seats)
            if content["lineage"] < lineage:
                return Seats(number, num_seats)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        closed = Seats(number, num_seats, is_closed=True)
        self.save(lineage, closed)
        return closed

    def save(self, lineage: int, seats: Seats) -> None:
        """Before anybody is told of a seat. Raises OSError."""
        taken = [[seat, seated.peer, seated.since] for seat, seated in sorted(seats.taken.items())]
        content = {"lineage": lineage, "round": seats.round, "is_closed": seats.is_closed, "taken": taken}
        replace_durably(self._path, canonical_json(content))


def _seats_of(content: dict[str, Any], num_seats: int) -> Seats:
    taken = {int(seat): Seated(PeerId(str(peer)), int(since)) for seat, peer, since in content["taken"]}
    return Seats(int(content["round"]), num_seats, taken, is_closed=bool(content["is_closed"]))


@dataclass
class PartStore:
    """Round → the delegate whose group has had this node's work, or some of it."""

    path: Path

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._parts: dict[int, PeerId] = {}
        try:
            content = _read(self.path)
            self._parts = {int(number): PeerId(str(peer)) for number, peer in content.items()}
        except (OSError, ValueError):
            pass  # no file yet; or with its disk the node has lost what it has trained as well

    def delegate_of(self, number: int) -> PeerId | None:
        return self._parts.get(number)

    def note(self, number: int, delegate: PeerId) -> None:
        """Before a byte of the contribution leaves. Raises OSError."""
        if self._parts.get(number) == delegate:
            return
        kept = {known: peer for known, peer in self._parts.items() if number - _ROUNDS_KEPT < known < number}
        kept[number] = delegate
        replace_durably(self.path, canonical_json({str(known): peer for known, peer in kept.items()}))
        self._parts = kept


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return cast("dict[str, Any]", content)
