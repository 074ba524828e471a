"""The round driver: a node's whole part in the rounds of a run, with a real network, disk, clock and all-reduce.

Decisions are `round_machine`'s, `round_loop` performs them, `contact` is how others hear of us. Heartbeats, answers to
`CommitRequest` and bulk data have tasks of their own, so that none of them waits for an outer step.

A round that is learnt (from our own exchange, or from others after we missed it) is applied as soon as its bytes are
here; the observer hears of it as ``round.applied``. `RoundDriver.contribute` returns what became of one contribution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .amending import Learned
from .amendments import Amendment
from .chunks import Contribution
from .commit_server import CommitServer
from .contact import Contact, Standpoint
from .driver import DriverSetup
from .event_queue import EventQueue
from .evidence_store import EvidenceStore
from .exchange import ExchangeCounters, ExchangeHost, ExchangeSettings
from .groups.groups import Groups
from .groups.ledger import GroupLedger
from .groups.parts import GroupParts
from .groups.places import Place
from .identity import PeerId
from .incoming import Incoming
from .lag import FAR_BEHIND_ROUNDS
from .memories import Memories
from .messages import Commit, Group, Provisional, Suspected
from .outcomes import Outcome
from .oversight import Oversight
from .peers import PeerInfo
from .pending import Pending
from .recent import Recent
from .reduction import Reduction
from .result_signer import ResultSigner
from .result_transfer import rotated
from .results import ResultStore
from .round_loop import RoundLoop, Work
from .round_machine import Phase, Tick, Woke
from .spec import Genesis, TimingConfig
from .spot_checks import SpotChecks
from .topology import Topology
from .transport import Transport
from .votes import VoteStore

_TICKS_PER_HEARTBEAT = 4


def _exchange_settings(timing: TimingConfig) -> ExchangeSettings:
    """Who does not show up within the progress limit is gone; keep-alives are well below it."""
    limit_s = timing.progress_timeout_s
    return ExchangeSettings(contact_timeout_s=limit_s, keepalive_interval_s=min(1.0, limit_s / 5))


class RoundDriver:
    """Takes part in the rounds of one run (fragment 0), as a `driver.Driver`. Construct it inside the event loop."""

    def __init__(self, setup: DriverSetup) -> None:
        self._setup, self._replica, self._clock = setup, setup.replica, setup.clock
        self._queue: EventQueue[Work] = EventQueue(setup.clock)
        self._contact = contact = Contact(setup, self._standpoint)
        self._peers, self._mail, self._points = contact.peers, contact.mail, contact.points
        self._heartbeats, self._transport = contact.heartbeats, contact.gate
        self._votes = VoteStore(setup.folder / "votes", setup.book.rules.lineage)
        self._results = ResultStore(setup.folder / "results", setup.grid, FAR_BEHIND_ROUNDS)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="exchange")
        host = self._make_host()
        self._spot_checks = self._make_spot_checks(host)
        self._oversight = self._make_oversight(host)
        self._reduction = self._make_reduction(host)
        self._pending = Pending()
        self._topology = self._make_topology()
        interval_s = setup.rules.timing.heartbeat_interval_s
        commits = CommitServer(setup.replica, contact.mail, interval_s, setup.clock)
        self._loop = RoundLoop(
            setup,
            contact,
            queue=self._queue,
            votes=self._votes,
            commits=commits,
            reduction=self._reduction,
            oversight=self._oversight,
            topology=self._topology,
            pending=self._pending,
            on_rules=self._obey,
        )
        self._memories = Memories(setup, contact, self._queue.put)
        self._incoming = Incoming(
            setup, contact, self._loop, self._memories, commits, self._topology, self._spot_checks
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that ended the driver, if one does; the node should wait for it."""

    def _make_host(self) -> ExchangeHost:
        setup = self._setup
        return ExchangeHost(
            me=setup.me,
            grid=setup.grid,
            transport=self._transport,
            executor=self._executor,
            settings=setup.exchange or _exchange_settings(setup.rules.timing),
            is_alive=self._contact.may_live,
            recent=Recent(setup.grid),
        )

    def _make_spot_checks(self, host: ExchangeHost) -> SpotChecks:
        setup = self._setup
        return SpotChecks(
            host,
            setup.rules,
            identity=setup.identity,
            replica=setup.replica,
            folder=setup.folder / "spot-checks",
            lease_samples=setup.facts.lease_samples,
            recomputer=setup.recomputer,
            observe=self._points.observe,
            post=lambda peers, suspicion: self._mail.post(peers, Suspected(suspicion=suspicion)),
        )

    def _make_oversight(self, host: ExchangeHost) -> Oversight:
        return Oversight(
            host,
            self._setup.book.rules,
            store=EvidenceStore(self._setup.folder / "evidence", self._setup.grid),
            spot_checks=self._spot_checks,
            shut_out=self._transport.shut_out,
            feed=self._queue.put,
            observe=self._points.observe,
        )

    def _make_reduction(self, host: ExchangeHost) -> Reduction:
        return Reduction(
            host,
            store=self._results,
            signer=ResultSigner(self._setup.identity, self._setup.folder / "signed"),
            oversight=self._oversight,
            sources=self._sources,
            feed=self._queue.put,
            observe=self._points.observe,
        )

    def _make_topology(self) -> Topology:
        setup, contact = self._setup, self._contact
        if setup.rules.exchange.topology != "two_tier":
            return Topology(setup.me, setup.replica)
        folder = setup.folder / "groups"
        parts = GroupParts(
            grid=setup.grid,
            replica=setup.replica,
            mail=contact.mail,
            peers=contact.peers,
            points=contact.points,
            reduction=self._reduction,
            store=ResultStore(folder / "means", setup.grid, keep_rounds=1),
            ledger=GroupLedger(setup.rules.run_id),
            executor=self._executor,
            greet=contact.heartbeats.say_to,
            clock=setup.clock,
        )
        groups = Groups(parts, self._transport, self._pending, folder)
        contact.peers.circle = groups.circle
        return groups

    def _sources(self, span: int, waited_s: float) -> Sequence[PeerId]:
        """Whom to ask for a span of the round's result, in order."""
        return self._topology.sources(span, waited_s) or rotated(self._peers.circle(), span)

    def _standpoint(self) -> Standpoint:
        return Standpoint(self.phase, self.provisional, self.group, self._loop.abstains)

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
        return self._topology.phase or self._loop.phase

    @property
    def place(self) -> Place | None:
        """Whose part of the data this node trains on in the present round; None if it has none (yet)."""
        return self._topology.place

    @property
    def group(self) -> Group | None:
        """In two-tier rounds, the group that this node is in, if it is in one."""
        return self._topology.group

    @property
    def circle(self) -> tuple[PeerId, ...]:
        """Whom this node speaks to unasked."""
        return self._peers.circle()

    @property
    def num_alive(self) -> int:
        """Members of the roster that are heard from, this node included."""
        return 1 + len(self._contact.alive.intersection(self.roster))

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
        if self._contact.set_progress(**changes) and self._tasks:
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
        gathered = await self._topology.gather(contribution)
        if self.failed.done():
            self.failed.result()
        offer = self._pending.open(gathered)
        self._spot_checks.show(gathered)
        self._queue.put(offer)
        outcome = await offer.outcome
        await self._topology.settled(outcome)
        return outcome

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head.

        Raises `VoteFileDamaged` if what was said in this round cannot be read back.
        """
        self._votes.open(self.round, self.roster, self._mail.me, self._mail.life)
        if self._votes.is_unsure:
            self._memories.begin(self._votes.opened_life)
        await self._loop.begin()
        self._transport.on_message(self._incoming.take)
        for work in (self._loop.run(), self._tick(), self._heartbeats.beat(), self._heartbeats.discover()):
            self._spawn(work)

    async def leave(self) -> None:
        """Tell the others that we go, and stop. A contribution that is not decided is withdrawn."""
        await self._contact.say_goodbye()
        await self.close()

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave no task behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._topology.close()
        await self._loop.close()
        await self._reduction.close()
        await self._points.close()
        await self._spot_checks.close()
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
        self._pending.fail(error)

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
            self._topology.tick()
            self._memories.ask()

    def _obey(self, genesis: Genesis) -> None:
        """The rules of the round that begins: every part of the driver goes by them from now on."""
        self._contact.obey(genesis)
        self._reduction.obey(self._setup.exchange or _exchange_settings(genesis.timing))
