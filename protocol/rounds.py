"""The round driver: performs what `round_machine` decides, with a real network, disk, clock and all-reduce.

One task feeds the machine, event after event, and performs each event's actions in order: what must be durable is
durable before anything that follows from it is sent. Heartbeats, answers to `CommitRequest` and bulk data have tasks of
their own, so that none of them waits for an outer step.

A round that is learnt (from our own exchange, or from others after we missed it) is applied as soon as its bytes are
here; the observer hears of it as ``round.applied``. `contribute` returns what became of one contribution.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, assert_never

from .attestations import Attestations
from .chunks import ChunkGrid, Contribution
from .envelopes import Guard, Sealer, reserve_sequences
from .exchange import ExchangeCounters, ExchangeSettings
from .heartbeats import Heartbeats, Rhythm
from .identity import Identity, PeerId
from .messages import (
    Attest,
    Commit,
    CommitRequest,
    Envelope,
    Heartbeat,
    InvalidMessage,
    Message,
    PlanMessage,
    Prepare,
    Proposal,
    Ready,
    Vote,
    round_of,
)
from .outbox import Outbox
from .outcomes import Aborted, Outcome, RoundEvent, committed
from .peers import PeerInfo, PeerTable
from .reduction import Reduction
from .replica import Replica, next_roster
from .results import ResultStore
from .round_machine import (
    Action,
    CancelExchange,
    Contributed,
    Decide,
    Event,
    FetchResults,
    GiveUp,
    Persist,
    Phase,
    Received,
    RoundState,
    Rules,
    Send,
    StartExchange,
    Tick,
    Woke,
    advance,
    begin,
)
from .spec import Genesis
from .transport import Directory, RemoteProtocolError, Transport
from .votes import VoteStore

NodePhase: TypeAlias = Literal["starting", "syncing", "training", "ready", "exchanging", "paused", "leaving"]
FAR_BEHIND_ROUNDS = 4
"""Results are kept by everybody for this many rounds; who is further behind needs a snapshot."""
_TICKS_PER_HEARTBEAT = 4
_FLUSH_S = 1.0


@dataclass(frozen=True)
class NodeFacts:
    """What the node says of itself in heartbeats, and the size of its leases."""

    lease_samples: int
    """Samples leased to each member per round; must follow from the spec, since plans depend on it."""
    name: str = ""
    version: str = ""
    addresses: Callable[[], tuple[str, ...]] = tuple
    reachable: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Progress:
    """What the trainer does at present, for heartbeats."""

    phase: NodePhase = "training"
    num_inner_steps: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    loss: float | None = None


@dataclass(frozen=True)
class _Offer:
    contribution: Contribution


class RoundDriver:
    """Takes part in the rounds of one run (fragment 0).

    ``folder`` holds votes and results and must belong to this node alone. ``observer`` is called in the event loop and
    must not raise. ``sync`` is awaited when this node is too far behind to catch up by results; it must install a newer
    state into ``replica``, and is called again if it did not.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        genesis: Genesis,
        transport: Transport,
        directory: Directory,
        folder: Path,
        replica: Replica,
        grid: ChunkGrid,
        facts: NodeFacts,
        observer: Callable[[RoundEvent], None] = lambda _: None,
        sync: Callable[[], Awaitable[None]] | None = None,
        exchange: ExchangeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._me, self._genesis, self._replica, self._grid, self._facts = (
            identity.peer_id,
            genesis,
            replica,
            grid,
            facts,
        )
        self._observer, self._sync, self._clock, self._wall_clock = observer, sync, clock, wall_clock
        timing, run = genesis.timing, (genesis.run_id, genesis.lineage)
        self._transport = transport
        folder.mkdir(parents=True, exist_ok=True)
        self._sealer = Sealer(identity, *run, reserve_sequences(folder / "sequence", wall_clock()), wall_clock)
        self._guard = Guard(*run)
        self._outbox = Outbox(transport, timing.progress_timeout_s, self._note_unreachable)
        self._peers = PeerTable(self._me)
        self._attestations = Attestations()
        self._votes = VoteStore(folder / "votes", genesis.lineage)
        self._results = ResultStore(folder / "results", grid, FAR_BEHIND_ROUNDS)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="exchange")
        self._reduction = Reduction(
            self._me,
            grid,
            transport,
            self._results,
            self._executor,
            exchange or ExchangeSettings(),
            self._feed,
            self._observe,
            self._peers.others,
        )
        self._heartbeats = Heartbeats(
            Rhythm(timing.heartbeat_interval_s, timing.heartbeat_timeout_s / 2),
            directory,
            self._outbox,
            self._sealer,
            Guard(*run),
            self._peers,
            wall_clock,
            self._compose_heartbeat,
            lambda heartbeat: self._feed(Received(self._me, heartbeat, b"")),
        )
        self._queue: asyncio.Queue[tuple[Event | _Offer, float]] = asyncio.Queue()
        self._own: deque[Event] = deque()
        """Messages to ourselves, handled before anything else."""
        self._early: dict[tuple[PeerId, str], Received] = {}
        """Messages for the round after the present one."""
        self._pending: tuple[Contribution, asyncio.Future[Outcome]] | None = None
        self._progress = Progress()
        self._state: RoundState | None = None
        self._said_plans: set[str] = set()
        self._is_tick_queued = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[None] = asyncio.Future()
        """Gets the exception that ended the driver, if one does; the node should wait for it."""

    # --- what the node asks -------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being worked on: one after the last applied commit."""
        return self._replica.head_round + 1

    @property
    def head(self) -> Commit | None:
        """Last applied commit."""
        return next(iter(self._replica.commits(self._replica.head_round, 1)), None)

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """Who votes on this round."""
        return next_roster(self._replica)

    @property
    def peers(self) -> dict[PeerId, PeerInfo]:
        """All other peers that are known."""
        return self._peers.all

    @property
    def phase(self) -> Phase:
        """Where this node stands in the round."""
        return Phase.TRAINING if self._state is None else self._state.phase

    @property
    def counters(self) -> ExchangeCounters | None:
        """Measured by the exchange that ran last."""
        return self._reduction.counters

    @property
    def results(self) -> ResultStore:
        """Encoded means of recent rounds, for serving those who catch up."""
        return self._results

    def attestations(self, round_number: int) -> dict[PeerId, bytes]:
        """Signed `Attest` envelopes of a recent round; a quorum of them certifies its snapshot."""
        return self._attestations.envelopes(round_number)

    def set_progress(self, **changes: Any) -> None:
        """Change fields of `Progress`, which heartbeats carry."""
        before, self._progress = self._progress, replace(self._progress, **changes)
        if before.phase != self._progress.phase and self._tasks:
            self._heartbeats.say_now()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head.

        Raises `VoteFileDamaged` if what was said in this round cannot be read back.
        """
        self._votes.open(self.round, is_member=self._me in self.roster)
        await self._begin()
        self._transport.on_message(self._on_message)
        for work in (self._run(), self._tick(), self._heartbeats.beat(), self._heartbeats.discover()):
            self._spawn(work)

    async def leave(self) -> None:
        """Tell the others that we go, and stop. A contribution that is not decided is withdrawn."""
        self._progress = replace(self._progress, phase="leaving")
        self._heartbeats.say_now()
        await self._outbox.flush(_FLUSH_S)
        await self.close()

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave no task behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reduction.close()
        await self._outbox.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._settle(Aborted("the node is stopping"))
        self.failed.cancel()

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Offer a contribution and wait until its round is decided or it is withdrawn.

        ``contribution.encoded`` must not change until this returns. A contribution for a round that has been committed
        meanwhile returns that commit at once.
        """
        if self._pending is not None:
            raise RuntimeError("a contribution is pending already")
        future = asyncio.get_running_loop().create_future()
        self._pending = (contribution, future)
        self._queue.put_nowait((_Offer(contribution), self._clock()))
        return await future

    def _settle(self, outcome: Outcome) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and not pending[1].done():
            pending[1].set_result(outcome)

    def _spawn(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        """A task that ends with an exception is a bug, or a replica that cannot go on: whoever waits must hear of it."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
            if self._pending is not None and not self._pending[1].done():
                self._pending[1].set_exception(error)

    # --- events in ----------------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        self._queue.put_nowait((event, self._clock()))

    async def _tick(self) -> None:
        timing = self._genesis.timing
        last_s = self._clock()
        while True:
            await asyncio.sleep(timing.heartbeat_interval_s / _TICKS_PER_HEARTBEAT)
            now_s = self._clock()
            if now_s - last_s > timing.heartbeat_timeout_s:
                self._observe("node.woke", {"slept_s": now_s - last_s})
                self._feed(Woke())
            last_s = now_s
            if not self._is_tick_queued:
                self._is_tick_queued = True
                self._feed(Tick())

    async def _on_message(self, remote: PeerId, raw: bytes) -> None:
        try:
            envelope = self._guard.open(raw, self._wall_clock(), remote)
        except InvalidMessage as error:
            self._observe("peer.rejected", {"peer": remote, "rule": "message", "detail": str(error)})
            return
        except RemoteProtocolError as error:
            self._reject(error)
            return
        body = envelope.body
        heartbeat = body if isinstance(body, Heartbeat) else None
        self._peers.heard(remote, heartbeat, self._clock(), self._wall_clock())
        match body:
            case CommitRequest():
                self._send_commit(remote, body.round)
            case Attest():
                self._attestations.add(envelope)
                self._check_agreement()
            case _:
                self._feed(Received(remote, body, raw))

    async def _run(self) -> None:
        while True:
            event, at_s = await self._queue.get()
            await self._take(event, at_s)
            while self._own:
                await self._take(self._own.popleft(), self._clock())

    async def _take(self, event: Event | _Offer, at_s: float) -> None:
        match event:
            case _Offer():
                await self._offer(event.contribution, at_s)
            case Received() if not isinstance(event.body, Heartbeat):
                await self._route(event, at_s)
            case _:
                self._is_tick_queued &= not isinstance(event, Tick)
                await self._advance(event, at_s)
        if isinstance(event, Tick):
            await self._keep_up()

    async def _offer(self, contribution: Contribution, at_s: float) -> None:
        if contribution.round != self.round:
            commit = next(iter(self._replica.commits(contribution.round, 1)), None)
            missed = Aborted(f"round {contribution.round} is not the present one, {self.round}")
            self._settle(
                missed
                if commit is None
                else committed(commit, self._replica.state_hash, self._me, contribution.commitment)
            )
            return
        ready = Ready(
            round=self.round,
            parent=self._replica.head_record_id,
            parent_state=self._replica.state_hash,
            tokens=contribution.tokens,
            commitment=contribution.commitment,
            num_inner_steps=contribution.num_inner_steps,
        )
        await self._advance(Contributed(ready), at_s)

    async def _route(self, event: Received, at_s: float) -> None:
        """Messages of this round go to the machine, those of the next wait, those of past ones get the commit."""
        number = round_of(event.body)
        if number == self.round:
            await self._advance(event, at_s)
        elif number < self.round:
            if isinstance(event.body, Ready | PlanMessage | Proposal | Prepare):
                self._send_commit(event.sender, number)
        elif isinstance(event.body, Commit):
            self._post((event.sender,), CommitRequest(fragment=0, round=self.round))
        elif number == self.round + 1 and event.sender in self._peers.all:
            self._early[event.sender, event.body.kind] = event

    async def _keep_up(self) -> None:
        """Fetch a snapshot when results for the way up are not kept any more."""
        ahead = self._peers.ahead(self._replica.head_round + FAR_BEHIND_ROUNDS)
        if self._sync is not None and ahead:
            await self._resync()

    async def _resync(self) -> None:
        if self._sync is None:
            return
        self._observe("state.syncing", {})
        await self._sync()
        await self._begin()
        self._settle(Aborted("the state was replaced by a newer one"))

    # --- the machine --------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        number, roster = self.round, self.roster
        for peer in roster:
            self._peers.add(peer)
        abstain = self._votes.forgot(number)
        if abstain:
            self._observe("votes.abstaining", {})
        rules = Rules(
            genesis=self._genesis,
            me=self._me,
            round=number,
            parent=self._replica.head_record_id,
            parent_state=self._replica.state_hash,
            roster=roster,
            data_cursor=self._replica.data_cursor,
            lease_samples=self._facts.lease_samples,
            num_chunks=self._grid.num_chunks,
            abstain=abstain,
        )
        acceptor = await asyncio.to_thread(self._votes.load, number)
        self._state = begin(rules, acceptor, self._peers.views(), self._clock())
        if acceptor.accepted is not None:
            self._reduction.report_held(acceptor.accepted.record)
        early, self._early = self._early, {}
        for event in early.values():
            self._feed(event)

    async def _advance(self, event: Event, at_s: float) -> None:
        if self._state is None:
            return
        try:
            state, actions = advance(self._state, event, at_s)
        except RemoteProtocolError as error:
            self._reject(error)
            return
        if await self._persist(actions):
            self._state = state
            for action in actions:
                await self._perform(action)

    async def _persist(self, actions: tuple[Action, ...]) -> bool:
        """Make promises and votes durable before anything else happens. False: nothing may happen."""
        acceptors = [action.acceptor for action in actions if isinstance(action, Persist)]
        if not acceptors:
            return True
        try:
            await asyncio.to_thread(self._votes.save, self.round, acceptors[-1])
        except OSError as error:
            self._observe("votes.unwritable", {"why": f"{error.strerror or error}"})
            return False
        return True

    async def _perform(self, action: Action) -> None:
        match action:
            case Persist():
                pass  # done
            case Send():
                self._post(action.to, action.message)
                self._mark(action.message)
            case StartExchange():
                self._reduction.start(action.plan, self._pending[0] if self._pending else None)
            case CancelExchange():
                self._reduction.cancel(action.plan_id)
            case FetchResults():
                self._reduction.fetch(action.record)
            case GiveUp():
                self._observe("round.aborted", {"reason": action.reason})
                self._settle(Aborted(action.reason))
            case Decide():
                await self._apply(action.commit)
            case _:
                assert_never(action)

    async def _apply(self, commit: Commit) -> None:
        """Get the decided bytes, take the outer step, tell everybody our state hash, begin the next round."""
        self._observe("round.committed", {"commit": commit})
        record = commit.record
        mean = None
        while mean is None:
            mean = await self._reduction.obtain(record, self._genesis.timing.attempt_timeout_s)
            if mean is None and self._sync is not None:
                await self._resync()
                return
        state_hash = await self._replica.apply(commit, mean)
        self._reduction.decided(record)
        self._votes.prune(self._replica.head_round)
        self._attest(record.content_id(), state_hash)
        commitment = self._pending[0].commitment if self._pending else None
        outcome = committed(commit, state_hash, self._me, commitment)
        self._observer(RoundEvent("round.applied", record.plan.round, {"outcome": outcome}))
        if self._pending is not None and self._pending[0].round <= record.plan.round:
            self._settle(outcome)
        await self._begin()

    # --- messages out -------------------------------------------------------------------------------------------------

    def _post(self, to: tuple[PeerId, ...], message: Message) -> None:
        raw = self._sealer.seal(message)
        if self._me in to:
            self._own.append(Received(self._me, message, raw))
        self._outbox.post((peer for peer in to if peer != self._me), raw)

    def _send_commit(self, peer: PeerId, round_number: int) -> None:
        for commit in self._replica.commits(round_number, 1):
            self._post((peer,), commit)

    def _attest(self, record_id: str, state_hash: str) -> None:
        attest = Attest(round=self._replica.head_round, record=record_id, state_hash=state_hash)
        raw = self._sealer.seal(attest)
        self._attestations.add(Envelope.open(raw, run_id=self._genesis.run_id))
        self._outbox.post(self._peers.others(), raw)
        self._check_agreement()

    def _check_agreement(self) -> None:
        """S4: if most of the roster has another state after the same record, ours is damaged."""
        head, ours = self._replica.head_round, self._replica.state_hash
        theirs = self._attestations.majority(head, self._replica.head_record_id, self.roster)
        if theirs not in (None, ours):
            self._observe("state.disagrees", {"ours": ours, "theirs": theirs})

    def _compose_heartbeat(self) -> Heartbeat:
        progress = self._progress
        phases: dict[Phase, NodePhase] = {
            Phase.READY: "ready",
            Phase.REDUCING: "exchanging",
            Phase.IN_DOUBT: "exchanging",
        }
        is_training = progress.phase == "training"
        return Heartbeat(
            name=self._facts.name,
            version=self._facts.version,
            round=self._replica.head_round,
            state_hash=self._replica.state_hash,
            phase=phases.get(self.phase, progress.phase) if is_training else progress.phase,
            num_inner_steps=progress.num_inner_steps,
            tokens=progress.tokens,
            tokens_per_s=progress.tokens_per_s,
            loss=progress.loss,
            reachable=self._facts.reachable(),
            addresses=self._facts.addresses(),
            sent_unix_s=max(0.0, self._wall_clock()),
        )

    # --- journal ------------------------------------------------------------------------------------------------------

    def _observe(self, point: str, fields: dict[str, object]) -> None:
        self._observer(RoundEvent(point, self.round, fields))

    def _reject(self, error: RemoteProtocolError) -> None:
        self._observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})

    def _note_unreachable(self, peer: PeerId, why: str) -> None:
        if self._peers.unreachable(peer, why):
            self._observe("peer.unreachable", {"peer": peer, "why": why})

    def _mark(self, message: Message) -> None:
        """Journal points of messages: said once per plan, when the message has left."""
        match message:
            case PlanMessage():
                point, key = "round.plan_sent", message.plan.content_id()
            case Proposal():
                point, key = "round.proposed", message.record.content_id()
            case Vote():
                point, key = "round.voted", f"{message.ballot}/{message.record}"
            case _:
                return
        if f"{point}/{key}" not in self._said_plans:
            self._said_plans.add(f"{point}/{key}")
            self._spawn(self._observe_when_sent(point, self.round))

    async def _observe_when_sent(self, point: str, round_number: int) -> None:
        await self._outbox.flush(_FLUSH_S)
        self._observer(RoundEvent(point, round_number))
