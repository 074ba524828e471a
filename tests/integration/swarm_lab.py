"""Real swarms on loopback for tests, and a check that nothing stays behind.

Intervals are short; limits are long enough for a machine that does ten other things.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from atoll.protocol import envelope, messages
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.swarm import Swarm, SwarmEvent, SwarmSettings

RUN = "ab" * 32
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
QUICK = {
    "connect_timeout_s": 20.0,
    "seed_timeout_s": 6.0,
    "health_interval_s": 0.2,
    "health_timeout_s": 6.0,
    "redial_interval_s": 0.5,
    "progress_timeout_s": 30.0,
    "direct_dial_timeout_s": 10.0,
}


def p2pd_pids() -> set[int]:
    """Children of this process that are alive."""
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != "zombie"}


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.02)


def make_heartbeat(identity: Identity, *, sequence: int = 1, expires: float | None = None, name: str = "") -> bytes:
    body = messages.Heartbeat(round=0, state_hash="0" * 64, phase="training", name=name)
    header = envelope.Header(
        run_id=RUN,
        lineage=0,
        sender=identity.peer_id,
        sequence=sequence,
        expires_unix_s=expires or time.time() + 60,
    )
    return envelope.seal(identity, header, body)


@dataclass
class Lab:
    """Starts swarms and stops them all at the end."""

    folder: Path
    runtime: Path
    """Where the swarms keep their sockets."""
    swarms: list[Swarm] = field(default_factory=list)
    events: list[SwarmEvent] = field(default_factory=list)
    inboxes: dict[PeerId, asyncio.Queue[tuple[PeerId, bytes]]] = field(default_factory=dict)

    def key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        Identity.load_or_create(path)
        return path

    def identity(self, name: str) -> Identity:
        return Identity.load(self.key(name))

    def settings(self, name: str, **changes: Any) -> SwarmSettings:
        values = {"run_id": RUN, "listen": LOOPBACK, "runtime_folder": self.runtime, **QUICK, **changes}
        return SwarmSettings(identity_path=self.key(name), **values)

    async def start(self, name: str, *seeds: Swarm | str, **changes: Any) -> Swarm:
        addresses = tuple(seed if isinstance(seed, str) else seed.addresses[0] for seed in seeds)
        swarm = await Swarm.start(self.settings(name, seeds=addresses, **changes), self.events.append)
        self.swarms.append(swarm)
        queue: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue()
        self.inboxes[swarm.peer_id] = queue

        async def receive(peer: PeerId, message: bytes) -> None:
            queue.put_nowait((peer, message))

        swarm.transport.on_message(receive)
        return swarm

    async def received(self, swarm: Swarm) -> tuple[PeerId, bytes]:
        async with asyncio.timeout(60):
            return await self.inboxes[swarm.peer_id].get()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def stop(self) -> None:
        await asyncio.gather(*(swarm.stop() for swarm in self.swarms))

    def assert_nothing_left(self, pids_before: set[int]) -> None:
        assert p2pd_pids() <= pids_before, "a child process survived"
        assert not self.runtime.exists() or not any(self.runtime.iterdir()), "files were left in the runtime folder"


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
