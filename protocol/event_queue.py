"""What waits for the round machine: events in the order in which they came, and of no peer more than its share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from .quotas import MESSAGE_OVERHEAD_BYTES, WAITING_BYTES, WAITING_BYTES_PER_PEER, Shares
from .round_machine import Received, Tick

E = TypeVar("E")


class EventQueue(Generic[E]):
    """Events with the time at which each came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[tuple[E | Received | Tick, float]] = asyncio.Queue()
        self._is_tick_queued = False
        self._shares = Shares(WAITING_BYTES_PER_PEER, WAITING_BYTES)
        self.queued_bytes = self._shares.of
        """Peer -> what its waiting messages take, roughly."""

    def put(self, event: E | Received | Tick) -> None:
        """Queue an event of our own; never waits. A tick is left out while another one waits."""
        if isinstance(event, Tick):
            if self._is_tick_queued:
                return
            self._is_tick_queued = True
        self._queue.put_nowait((event, self._clock()))

    def put_message(self, message: Received) -> None:
        """Queue a peer's message, unless too much of it waits already: a flood must not cost the others theirs."""
        if self._shares.take(message.sender, size_of(message)):
            self._queue.put_nowait((message, self._clock()))

    def drop_messages(self) -> None:
        """Forget what peers have said and nobody has heard yet: it was meant for another lineage."""
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        self.queued_bytes.clear()
        for item in waiting:
            if not isinstance(item[0], Received):
                self._queue.put_nowait(item)

    def take_out(self, is_urgent: Callable[[E | Received | Tick], bool]) -> list[E | Received | Tick]:
        """Events that cannot wait until those before them are handled, in their order."""
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        urgent = [item[0] for item in waiting if is_urgent(item[0])]
        for item in waiting:
            if not is_urgent(item[0]):
                self._queue.put_nowait(item)
        for event in urgent:
            self._forget(event)
        return urgent

    async def get(self) -> tuple[E | Received | Tick, float]:
        """The next event, and when it came."""
        event, at_s = await self._queue.get()
        self._forget(event)
        return event, at_s

    def _forget(self, event: E | Received | Tick) -> None:
        if isinstance(event, Tick):
            self._is_tick_queued = False
        if isinstance(event, Received) and event.sender in self.queued_bytes:
            self._shares.give_back(event.sender, size_of(event))


def size_of(message: Received) -> int:
    """What a waiting message takes, roughly."""
    return len(message.raw) + MESSAGE_OVERHEAD_BYTES
