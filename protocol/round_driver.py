"""The round driver: a node's whole part in the rounds of a run, with a real network, disk, clock and all-reduce.

Decisions are `round_machine`'s, `round_loop` performs them. Heartbeats, answers to `CommitRequest` and bulk data have
tasks of their own, so that none of them waits for an outer step.

A round that is learnt (from our own exchange, or from others after we missed it) is applied as soon as its bytes are
here; the observer hears of it as ``round.applied``. `RoundDriver.contribute` returns what became of one contribution.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from .allowance import Allowances
from .amending import Learned
from .amendments import Amendment, RunRules
from .chunks import ChunkGrid, Contribution
from .commit_server import CommitServer
from .doorkeeper import Doorkeeper
from .event_queue import EventQueue
from .evidence_store import EvidenceStore
from .exchange import ExchangeCounters, ExchangeSettings
from .gate import Gate
from .heartbeats import Heartbeats, NodeFacts, Progress, Rhythm, compose
from .identity import Identity, PeerId
from .incoming import Incoming
from .lag import FAR_BEHIND_ROUNDS, Prove
from .mail import Mail
from .memories import Memories
from .messages import (
    Commit,
    Heartbeat,
    Provisional,
    Refused,
)
from .outcomes import Aborted, Committed, Outcome, RoundEvent
from .oversight import Oversight
from .peers import PeerInfo, PeerTable
from .points import Observer, Points
from .recovery import Recovery, ResetFile
from .reduction import Reduction
from .replica import Replica
from .result_signer import ResultSigner
from .results import ResultStore
from .resync import Sync
from .round_loop import RoundLoop, Work
from .round_machine import Phase, Tick, Woke
from .rule_book import RuleBook
from .spec import Genesis, TimingConfig
from .transport import Directory, RemoteProtocolError, Transport
from .votes import VoteStore

__all__ = ["Aborted", "Committed", "NodeFacts", "Outcome", "PeerInfo", "Progress", "RoundDriver", "RoundEvent"]

_TICKS_PER_HEARTBEAT = 4


def _exchange_settings(timing: TimingConfig) -> ExchangeSettings:
    """Who does not show up within the progress limit is gone; keep-alives are well below it."""
    limit_s = timing.progress_timeout_s
    return ExchangeSettings(contact_timeout_s=limit_s, keepalive_interval_s=min(1.0, limit_s / 5))


def _rhythm(timing: TimingConfig) -> Rhythm:
    return Rhythm(timing.heartbeat_interval_s, timing.heartbeat_timeout_s / 2)


_REFUSALS_PER_S, _REFUSALS_AT_ONCE = 1.0, 16
"""Answers to all strangers together whose invites do not hold."""


class RoundDriver:
    """Takes part in the rounds of one run (fragment 0). Construct it inside the event loop.

    ``folder`` holds votes and results and must belong to this node alone. ``observer`` is called in the event loop and
    must not raise. ``sync`` is awaited when this node is too far behind to catch up by results, or when most of the
    roster has another state after the same commit; it must install a certified state into ``replica``, and is called
    again if it did not. ``prove`` returns the newest round that other peers can prove by their chain of commits; it
    runs beside the rounds, and only what it returns, not what peers say of themselves, calls for a ``sync``.
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
        observer: Observer = lambda _: None,
        sync: Sync | None = None,
        prove: Prove | None = None,
        book: RuleBook | None = None,
        exchange: ExchangeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        book = self._book = book or RuleBook(RunRules(genesis))
        genesis = book.rules.at(replica.head_round + 1)
        timing = genesis.timing
        doorkeeper = Doorkeeper(genesis, lambda: replica.standing, wall_clock)
        transport = gate = Gate(transport, genesis, clock, self._refuse, doorkeeper)
        self._refusals = Allowances(_REFUSALS_PER_S, _REFUSALS_AT_ONCE, clock)
        directory.admit(gate.admits)
        self._replica, self._transport, self._facts = replica, transport, facts
        self._clock, self._wall_clock = clock, wall_clock
        self._peers = PeerTable(identity.peer_id, clock)
        self._mail = Mail(identity, genesis, book.rules.lineage, transport, folder, wall_clock, self._note_unreachable)
        self._points = Points(observer, replica, self._mail, clock)
        commits = CommitServer(replica, self._mail, timing.heartbeat_interval_s, clock)
        self._votes = VoteStore(folder / "votes", book.rules.lineage)
        self._results = ResultStore(folder / "results", grid, FAR_BEHIND_ROUNDS)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="exchange")
        self._queue: EventQueue[Work] = EventQueue(clock)
        self._exchange = exchange
        self._oversight = Oversight(
            me=identity.peer_id,
            genesis=genesis,
            grid=grid,
            transport=gate,
            store=EvidenceStore(folder / "evidence", grid),
            executor=self._executor,
            feed=self._queue.put,
            observe=self._points.observe,
        )
        self._reduction = self._make_reduction(grid, timing, ResultSigner(identity, folder / "signed"))
        self._loop = RoundLoop(
            book=book,
            replica=replica,
            lease_samples=facts.lease_samples,
            num_chunks=grid.num_chunks,
            votes=self._votes,
            mail=self._mail,
            recovery=Recovery(identity, ResetFile(folder / "resets.jsonl"), clock),
            peers=self._peers,
            points=self._points,
            commits=commits,
            queue=self._queue,
            reduction=self._reduction,
            oversight=self._oversight,
            sync=sync,
            prove=prove,
            on_new_head=lambda: self._heartbeats.say_now(),
            on_rules=self._obey,
            on_rules_differ=lambda peer: self._heartbeats.say_to(peer),
            clock=clock,
            wall_clock=wall_clock,
        )
        words = (self._compose_heartbeat, wall_clock, gate.admits)
        self._heartbeats = Heartbeats(_rhythm(timing), directory, self._mail, self._peers, *words, self._is_known)
        self._progress = Progress()
        self._memories = Memories(book, replica, self._mail, self._peers, self._queue.put, clock)
        self._incoming = self._make_incoming(commits)
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that ended the driver, if one does; the node should wait for it."""

    # --- what the node asks -------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being worked on: one after the last applied commit."""
        return self._loop.round

    @property
    def head(self) -> Commit | None:
        """Last applied commit; None for the genesis state."""
        return next(iter(self._replica.commits(self._replica.head_round, 1)), None)

    @property
    def transport(self) -> Transport:
        """The transport behind the run's gate: whoever serves streams on it serves admitted peers only."""
        return self._transport

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """Who votes on this round."""
        return self._replica.standing.roster

    @property
    def peers(self) -> dict[PeerId, PeerInfo]:
        """All other peers that are known."""
        return self._peers.all

    @property
    def ahead(self) -> tuple[PeerId, ...]:
        """Peers that have applied more rounds than we have, newest first."""
        return self._peers.ahead(self._replica.head_round)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Threads for CPU and disk work of the protocol."""
        return self._executor

    @property
    def phase(self) -> Phase:
        """Where this node stands in the round."""
        return self._loop.phase

    @property
    def num_alive(self) -> int:
        """Members of the roster that are heard from, this node included."""
        now_s, timeout_s = self._clock(), self.genesis.timing.heartbeat_timeout_s
        return 1 + sum(info.is_alive(now_s, timeout_s) for peer, info in self.peers.items() if peer in self.roster)

    @property
    def provisional(self) -> Provisional | None:
        """While this node hears from no quorum: how many it hears from, how many it needs, since when."""
        return self._loop.provisional

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
        return self._loop.agreement.attestations.envelopes(round_number)

    def set_progress(self, **changes: Any) -> None:
        """Change fields of `Progress`, which heartbeats carry; a change of phase is told at once."""
        before, self._progress = self._progress, replace(self._progress, **changes)
        if before.phase != self._progress.phase and self._tasks:
            self._heartbeats.say_now()

    @property
    def genesis(self) -> Genesis:
        """The rules that the present round is held under, amendments applied."""
        return self._loop.genesis

    def amend(self, amendments: Iterable[Amendment]) -> None:
        """Amendments of this node's operator: checked, kept, put in force and spread like those of others."""
        self._queue.put(Learned(tuple(amendments)))

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Offer a contribution and wait until its round is decided or it is withdrawn.

        ``contribution.encoded`` must not change until this returns. A contribution for a round that has been committed
        meanwhile returns that commit at once. Raises what ended the driver, if something did.
        """
        if self.failed.done():
            self.failed.result()
        offer = self._loop.pending.open(contribution)
        self._queue.put(offer)
        return await offer.outcome

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head.

        Raises `VoteFileDamaged` if what was said in this round cannot be read back.
        """
        self._votes.open(self.round, self.roster, self._mail.me)
        if self._votes.is_unsure:
            self._memories.begin()
        await self._loop.begin()
        self._transport.on_message(self._incoming.take)
        for work in (self._loop.run(), self._tick(), self._heartbeats.beat(), self._heartbeats.discover()):
            self._spawn(work)

    async def leave(self) -> None:
        """Tell the others that we go, and stop. A contribution that is not decided is withdrawn."""
        self._progress = replace(self._progress, phase="leaving")
        self._heartbeats.say_now()
        await self._mail.flush()
        await self.close()

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave no task behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.close()
        await self._reduction.close()
        await self._points.close()
        await self._oversight.close()
        await self._mail.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.failed.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A task that raises is a bug, or a replica that cannot go on: whoever waits must hear of it."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or self.failed.done():
            return
        self.failed.set_exception(error)
        self.failed.exception()  # also told by `contribute`: not "never retrieved"
        self._loop.pending.fail(error)

    async def _tick(self) -> None:
        """Time passes for the machine. A long gap means that this process was suspended."""
        last_s = self._clock()
        while True:
            timing = self.genesis.timing
            await asyncio.sleep(timing.heartbeat_interval_s / _TICKS_PER_HEARTBEAT)
            slept_s, last_s = self._clock() - last_s, self._clock()
            if slept_s > timing.heartbeat_timeout_s:
                self._points.observe("node.woke", {"slept_s": slept_s})
                self._queue.put(Woke())
            self._queue.put(Tick())
            self._memories.ask()

    # --- for the parts ------------------------------------------------------------------------------------------------

    def _obey(self, genesis: Genesis) -> None:
        """The rules of the round that begins: every part of the driver goes by them from now on."""
        self._transport.obey(genesis)
        self._mail.obey(genesis)
        self._heartbeats.rhythm = _rhythm(genesis.timing)
        self._reduction.settings = self._exchange or _exchange_settings(genesis.timing)

    def _make_reduction(self, grid: ChunkGrid, timing: TimingConfig, signer: ResultSigner) -> Reduction:
        return Reduction(
            me=self._mail.me,
            grid=grid,
            transport=self._transport,
            store=self._results,
            executor=self._executor,
            settings=self._exchange or _exchange_settings(timing),
            feed=self._queue.put,
            observe=self._points.observe,
            peers=self._peers.others,
            is_alive=lambda peer: self._peers.may_live(peer, self.genesis.timing.heartbeat_timeout_s),
            oversight=self._oversight,
            signer=signer,
        )

    def _make_incoming(self, commits: CommitServer) -> Incoming:
        return Incoming(
            mail=self._mail,
            peers=self._peers,
            heartbeats=self._heartbeats,
            loop=self._loop,
            memories=self._memories,
            commits=commits,
            points=self._points,
            clock=self._clock,
            wall_clock=self._wall_clock,
        )

    def _refuse(self, error: RemoteProtocolError) -> None:
        """At the gate. Who shows an invite hears why it does not hold, as far as there is time for strangers."""
        self._points.reject(error)
        if error.rule == "invite" and self._refusals.take(self._mail.me):
            self._mail.post((error.peer,), Refused(why=error.detail[:200]))

    def _is_known(self) -> bool:
        """Whether whoever follows the run lets us in without seeing our invite."""
        return self._replica.standing.admits(self._loop.genesis, self._mail.me)

    def _compose_heartbeat(self) -> Heartbeat:
        known, now_unix_s = self._book.num_amendments, self._wall_clock()
        heartbeat = compose(self._facts, self._progress, self._replica, self.phase, known, now_unix_s, self.provisional)
        return heartbeat.model_copy(update={"echoes": self._peers.echoes(self._clock())})

    def _note_unreachable(self, peer: PeerId, why: str) -> None:
        if self._peers.unreachable(peer, why):
            self._points.observe("peer.unreachable", {"peer": peer, "why": why})
