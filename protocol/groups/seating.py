"""Gives a delegate's seats: each is on disk before anybody is told of it. A full disk gives none, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Executor

from ..identity import PeerId
from ..offload import off_loop
from ..outcomes import Observe
from .seat_store import SeatStore
from .seats import Seats


class Seating:
    """The seats of the present round. Changes wait for each other; `seats` is what is on disk."""

    def __init__(self, store: SeatStore, executor: Executor, observe: Observe) -> None:
        self._store, self._executor, self._observe = store, executor, observe
        self._turn = asyncio.Lock()
        self.seats: Seats | None = None
        """None before the first round in which this node is a delegate."""

    async def begin(self, lineage: int, number: int, num_seats: int, staying: Collection[PeerId]) -> bool:
        """The seats of round ``number``: those of ``staying`` stay theirs. False if they cannot be kept on disk."""
        async with self._turn:
            try:
                seats = self.seats
                if seats is None or seats.lineage != lineage:
                    seats = await off_loop(self._executor, self._store.load, lineage, number, num_seats)
                if seats.round < number:
                    seats = seats.next_round(number, staying)
                    await off_loop(self._executor, self._store.save, seats)
                self.seats = seats
            except OSError as error:
                self._say(error)
                return False
            return True

    async def give(self, number: int, peer: PeerId) -> bool:
        """Give ``peer`` a seat, if one is free. False if the round is another one, or the disk is full."""
        async with self._turn:
            seats = self.seats
            if seats is None or seats.round != number:
                return False
            given = seats.given_to(peer)
            if given is not None and given is not seats:
                try:
                    await off_loop(self._executor, self._store.save, given)
                except OSError as error:
                    self._say(error)
                    return False
                self.seats = given
            return True

    def _say(self, error: OSError) -> None:
        self._observe("group.unwritable", {"why": error.strerror or str(error)})
