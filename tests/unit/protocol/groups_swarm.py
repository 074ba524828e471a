"""A two-tier swarm over the in-memory network: real drivers, disks and exchanges; a stand-in for model and trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll.protocol.chunks import Contribution
from atoll.protocol.groups.places import Place
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.outcomes import Committed, RoundEvent
from atoll.protocol.spec import ExchangeConfig, Genesis, LimitsConfig, TimingConfig

from .test_round_driver import GRID, MeanReplica, Swarm, genesis_of

TIMING = TimingConfig(
    heartbeat_interval_s=0.2,
    heartbeat_timeout_s=1.5,
    drop_after_s=30,
    ready_grace_s=5,
    progress_timeout_s=1.4,
    attempt_timeout_s=8,
    quorum_timeout_s=40,
)


def two_tier_genesis(delegates: list[Identity], others: list[Identity], group_size: int) -> Genesis:
    genesis = genesis_of(delegates, allowed=tuple(person.peer_id for person in others))
    return genesis.model_copy(
        update={
            "exchange": ExchangeConfig(codec="float32", topology="two_tier", group_size=group_size),
            "limits": LimitsConfig(max_peers=len(delegates)),
            "timing": TIMING,
            # Constant vectors are all alike.
            "trust": genesis.trust.model_copy(update={"copy_cosine": 0.0}),
        }
    )


@dataclass
class Work:
    """What a peer has trained and where, as its trainer would know it."""

    tokens: int = 0
    carried: int = 0
    counted: dict[int, int] = field(default_factory=dict)
    """Round -> tokens, by the peer's own account."""
    places: dict[int, Place] = field(default_factory=dict)


class TwoTierSwarm(Swarm):
    """Peers that contribute as soon as they have a place."""

    def __init__(self, folder: Path, genesis: Genesis) -> None:
        super().__init__(folder, genesis)
        self.network = MemoryNetwork(progress_timeout_s=TIMING.progress_timeout_s)
        self.work: dict[PeerId, Work] = {}
        self._labour: dict[PeerId, asyncio.Task[None]] = {}

    def put_to_work(self, person: Identity, value: float, tokens: int = 100, until_round: int = 1 << 30) -> None:
        self.work.setdefault(person.peer_id, Work(tokens))
        self._labour[person.peer_id] = asyncio.create_task(self._labours(person, value, tokens, until_round))

    async def _labours(self, person: Identity, value: float, tokens: int, until_round: int) -> None:
        driver = self.nodes[person.peer_id].driver
        while driver.round <= until_round:
            await self._work_on(person, driver.round, value, tokens)

    async def _work_on(self, person: Identity, number: int, value: float, tokens: int) -> None:
        """One round: wait for a place and for the others, contribute, and account for it as a trainer does."""
        driver, work = self.nodes[person.peer_id].driver, self.work[person.peer_id]
        await self.until(lambda: driver.place is not None or driver.round != number)
        if driver.round != number or (place := driver.place) is None:
            return
        work.places[number] = place
        await self.until(lambda: driver.round != number or self._is_everybody_at(number))
        outcome = await driver.contribute(contribution_of(number, value, tokens + work.carried))
        if isinstance(outcome, Committed):
            if outcome.counted:
                work.counted[number] = tokens + work.carried
            work.carried = 0 if outcome.counted or work.carried else tokens

    def _is_everybody_at(self, number: int) -> bool:
        """Whether nobody would be left behind: no trainer is much faster than the others' downloads.

        In round 1 nobody has a seat: delegates with empty disks do not know yet whom they have given any.
        """
        drivers = [self.nodes[peer].driver for peer in self._labour if peer in self.nodes]
        return number <= 1 or all(driver.round >= number and driver.place is not None for driver in drivers)

    async def kill(self, person: Identity) -> MeanReplica:
        self._labour.pop(person.peer_id).cancel()
        return await super().kill(person)

    async def close(self) -> None:
        for task in self._labour.values():
            task.cancel()
        await asyncio.gather(*self._labour.values(), return_exceptions=True)
        await super().close()

    async def until_round(self, number: int, *, but: Callable[[PeerId], bool] = lambda _: False) -> None:
        await self.until(lambda: all(node.driver.round >= number for peer, node in self.nodes.items() if not but(peer)))

    def events(self, person: Identity, point: str) -> list[RoundEvent]:
        return [event for event in self.nodes[person.peer_id].events if event.point == point]


def contribution_of(round_number: int, value: float, tokens: int) -> Contribution:
    encoded = np.full(GRID.num_elements, value, np.float32).tobytes()
    return Contribution.of(GRID, encoded, round_number=round_number, tokens=tokens, tokens_per_s=1.0)
