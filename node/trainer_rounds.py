"""Joins trainer and round driver: leases out, contributions in, outcomes back. Knows neither network nor dashboard.

The trainer is given a `Start` when this node is a member with a lease, contributes when its inner steps are done, and
hears of every commit at once, also of one that it missed (its work is then a carry). A trainer that died and came back
gets a new `Start`, but not while its dead predecessor's contribution is still being exchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..kernels.chunk_grid import ChunkGrid
from ..protocol.chunks import Contribution
from ..protocol.identity import PeerId
from ..protocol.outcomes import Aborted as RoundAborted
from ..protocol.outcomes import Committed as RoundCommitted
from ..protocol.outcomes import Outcome
from ..training.data import Lease
from ..training.reducer import Aborted, Committed, Evaluate, Event, Hello, Ready, Report, Start
from ..training.shared_buffers import NotSealed, SharedBuffers
from .replica import Replica

_NO_LEASE = Lease(first=0, count=0)


def lease_of(replica: Replica, me: PeerId, lease_samples: int, last_round: int = 0) -> Lease | None:
    """This node's samples for the next round: a block by its place in the roster.

    None if it is not a member, or the run ends with ``last_round`` (0: never), which is applied.
    """
    standing = replica.standing
    if me not in standing.roster or 0 < last_round <= replica.head_round:
        return None
    return Lease(first=standing.data_cursor + standing.roster.index(me) * lease_samples, count=lease_samples)


@dataclass(frozen=True)
class LastWork:
    """What this node contributed last."""

    round: int
    num_tokens: int
    loss: float


class TrainerRounds:
    """One node's way through the rounds. All methods run in the event loop; `on_report` and `on_applied` never wait."""

    def __init__(
        self,
        *,
        me: PeerId,
        replica: Replica,
        buffers: SharedBuffers,
        grid: ChunkGrid,
        lease_samples: int,
        last_round: int,
        contribute: Callable[[Contribution], Awaitable[Outcome]],
        tell: Callable[[Event], Awaitable[None]],
        on_warning: Callable[[str], None],
    ) -> None:
        self._me, self._replica, self._buffers, self._grid = me, replica, buffers, grid
        self._lease_samples, self._last_round = lease_samples, last_round
        self._contribute, self._tell, self._on_warning = contribute, tell, on_warning
        self._generation = 0
        self._has_trainer = False
        self._is_open = False
        """Whether trainers may be started: contact is made, and the state is the swarm's."""
        self._started_round: int | None = None
        self._reset_optimizer = False
        self._last_counted = True
        self._task: asyncio.Task[None] | None = None
        self._outbox: asyncio.Queue[Event] = asyncio.Queue()
        self.last_work: LastWork | None = None

    @property
    def has_trainer(self) -> bool:
        """Whether a trainer has said hello."""
        return self._has_trainer

    @property
    def has_started(self) -> bool:
        """Whether the trainer works on the present round."""
        return self._started_round == self._replica.head_round + 1

    async def run(self) -> None:
        """Deliver events to the trainer, in order, until cancelled."""
        while True:
            await self._tell(await self._outbox.get())

    # --- what happens -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """From now on trainers are started."""
        self._is_open = True
        self._start_if_due()

    def on_report(self, report: Report) -> None:
        """A trainer said hello, or is ready."""
        match report:
            case Hello():
                self._has_trainer, self._started_round = True, None
                self._start_if_due()
            case Ready():
                self._on_ready(report)
            case _:
                pass

    def on_death(self) -> None:
        """The trainer is gone; the next one says hello."""
        self._has_trainer, self._started_round = False, None

    def on_applied(self, outcome: RoundCommitted, *, is_evaluator: bool) -> None:
        """A commit is applied: the trainer goes on from the new anchor."""
        number, self._last_counted = outcome.commit.record.plan.round, outcome.counted
        lease = self._lease()
        if self._started_round != number:
            self._start_if_due()
        else:
            self._generation += 1
            self._started_round = number + 1 if lease is not None else None
            self._say(
                Committed(round=number, counted=outcome.counted, generation=self._generation, lease=lease or _NO_LEASE)
            )
        if is_evaluator and self._has_trainer:
            self._say(Evaluate())

    def on_state_replaced(self) -> None:
        """A downloaded state was installed: whatever was being trained belongs to another one."""
        self._started_round, self._reset_optimizer, self._last_counted = None, True, True
        self._start_if_due()

    def close(self) -> None:
        """Forget a contribution that is on its way."""
        if self._task is not None:
            self._task.cancel()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _lease(self) -> Lease | None:
        return lease_of(self._replica, self._me, self._lease_samples, self._last_round)

    def _say(self, event: Event) -> None:
        self._outbox.put_nowait(event)

    def _start_if_due(self) -> None:
        lease = self._lease()
        is_busy = self._task is not None and not self._task.done()
        if lease is None or not (self._is_open and self._has_trainer) or self.has_started or is_busy:
            return
        self._generation += 1
        self._started_round = self._replica.head_round + 1
        self._say(
            Start(
                round=self._started_round,
                generation=self._generation,
                lease=lease,
                previous_counted=self._last_counted,
                reset_optimizer=self._reset_optimizer,
            )
        )
        self._reset_optimizer = False

    def _on_ready(self, ready: Ready) -> None:
        current = (self._replica.head_round + 1, self._generation)
        if (ready.round, ready.generation) != current or (self._task is not None and not self._task.done()):
            return  # of before a commit that the trainer is about to hear of
        self.last_work = LastWork(ready.round, ready.num_tokens, ready.loss)
        self._task = asyncio.create_task(self._offer(ready))

    async def _offer(self, ready: Ready) -> None:
        try:
            encoded = self._buffers.contribution(ready.round, ready.generation)
        except NotSealed as error:
            self._on_warning(f"contribution of round {ready.round} is not used: {error}")
            return
        contribution = await asyncio.to_thread(
            Contribution.of,
            self._grid,
            encoded.data,
            round_number=ready.round,
            tokens=ready.num_tokens,
            num_inner_steps=ready.num_steps,
        )
        outcome = await self._contribute(contribution)
        if isinstance(outcome, RoundAborted):
            self._on_aborted(ready, outcome)
        self._task = None
        self._start_if_due()

    def _on_aborted(self, ready: Ready, outcome: RoundAborted) -> None:
        if self._started_round == ready.round and ready.round == self._replica.head_round + 1:
            self._generation += 1
            self._say(Aborted(reason=outcome.reason, generation=self._generation))
