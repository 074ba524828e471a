"""Outgoing messages: one queue and one sender task per peer, so that a peer that hangs delays nobody else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from .identity import PeerId
from .transport import PeerUnreachable, StreamClosed, Transport

MAX_QUEUED = 64
"""Per peer; beyond that the oldest is dropped, which the round machine's repetition makes good."""


class Outbox:
    """Best-effort delivery in order per peer."""

    def __init__(self, transport: Transport, timeout_s: float, on_unreachable: Callable[[PeerId, str], None]) -> None:
        self._transport, self._on_unreachable = transport, on_unreachable
        self.timeout_s = timeout_s
        self._queues: dict[PeerId, deque[bytes]] = {}
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}

    def post(self, peers: Iterable[PeerId], message: bytes) -> None:
        """Queue a message for each peer; never waits."""
        for peer in peers:
            self._queues.setdefault(peer, deque(maxlen=MAX_QUEUED)).append(message)
            if peer not in self._tasks:
                self._tasks[peer] = asyncio.create_task(self._send_all(peer))

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything queued so far is sent or has failed, but not longer than ``timeout_s``."""
        waiting = set(self._tasks.values())
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_all(self, peer: PeerId) -> None:
        queue = self._queues[peer]
        try:
            while queue:
                async with asyncio.timeout(self.timeout_s):
                    await self._transport.send(peer, queue.popleft())
        except (PeerUnreachable, StreamClosed) as error:
            queue.clear()
            self._on_unreachable(peer, error.why)
        except TimeoutError:
            queue.clear()
            self._on_unreachable(peer, f"no answer for {self.timeout_s:g} s")
        finally:
            del self._tasks[peer]
            if not queue:
                del self._queues[peer]  # or every stranger that was ever answered would leave one
