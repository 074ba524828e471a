"""A two-tier swarm over the in-memory network: real drivers, disks and exchanges; a stand-in for model and trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll.protocol.chunks import Contribution
from atoll.protocol.groups.places import Place
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Committed, RoundEvent
from atoll.protocol.spec import ExchangeConfig, Genesis, LimitsConfig, TimingConfig
from atoll.protocol.transport import Buffer

from .test_round_driver import GRID, MeanReplica, Node, Swarm, genesis_of

TIMING = TimingConfig(
    heartbeat_interval_s=0.2,
    heartbeat_timeout_s=1.5,
    drop_after_s=30,
    ready_grace_s=5,
    progress_timeout_s=1.4,
    attempt_timeout_s=8,
    quorum_timeout_s=40,
)


def two_tier_genesis(
    delegates: list[Identity],
    others: list[Identity],
    group_size: int,
    drop_after_s: float = TIMING.drop_after_s,
    audited_share: float = 0.25,
) -> Genesis:
    genesis = genesis_of(delegates, allowed=tuple(person.peer_id for person in others))
    return genesis.model_copy(
        update={
            "exchange": ExchangeConfig(codec="float32", topology="two_tier", group_size=group_size),
            "limits": LimitsConfig(max_peers=len(delegates)),
            "timing": TIMING.model_copy(update={"drop_after_s": drop_after_s}),
            # Constant vectors are all alike.
            "trust": genesis.trust.model_copy(update={"copy_cosine": 0.0, "audited_share": audited_share}),
        }
    )


class Memory(MeanReplica):
    """Remembers every round's mean (all its elements are equal here) and state hash."""

    def __init__(self, genesis: Genesis) -> None:
        super().__init__(genesis)
        self.means: dict[int, float] = {}
        self.hashes: dict[int, str] = {}

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        state_hash = await super().apply(commit, mean)
        self.means[self.head_round] = float(self.mean[0])
        self.hashes[self.head_round] = state_hash
        return state_hash


@dataclass
class Work:
    """What a peer has trained and where, as its trainer would know it."""

    value: float
    tokens: int
    carried: int = 0
    head_round: int = 0
    """Of which the trainer has heard."""
    given: dict[int, int] = field(default_factory=dict)
    """Round -> tokens that were offered, carry included."""
    counted: dict[int, int] = field(default_factory=dict)
    """Round -> tokens, by the peer's own account."""
    places: dict[int, Place] = field(default_factory=dict)

    def note(self, outcome: Committed) -> None:
        """A round is applied: the work counts, or is carried once (`training.session`)."""
        self.head_round = number = outcome.commit.record.plan.round
        if (given := self.given.get(number)) is None:
            self.carried = 0
        elif outcome.counted:
            self.counted[number], self.carried = given, 0
        else:
            self.carried = self.tokens


