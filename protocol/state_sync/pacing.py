"""A limit on how fast a donor serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass
class Pacer:
    """Spaces sends so that over any longer time at most ``bytes_per_s`` leave; None is no limit.

    ``bytes_per_s`` may be changed at any time (the governor does).
    """

    bytes_per_s: float | None = None
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _free_at_s: float = 0.0

    async def spend(self, num_bytes: int) -> None:
        """Wait for the turn of ``num_bytes``."""
        if self.bytes_per_s is None:
            return
        now_s = self.now()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + num_bytes / self.bytes_per_s
        if start_s > now_s:
            await self.sleep(start_s - now_s)
