"""What waits for the round machine: events in the order in which they came, and of no peer more than its share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from .identity import PeerId
from .round_machine import Received, Tick

_MAX_QUEUED_BYTES = 8 << 20
"""Of one peer's messages, while we are busy. Beyond it further ones are better lost; everything is repeated anyway."""
_MESSAGE_OVERHEAD_BYTES = 4 << 10

E = TypeVar("E")


class EventQueue(Generic[E]):
    """Events with the time at which each came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[tuple[E | Received | Tick, float]] = asyncio.Queue()
        self._is_tick_queued = False
        self.queued_bytes: Counter[PeerId] = Counter()
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
        queued_bytes = self.queued_bytes[message.sender] + _size(message)
        if queued_bytes <= _MAX_QUEUED_BYTES:
            self.queued_bytes[message.sender] = queued_bytes
            self._queue.put_nowait((message, self._clock()))

    def drop_messages(self) -> None:
        """Forget what peers have said and nobody has heard yet: it was meant for another lineage."""
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        self.queued_bytes.clear()
        for item in waiting:
            if not isinstance(item[0], Received):
                self._queue.put_nowait(item)

    async def get(self) -> tuple[E | Received | Tick, float]:
        """The next event, and when it came."""
        event, at_s = await self._queue.get()
        if isinstance(event, Tick):
            self._is_tick_queued = False
        if isinstance(event, Received) and event.sender in self.queued_bytes:
            self.queued_bytes[event.sender] -= _size(event)
            if self.queued_bytes[event.sender] <= 0:
                del self.queued_bytes[event.sender]
        return event, at_s


def _size(message: Received) -> int:
    return len(message.raw) + _MESSAGE_OVERHEAD_BYTES