class TwoTierSwarm(Swarm):
    """Peers that contribute as soon as they and all others have a place."""

    def __init__(self, folder: Path, genesis: Genesis) -> None:
        super().__init__(folder, genesis)
        self.network = MemoryNetwork(progress_timeout_s=TIMING.progress_timeout_s)
        self.work: dict[PeerId, Work] = {}
        self.replicas: dict[PeerId, Memory] = {}
        self.last_round = 1 << 30
        """After which nobody works any more."""
        self._labour: dict[PeerId, asyncio.Task[None]] = {}
        self.on_event = self._note

    async def begin(self, person: Identity, value: float, tokens: int = 100) -> Node:
        """Start a peer that gives ``value`` in every round; what becomes of it is heard as nodes hear it, by events."""
        replica = self.replicas[person.peer_id] = Memory(self.genesis)
        self.work[person.peer_id] = Work(value, tokens)
        node = await self.start(person, replica)
        self._labour[person.peer_id] = asyncio.create_task(self._labours(person))
        return node

    def _note(self, peer: PeerId, event: RoundEvent) -> None:
        if isinstance(outcome := event.fields.get("outcome"), Committed):
            self.work[peer].note(outcome)

    async def _labours(self, person: Identity) -> None:
        driver = self.nodes[person.peer_id].driver
        while driver.round <= self.last_round:
            await self._work_on(person, driver.round)

    async def _work_on(self, person: Identity, number: int) -> None:
        """One round: wait for a place and for the others, contribute, and account for it as a trainer does."""
        driver, work = self.nodes[person.peer_id].driver, self.work[person.peer_id]
        is_there = lambda: driver.place is not None and work.head_round == number - 1  # noqa: E731
        await self.until(lambda: is_there() or driver.round != number)
        if driver.round != number or (place := driver.place) is None:
            return
        work.places[number] = place
        await self.until(lambda: driver.round != number or self._is_everybody_at(number))
        work.given[number] = tokens = work.tokens + work.carried
        await driver.contribute(contribution_of(number, work.value, tokens))

    def _is_everybody_at(self, number: int) -> bool:
        """Whether nobody would be left behind: no trainer is much faster than the others' downloads.

        In round 1 nobody has a seat: delegates with empty disks do not know yet whom they have given any.
        """
        drivers = [self.nodes[peer].driver for peer in self._labour if peer in self.nodes]
        joined = (driver for driver in drivers if driver.group is not None)
        return number <= 1 or all(driver.round >= number and driver.place is not None for driver in joined)

    async def kill(self, person: Identity) -> MeanReplica:
        self._labour.pop(person.peer_id).cancel()
        return await super().kill(person)

    async def close(self) -> None:
        for task in self._labour.values():
            task.cancel()
        await asyncio.gather(*self._labour.values(), return_exceptions=True)
        await super().close()

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            await super().until(condition)
        except TimeoutError:
            raise AssertionError(self.dump()) from None

    async def until_round(self, number: int) -> None:
        await self.until(lambda: all(node.driver.round >= number for node in self.nodes.values()))

    def dump(self) -> str:
        """Where everybody stands, for a test that waits in vain."""
        lines = []
        for peer, node in self.nodes.items():
            driver = node.driver
            place = None if driver.place is None else (driver.place.member[-4:], driver.place.seat)
            group = None if driver.group is None else driver.group.delegate[-4:]
            last = [event.point for event in node.events[-6:]]
            lines.append(f"{peer[-4:]} round {driver.round} {driver.phase.value} place {place} group {group} {last}")
        return "\n".join(lines)

    async def until_quiet(self) -> None:
        """Until everybody has applied the round after the present one, and nobody works."""
        self.last_round = 1 + max(node.driver.round for node in self.nodes.values())
        await self.until_round(self.last_round + 1)
        await asyncio.gather(*self._labour.values())
        await self.until(lambda: all(self.work[peer].head_round >= self.last_round for peer in self.nodes))

    @property
    def chain(self) -> list[Commit]:
        return max((node.replica.chain for node in self.nodes.values()), key=len)

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """Of the newest round."""
        replicas = [node.replica for node in self.nodes.values()]
        return max(replicas, key=lambda replica: replica.head_round).standing.roster

    @property
    def means(self) -> dict[int, float]:
        return max((replica.means for replica in self.replicas.values()), key=len)

    def accused(self) -> set[object]:
        """Whom some audit has found to lie."""
        events = (event for node in self.nodes.values() for event in node.events)
        return {event.fields["peer"] for event in events if event.point == "audit.lie"}

    def states_are_equal(self) -> bool:
        """Whether everybody who has applied a round had the same state after it."""
        known = [(number, found) for replica in self.replicas.values() for number, found in replica.hashes.items()]
        return len(set(known)) == len({number for number, _ in known})

    def have_counted_after(self, number: int, peers: Collection[PeerId]) -> bool:
        return all(max(self.work[peer].counted, default=0) > number for peer in peers)


def contribution_of(round_number: int, value: float, tokens: int) -> Contribution:
    encoded = np.full(GRID.num_elements, value, np.float32).tobytes()
    return Contribution.of(GRID, encoded, round_number=round_number, tokens=tokens, tokens_per_s=1.0)
