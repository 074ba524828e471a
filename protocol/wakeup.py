"""A wake-up call inside one event loop."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes everybody who waits, each time it is fired."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    async def wait_for(self, limit_s: float) -> bool:
        """Like `wait`, but False after ``limit_s`` without a call."""
        try:
            async with asyncio.timeout(limit_s):
                await self.wait()
        except TimeoutError:
            return False
        return True
