"""The driver of a gossip run: a node's whole part in its rounds (`protocol.driver.Driver`).

A contribution looks for a partner (`partnering`), the two swap, and each takes its own outer step; without a partner it
takes the step alone. Nothing is voted on and nothing certified: a round is what this node has done (`account`). The
rules of the run, its operators' amendments, the gate, mail and heartbeats are those of every run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import sqrt
from typing import Any

from ..amending import Amending, Learned, parsed
from ..amendments import Amendment
from ..chunks import Contribution
from ..contact import Contact, Standpoint
from ..driver import DriverSetup
from ..envelope import InvalidMessage
from ..exchange import ExchangeCounters
from ..identity import PeerId
from ..lag import FAR_BEHIND_ROUNDS
from ..messages import Amendments, AmendmentsRequest, Heartbeat, Message, Provisional, Refused
from ..outcomes import Aborted, Committed, Outcome
from ..peers import PeerInfo
from ..results import ResultStore
from ..round_machine import Phase
from ..sealing import ClockApart, OtherLineage
from ..spec import PROTOCOL_VERSION, Genesis
from ..tickets import Ticket
from ..transport import RemoteProtocolError, Transport
from ..wakeup import Signal
from .account import Company, Part, Swapped, account
from .admission import NUM_NORMS, Bounds, factors
from .distrust import Distrust
from .pairing import Draw
from .partnering import Limits, PairHost, Partnering
from .probation import Probation
from .replica import GossipReplica, Used
from .search import Rules, Sight
from .swap import Taken
from .vectors import Grids, Vectors
from .views import is_behind, next_round, sights

_LOOKS_PER_HEARTBEAT = 4
_OUTDATED = "the run needs a newer version of atoll"


class GossipDriver:
    """Takes part in the rounds of one gossip run. Construct it inside the event loop.

    ``setup.replica`` must be a `GossipReplica`, passed as ``replica``. ``setup.sync`` is awaited when most peers are
    too far ahead to pair with: it must install others' weights (`joining`), or leave the replica as it is.
    """

    def __init__(self, setup: DriverSetup, replica: GossipReplica) -> None:
        self._setup, self._replica = setup, replica
        self._genesis = setup.rules
        self._contact = contact = Contact(setup, lambda: Standpoint(self.phase))
        self._points = contact.points
        timing, founders = self._genesis.timing, setup.book.rules.genesis.membership.roster
        self._amending = Amending(
            setup.book, contact.mail, self._points.observe, timing.heartbeat_interval_s, setup.clock
        )
        folder = setup.folder / "gossip"
        self._probation = Probation(folder / "known.json", founders, self._genesis.trust.probation_rounds)
        self._distrust = Distrust()
        self._tickets: dict[PeerId, Ticket] = {}
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="swap")
        self._grids = Grids.of(setup.grid)
        self._results = ResultStore(setup.folder / "results", setup.grid, FAR_BEHIND_ROUNDS)
        self._partnering = Partnering(self._pair_host())
        self._norms: deque[float] = deque(maxlen=NUM_NORMS)
        self._learned: asyncio.Queue[Learned] = asyncio.Queue()
        self._changed = Signal()
        self._is_stepping = False
        self._sync_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that ended the driver, if one does; the node should wait for it."""

    def _pair_host(self) -> PairHost:
        setup = self._setup
        return PairHost(
            me=setup.me,
            transport=self._contact.gate,
            executor=self._executor,
            grids=self._grids,
            folder=setup.folder / "gossip",
            sights=self._sights,
            rules=self._search_rules,
            is_reachable=setup.facts.reachable,
            clock=setup.clock,
            observe=self._points.observe,
            distrust=self._note_misconduct,
        )

    # --- what the node asks -------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being worked on: one after the last that this node has ended."""
        return self._replica.head_round + 1

    @property
    def phase(self) -> Phase:
        """``READY`` while it looks for a partner, ``REDUCING`` while it swaps, ``DECIDED`` during the step."""
        if self._is_stepping:
            return Phase.DECIDED
        if not self._partnering.is_searching:
            return Phase.TRAINING
        return Phase.READY if self._partnering.partner is None else Phase.REDUCING

    @property
    def genesis(self) -> Genesis:
        """The rules that the present round is held under, amendments applied."""
        return self._genesis

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """This node, if the run admits it, and whom it has heard from lately: there is no other."""
        patience_s, now_s = self._genesis.timing.drop_after_s, self._setup.clock()
        others = {
            peer
            for peer, info in self.peers.items()
            if info.is_alive(now_s, patience_s) and self._contact.gate.admits(peer)
        }
        own = {self._setup.me} if self._replica.standing.admits(self._genesis, self._setup.me) or self._tickets else set()
        return tuple(sorted(others | own))

    @property
    def peers(self) -> Mapping[PeerId, PeerInfo]:
        """All other peers that are known."""
        return self._contact.peers.all

    @property
    def num_alive(self) -> int:
        """Peers that are heard from and may be partners, this node included."""
        return 1 + len(self._present())

    @property
    def provisional(self) -> Provisional | None:
        """None: no round of a gossip run waits for a quorum."""
        return None

    @property
    def counters(self) -> ExchangeCounters | None:
        """None: what swaps measure is in their outcomes (`Swapped`)."""
        return None

    @property
    def transport(self) -> Transport:
        """The transport behind the run's gate."""
        return self._contact.gate

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Threads for CPU and disk work of the protocol."""
        return self._executor

    @property
    def ahead(self) -> tuple[PeerId, ...]:
        """Peers that say that they have ended more rounds than we have, newest first."""
        return self._contact.peers.ahead(self._replica.head_round)

    @property
    def results(self) -> ResultStore:
        """Empty: there are no common means."""
        return self._results

    def attestations(self, round_number: int) -> dict[PeerId, bytes]:
        """Empty: nobody vouches for another's state."""
        del round_number
        return {}

    @property
    def is_behind(self) -> bool:
        """Whether most peers that are heard from are too far ahead to pair with."""
        return is_behind(self._replica.head_round, self._heads(), self._genesis.gossip.max_rounds_apart)

    # --- what to do ---------------------------------------------------------------------------------------------------

    def set_progress(self, **changes: Any) -> None:
        """Change fields of `heartbeats.Progress`, which heartbeats carry; a change of phase is told at once."""
        if self._contact.set_progress(**changes) and self._tasks:
            self._contact.heartbeats.say_now()

    def amend(self, amendments: Iterable[Amendment]) -> None:
        """Amendments of this node's operator: checked, kept, put in force and spread like those of others."""
        self._learned.put_nowait(Learned(tuple(amendments)))

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Find a partner, swap, and take the step; or take it alone. `Aborted` if this node must load weights first.

        ``contribution.encoded`` must not change until this returns. Raises what ended the driver, if something did.
        """
        if self.failed.done():
            self.failed.result()
        if contribution.round != self.round:
            return Aborted(f"round {contribution.round} is not the present one, {self.round}")
        while (why := self._why_not_now()) is not None:
            if self.is_behind:
                return Aborted(why)
            await self._changed.wait()
        return await self._hold(contribution)

    def _why_not_now(self) -> str | None:
        rules = self._genesis
        if self.is_behind:
            return "most peers are too far ahead to swap with; their weights are loaded first"
        if rules.control.paused:
            return "the run is paused"
        if rules.control.required_protocol > PROTOCOL_VERSION:
            return _OUTDATED
        if self.num_alive < rules.membership.min_peers:
            return f"{self.num_alive} of {rules.membership.min_peers} peers are here"
        return None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Be heard, and answer. Rounds begin with `contribute`."""
        for peer in (*self._genesis.membership.roster, *self._genesis.membership.allowed):
            self._contact.peers.add(peer)
        self._contact.gate.on_message(self._take)
        heartbeats = self._contact.heartbeats
        for work in (self._learn(), self._tick(), heartbeats.beat(), heartbeats.discover()):
            self._spawn(work)

    async def leave(self) -> None:
        """Tell the others that we go, and stop. A swap that goes on is abandoned, without effect."""
        await self._contact.say_goodbye()
        await self.close()

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave no task behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._points.close()
        await self._contact.mail.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.failed.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # also told by `contribute`: not "never retrieved"
            self._look()

    async def _tick(self) -> None:
        """Time passes: peers fall silent, the grace ends, and we may be left behind."""
        while True:
            await asyncio.sleep(self._genesis.timing.heartbeat_interval_s / _LOOKS_PER_HEARTBEAT)
            self._look()
            if self.is_behind and not self._is_stepping and (self._sync_task is None or self._sync_task.done()):
                self._sync_task = self._spawn(self._catch_up())

    def _look(self) -> None:
        self._changed.fire()
        self._partnering.look()

    async def _catch_up(self) -> None:
        if self._setup.sync is not None:
            self._points.observe("state.syncing", {})
            await self._setup.sync()

    # --- a round ------------------------------------------------------------------------------------------------------

    async def _hold(self, contribution: Contribution) -> Outcome:
        genesis, replica = self._genesis, self._replica
        self._norms.append(sqrt(contribution.squared_norm))
        bounds = Bounds.of(self._norms, genesis.trust.clip_factor, genesis.gossip.max_distance)
        work = (contribution, replica.weights(), self._grids, genesis.lineage)
        vectors = await asyncio.to_thread(Vectors.of, *work)
        limits = Limits(genesis.timing.progress_timeout_s, genesis.timing.attempt_timeout_s)
        search = asyncio.ensure_future(self._partnering.find(vectors, bounds, limits))
        self._contact.heartbeats.say_now()  # that we are ready
        try:
            found = await search
        except OSError as error:
            found = f"there is no room for a partner's vectors: {error.strerror or error}"
        finally:
            search.cancel()
        self._is_stepping = True
        try:
            return await self._step(contribution, vectors, found, bounds)
        finally:
            self._is_stepping = False
            self._contact.heartbeats.say_now()

    async def _step(
        self, contribution: Contribution, vectors: Vectors, found: Taken | str, bounds: Bounds
    ) -> Outcome:
        taken = None if isinstance(found, str) else found
        parts = [Part(self._setup.me, vectors.terms)]
        used = None
        if taken is not None:
            counts = self._probation.counts_from(taken.peer) <= self.round
            parts.append(Part(taken.peer, taken.terms, counts))
            used = self._used(taken, bounds) if counts else None
        commit = self._account(tuple(parts))
        state_hash = await self._replica.step(commit, contribution.encoded, used)
        outcome = Swapped(commit, state_hash, (True,), why_alone=found if isinstance(found, str) else None)
        if taken is not None:
            outcome = self._measured(outcome, taken, vectors, bounds)
        self._points.applied(commit.record.plan.round, {"outcome": outcome})
        return outcome

    def _used(self, taken: Taken, bounds: Bounds) -> Used:
        cut = factors(bounds, sqrt(taken.terms.delta.squared_norm), taken.distance)
        return Used(taken.inbox.delta.data, taken.inbox.weights.data, cut.delta, cut.pull)

    def _measured(self, outcome: Swapped, taken: Taken, vectors: Vectors, bounds: Bounds) -> Swapped:
        norm = sqrt(vectors.terms.weights.squared_norm)
        return replace(
            outcome,
            partner=taken.peer,
            distance=taken.distance,
            spread=taken.distance / norm if norm > 0 else None,
            distance_in_rounds=taken.distance / bounds.measure if bounds.measure > 0 else None,
        )

    def _account(self, parts: tuple[Part, ...]) -> Committed:
        genesis, present, number = self._genesis, self._present(), self.round
        if len(parts) > 1:
            number = next_round(number, parts[1].terms.round, self._heads(), genesis.stop.num_rounds)
        self._probation.meet(present, number)
        newcomers = self._probation.newcomers(present, number + 1)
        return account(
            genesis,
            self._replica.standing,
            self._replica.state_hash,
            parts,
            Company(present, self._tickets, newcomers),
            round_number=number,
            num_chunks=self._grids.delta.num_chunks,
        )

    # --- others -------------------------------------------------------------------------------------------------------

    def _present(self) -> set[PeerId]:
        return {peer for peer in self._contact.alive if self._contact.gate.admits(peer)}

    def _heads(self) -> list[int]:
        peers = self.peers
        heartbeats = (peers[peer].heartbeat for peer in self._present())
        return [heartbeat.round for heartbeat in heartbeats if heartbeat is not None]

    def _sights(self) -> dict[PeerId, Sight]:
        def is_welcome(peer: PeerId) -> bool:
            return self._contact.gate.admits(peer) and not self._distrust.shuns(peer, self.round)

        return sights(self.peers, is_welcome, self._genesis.timing.heartbeat_timeout_s, self._setup.clock())

    def _search_rules(self) -> Rules:
        genesis = self._genesis
        draw = Draw(genesis.run_id, genesis.lineage)
        return Rules(draw, genesis.gossip.max_rounds_apart, genesis.timing.ready_grace_s)

    def _note_misconduct(self, peer: PeerId) -> None:
        num_rounds = self._distrust.note(peer, self.round)
        self._points.observe("peer.shunned", {"peer": peer, "num_rounds": num_rounds})

    async def _take(self, remote: PeerId, raw: bytes) -> None:
        contact, setup = self._contact, self._setup
        try:
            body = contact.mail.open(remote, raw).body
        except InvalidMessage as error:
            if isinstance(error, ClockApart):
                contact.peers.clock_apart(remote, error.offset_s, setup.clock())
            if not isinstance(error, OtherLineage):
                self._points.reject(RemoteProtocolError(remote, "message", str(error)))
            return
        except RemoteProtocolError as error:
            self._points.reject(error)
            return
        if not contact.peers.is_met(remote):
            contact.heartbeats.say_to(remote)  # it may have started after our last one
        heartbeat = body if isinstance(body, Heartbeat) else None
        contact.peers.heard(remote, heartbeat, setup.clock(), setup.wall_clock())
        self._handle(remote, body)

    def _handle(self, remote: PeerId, body: Message) -> None:
        match body:
            case Heartbeat():
                self._amending.hear(remote, body)
                if body.ticket is not None and len(self._tickets) < 1024:
                    self._tickets[remote] = body.ticket
                self._look()
            case AmendmentsRequest():
                self._amending.answer(remote, body)
            case Amendments():
                self._hear_amendments(remote, body)
            case Refused():
                self._points.observe("invite.refused", {"peer": remote, "why": body.why})
            case _:
                what = f"a {body.kind} has no meaning in a gossip run"
                self._points.reject(RemoteProtocolError(remote, "message", what))

    def _hear_amendments(self, remote: PeerId, body: Amendments) -> None:
        try:
            learned = parsed(remote, body.amendments)
        except RemoteProtocolError as error:
            self._points.reject(error)
            return
        if self._learned.qsize() < 64:
            self._learned.put_nowait(learned)

    async def _learn(self) -> None:
        """Amendments are in force from their round on, by this node's own count."""
        while True:
            rules = await self._amending.learn(await self._learned.get())
            if rules is not None:
                self._setup.book.take(rules)
                self.obey()
                self._contact.heartbeats.say_now()

    def obey(self) -> None:
        """The rules of the round that begins hold from now on."""
        rules = self._setup.book.rules.at(self.round)
        if rules.rules_id != self._genesis.rules_id:
            self._genesis = rules
            self._contact.obey(rules)
            self._points.observe("rules.in_force", {"rules": rules.rules_id})
        self._look()
