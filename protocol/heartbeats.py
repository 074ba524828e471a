"""Telling others how we are, and finding them: heartbeats sent directly, and published for discovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .envelope import InvalidMessage
from .identity import PeerId
from .mail import Mail
from .messages import Evaluated, Heartbeat, Provisional
from .peers import PeerTable
from .replica import Replica
from .round_machine import Phase
from .tickets import Ticket
from .transport import Directory
from .values import MAX_LOSS, NodePhase

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rhythm:
    """How often what is said."""

    direct_s: float
    """To everybody in our circle (`PeerTable.circle`)."""
    published_s: float
    """To the directory; a record lives three times as long."""


@dataclass(frozen=True)
class NodeFacts:
    """What the node says of itself in heartbeats, and the size of its leases."""

    lease_samples: int
    """Samples leased to each member per round; must follow from the spec, since plans depend on it."""
    name: str = ""
    version: str = ""
    addresses: Callable[[], tuple[str, ...]] = tuple
    reachable: Callable[[], bool] = lambda: True
    ticket: Ticket | None = None
    """The invite that the node has, if any."""


@dataclass(frozen=True)
class Progress:
    """What the trainer does at present, for heartbeats. Losses may be anything, as models go."""

    phase: NodePhase = "training"
    num_inner_steps: int = 0
    target_inner_steps: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    loss: float | None = None
    evaluated_round: int | None = None
    validation_loss: float | None = None


_PHASES: dict[Phase, NodePhase] = {
    Phase.READY: "ready",
    Phase.REDUCING: "exchanging",
    Phase.IN_DOUBT: "exchanging",
}


def compose(
    facts: NodeFacts,
    progress: Progress,
    replica: Replica,
    phase: Phase,
    num_amendments: int,
    now_unix_s: float,
    provisional: Provisional | None = None,
    *,
    abstains: bool = False,
) -> Heartbeat:
    """The heartbeat of a node; while it trains, the round machine's phase says more than the trainer knows.

    A loss that is no number, or beyond what a message may say, is left out.
    """
    return Heartbeat(
        name=facts.name,
        version=facts.version,
        round=replica.head_round,
        state_hash=replica.state_hash,
        phase=_PHASES.get(phase, progress.phase) if progress.phase == "training" else progress.phase,
        num_inner_steps=progress.num_inner_steps,
        target_inner_steps=progress.target_inner_steps,
        tokens=progress.tokens,
        tokens_per_s=progress.tokens_per_s,
        loss=_sayable(progress.loss),
        evaluated=_evaluated(progress),
        provisional=provisional,
        reachable=facts.reachable(),
        abstains=abstains,
        ticket=facts.ticket,
        addresses=facts.addresses(),
        num_amendments=num_amendments,
        sent_unix_s=max(0.0, now_unix_s),
    )


def _sayable(loss: float | None) -> float | None:
    return loss if loss is not None and 0 <= loss <= MAX_LOSS else None


def _evaluated(progress: Progress) -> Evaluated | None:
    number, loss = progress.evaluated_round, _sayable(progress.validation_loss)
    return None if number is None or loss is None else Evaluated(round=number, validation_loss=loss)


class Heartbeats:
    """Two endless tasks: `beat` and `discover`. ``compose`` makes the next heartbeat.

    Records of peers that the run does not admit are left out: anybody can publish one under a key of its own.
    """

    def __init__(
        self,
        rhythm: Rhythm,
        directory: Directory,
        mail: Mail,
        peers: PeerTable,
        compose: Callable[[], Heartbeat],
        wall_clock: Callable[[], float],
        admits: Callable[[PeerId], bool] = lambda _: True,
        is_known: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_known``: whether whoever follows the run lets us in without seeing our invite."""
        self._admits, self._is_known = admits, is_known
        self.rhythm = rhythm
        self._directory, self._mail, self._peers = directory, mail, peers
        self._compose, self._wall_clock = compose, wall_clock

    def say_now(self) -> None:
        """Send a heartbeat to our circle and ourselves; never waits."""
        heartbeat = self._compose()
        if self._is_known():
            heartbeat = heartbeat.model_copy(update={"ticket": None})
        self._mail.post((*self._peers.circle(), self._mail.me), heartbeat)

    def say_to(self, peer: PeerId) -> None:
        """Send a heartbeat, our invite included, to one peer that may know less than we do; never waits."""
        self._mail.post((peer,), self._compose())

    async def beat(self) -> None:
        while True:
            self.say_now()
            await asyncio.sleep(self.rhythm.direct_s)

    async def discover(self) -> None:
        """Publish ourselves and learn of others, for ever; a directory that fails is tried again."""
        while True:
            try:
                async with asyncio.timeout(2 * self.rhythm.published_s):
                    await self._publish()
                    for record in await self._directory.records():
                        self._note(record)
            except Exception as error:
                logger.info("directory: %r", error)
            await asyncio.sleep(self.rhythm.published_s)

    async def _publish(self) -> None:
        expires_unix_s = self._wall_clock() + 3 * self.rhythm.published_s
        heartbeat = self._compose().model_copy(update={"echoes": (), "ticket": None})
        await self._directory.publish(self._mail.seal(heartbeat), expires_unix_s)

    def _note(self, record: bytes) -> None:
        try:
            envelope = self._mail.open_record(record)
        except InvalidMessage:
            return  # foreign, old or read before
        if isinstance(envelope.body, Heartbeat) and self._admits(envelope.header.sender):
            self._peers.add(envelope.header.sender, envelope.body)
