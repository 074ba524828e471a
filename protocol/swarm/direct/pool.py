"""Direct connections between two streams: kept for the next one, and noticed when they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass

from ...identity import PeerId
from .bundle import Carrier

IDLE_S = 300.0
"""Kept so long without a stream. Rounds that take longer pay for another handshake, which is little beside them."""


@dataclass
class _Idle:
    connection: Carrier
    watch: asyncio.Task[None]


class Pool:
    """Of connections on which this node opens the streams."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._idle: defaultdict[PeerId, list[_Idle]] = defaultdict(list)

    def take(self, peer: PeerId) -> Carrier | None:
        """The connection that was used last, which is most likely alive; None if there is none."""
        idle = self._idle.get(peer)
        if not idle:
            return None
        found = idle.pop()
        found.watch.cancel()
        if not idle:
            del self._idle[peer]
        return found.connection

    def put(self, peer: PeerId, connection: Carrier) -> None:
        """Keep a connection on which no stream is open."""
        self._idle[peer].append(_Idle(connection, asyncio.create_task(self._watch(peer, connection))))

    async def _watch(self, peer: PeerId, connection: Carrier) -> None:
        """Drop it when the peer ends it, says something that nobody asked for, or nobody wants it for long."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._idle_s):
                await connection.wait_until_readable()
        idle = self._idle.get(peer, [])
        idle[:] = [one for one in idle if one.connection is not connection]
        if not idle:
            self._idle.pop(peer, None)
        connection.abort()

    def drop(self, peer: PeerId) -> None:
        """Close all connections to the peer."""
        for one in self._idle.pop(peer, []):
            one.connection.abort()  # its watch ends with it

    async def close(self) -> None:
        watches = [one.watch for idle in self._idle.values() for one in idle]
        for peer in list(self._idle):
            self.drop(peer)
        await asyncio.gather(*watches, return_exceptions=True)
