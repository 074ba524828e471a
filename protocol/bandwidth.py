"""How fast this node may send and receive: one bucket per direction, shared by all peers and both kinds of path.

What waits is bulk data; control messages are charged, but go at once, because a node that is late with them is taken
for dead. Charged is what goes through the sockets, and `HEADERS` for what the network adds to it: TCP/IP 3-4 %, libp2p
another 1 %. Thus both the bytes counted here and those on the wire stay within 5 % of the cap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

HEADERS = 0.02
BURST_S = 0.05
"""What was not used stays usable for so long: a busy machine wakes late."""
_PIECE_S = 0.02
MAX_PIECE_BYTES = 256 << 10
MIN_PIECE_BYTES = 2 << 10


class BandwidthCap:
    """A token bucket. Turns are given in the order in which they are asked for."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """``bytes_per_s``: None for no cap."""
        self._bytes_per_s, self._clock, self.sleep = bytes_per_s, clock, sleep
        self._free_at_s = float("-inf")
        """When everything that was let through so far is paid for."""
        self.piece_bytes = MAX_PIECE_BYTES
        """What should be asked for at once: more would come in bursts, and progress is judged per piece."""
        if bytes_per_s is not None:
            self.piece_bytes = max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, int(bytes_per_s * _PIECE_S)))

    def charge(self, num_bytes: int) -> float:
        """Count bytes that wait for nothing; returns how long others would have to wait first, in seconds."""
        if self._bytes_per_s is None:
            return 0.0
        now_s = self._clock()
        start_s = max(self._free_at_s, now_s - BURST_S)
        self._free_at_s = start_s + num_bytes * (1.0 + HEADERS) / self._bytes_per_s
        return max(0.0, start_s - now_s)

    async def spend(self, num_bytes: int) -> None:
        """Wait for the turn of ``num_bytes``. Cancelled while waiting, they stay charged."""
        wait_s = self.charge(num_bytes)
        if wait_s > 0.0:
            await self.sleep(wait_s)


class _Bypass(BandwidthCap):
    """For what waits for nothing, but uses up what others wait for."""

    def __init__(self, cap: BandwidthCap) -> None:
        super().__init__(None)
        self._cap = cap

    def charge(self, num_bytes: int) -> float:
        self._cap.charge(num_bytes)
        return 0.0


@dataclass(frozen=True)
class Caps:
    """Of one node, or of what goes through one stream of it."""

    sending: BandwidthCap
    receiving: BandwidthCap

    def bypassed(self) -> Caps:
        """For control messages."""
        return Caps(_Bypass(self.sending), _Bypass(self.receiving))


NO_CAPS = Caps(BandwidthCap(None), BandwidthCap(None))
