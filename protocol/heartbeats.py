"""Telling others how we are, and finding them: heartbeats sent directly, and published for discovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .envelopes import Guard, Sealer
from .messages import Heartbeat, InvalidMessage
from .outbox import Outbox
from .peers import PeerTable
from .transport import Directory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rhythm:
    """How often what is said."""

    direct_s: float
    """To every known peer."""
    published_s: float
    """To the directory; a record lives three times as long."""


class Heartbeats:
    """Two endless tasks: `beat` and `discover`. ``compose`` makes the next heartbeat, ``on_own`` hears it too."""

    def __init__(
        self,
        rhythm: Rhythm,
        directory: Directory,
        outbox: Outbox,
        sealer: Sealer,
        guard: Guard,
        peers: PeerTable,
        wall_clock: Callable[[], float],
        compose: Callable[[], Heartbeat],
        on_own: Callable[[Heartbeat], None],
    ) -> None:
        self._rhythm, self._directory, self._outbox = rhythm, directory, outbox
        self._sealer, self._guard, self._peers, self._wall_clock = sealer, guard, peers, wall_clock
        self._compose, self._on_own = compose, on_own

    def say_now(self) -> None:
        """Send a heartbeat to every known peer; never waits."""
        heartbeat = self._compose()
        self._on_own(heartbeat)
        self._outbox.post(self._peers.others(), self._sealer.seal(heartbeat))

    async def beat(self) -> None:
        while True:
            self.say_now()
            await asyncio.sleep(self._rhythm.direct_s)

    async def discover(self) -> None:
        """Publish ourselves and learn of others, for ever; a directory that fails is tried again."""
        while True:
            try:
                async with asyncio.timeout(2 * self._rhythm.published_s):
                    await self._publish()
                    for record in await self._directory.records():
                        self._note(record)
            except Exception as error:
                logger.info("directory: %s", error)
            await asyncio.sleep(self._rhythm.published_s)

    async def _publish(self) -> None:
        expires_unix_s = self._wall_clock() + 3 * self._rhythm.published_s
        await self._directory.publish(self._sealer.seal(self._compose()), expires_unix_s)

    def _note(self, record: bytes) -> None:
        try:
            envelope = self._guard.open(record, self._wall_clock())
        except InvalidMessage:
            return  # foreign, old or read before
        if isinstance(envelope.body, Heartbeat):
            self._peers.add(envelope.header.sender, envelope.body)
