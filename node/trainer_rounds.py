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
from ..protocol.budget import target_steps
from ..protocol.chunks import Contribution
from ..protocol.identity import PeerId
from ..protocol.outcomes import Aborted as RoundAborted
from ..protocol.outcomes import Committed as RoundCommitted
from ..protocol.outcomes import Outcome
from ..protocol.values import MAX_SPEED
from ..training.config import InnerConfig
from ..training.data import Lease
from ..training.reducer import Aborted, Committed, Evaluate, Event, Hello, Progress, Ready, Report, Start
from ..training.shared_buffers import NotSealed, SharedBuffers
from .own_state import OwnState
from .work import Work

_NO_LEASE = Lease(first=0, count=0)


def lease_of(replica: OwnState, me: PeerId, lease_samples: int, last_round: int = 0) -> Lease | None:
    """This node's samples for the next round: a block by its place in the roster.

    None if it is not a member, or the run ends with ``last_round`` (0: never), which is applied.
    """
    standing = replica.standing
    if me not in standing.roster or 0 < last_round <= replica.head_round:
        return None
    return Lease(first=standing.data_cursor + standing.roster.index(me) * lease_samples, count=lease_samples)


def num_steps_of(replica: OwnState, me: PeerId, inner: InnerConfig, own_tokens_per_s: float) -> int:
    """Inner steps of this node's next round, by everybody's speed in the last plan (`protocol.budget`).

    For a member that was not in it: its own measurement, if it is this node, else unknown.
    """
    if not inner.adaptive_steps or replica.head is None:
        return inner.num_steps
    measured = {member.peer: member.tokens_per_s for member in replica.head.record.plan.members}
    speeds = {me: own_tokens_per_s} | {peer: measured.get(peer, 0.0) for peer in replica.standing.roster}
    speeds[me] = measured.get(me) or own_tokens_per_s
    return target_steps(speeds, me, num_steps=inner.num_steps, max_steps=inner.lease_steps)


def _sayable(tokens_per_s: float) -> float:
    """A speed that a message may carry; no measurement is more than its bound."""
    return tokens_per_s if 0 <= tokens_per_s <= MAX_SPEED else 0.0


@dataclass(frozen=True)
class Terms:
    """What the rules of the next round mean for this node's trainer."""

    last_round: int = 0
    """0: open-ended."""
    is_open: bool = True
    """Whether this node may train: the run is not paused, and takes its contributions."""
    inner_lr: float | None = None
    """None: the run spec's."""


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
        replica: OwnState,
        buffers: SharedBuffers,
        grid: ChunkGrid,
        inner: InnerConfig,
        terms: Callable[[], Terms],
        contribute: Callable[[Contribution], Awaitable[Outcome]],
        tell: Callable[[Event], Awaitable[None]],
        on_warning: Callable[[str], None],
        may_train_on: Callable[[], bool] = lambda: True,
        work: Work | None = None,
    ) -> None:
        """``may_train_on``: whether the run allows provisional work now, when a contribution was withdrawn.
        ``work`` None: leases and steps follow from the roster."""
        self._me, self._replica, self._buffers, self._grid = me, replica, buffers, grid
        self._inner, self._terms = inner, terms
        self._contribute, self._tell, self._on_warning = contribute, tell, on_warning
        self._may_train_on, self._work = may_train_on, work
        self._generation = 0
        self._has_trainer = False
        self._is_open = False
        """Whether trainers may be started: contact is made, and the state is the swarm's."""
        self._started_round: int | None = None
        self._reset_optimizer = False
        self._last_counted = True
        self._tokens_per_s = 0.0
        """As the trainer has measured it last."""
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
            case Progress():
                self._tokens_per_s = report.tokens_per_s
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
                Committed(
                    round=number,
                    counted=outcome.counted,
                    generation=self._generation,
                    lease=lease or _NO_LEASE,
                    inner_lr=self._terms().inner_lr,
                    num_steps=self._num_steps(),
                )
            )
        if is_evaluator and self._has_trainer:
            self._say(Evaluate())

    def on_rules(self) -> None:
        """Other rules are in force: a paused run may go on."""
        self._start_if_due()

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
        terms = self._terms()
        if not terms.is_open:
            return None
        if self._work is not None:
            return self._work.lease(terms.last_round)
        return lease_of(self._replica, self._me, self._inner.lease_samples, terms.last_round)

    def _num_steps(self) -> int:
        if self._work is not None:
            return self._work.num_steps(self._tokens_per_s)
        return num_steps_of(self._replica, self._me, self._inner, self._tokens_per_s)

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
                inner_lr=self._terms().inner_lr,
                num_steps=self._num_steps(),
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
            tokens_per_s=_sayable(ready.tokens_per_s),
            inner_state=ready.inner_state,
        )
        outcome = await self._contribute(contribution)
        while isinstance(outcome, RoundAborted) and self._is_wanted(ready) and not self._may_train_on():
            outcome = await self._contribute(contribution)  # unchanged, until enough peers are here
        if isinstance(outcome, RoundAborted) and self._is_wanted(ready):
            self._generation += 1
            self._say(Aborted(reason=outcome.reason, generation=self._generation))
        self._task = None
        self._start_if_due()

    def _is_wanted(self, ready: Ready) -> bool:
        """Whether the contribution is of the round that the trainer works on."""
        return self._started_round == ready.round and ready.round == self._replica.head_round + 1
