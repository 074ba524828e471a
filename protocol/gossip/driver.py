"""The driver of a gossip run: a node's whole part in its rounds (`protocol.driver.Driver`).

A contribution looks for a partner (`partnering`), the two swap, and each takes its own outer step; without a partner it
takes the step alone. Nothing is voted on and nothing certified: a round is what this node has done (`account`). The
rules of the run, its operators' amendments, the gate, mail and heartbeats are those of every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median_high
from typing import Any

from ..amendments import Amendment, RunRules
from ..chunks import Contribution
from ..contact import Contact, Standpoint
from ..driver import DriverSetup
from ..exchange import ExchangeCounters
from ..identity import PeerId
from ..lag import FAR_BEHIND_ROUNDS
from ..messages import Provisional
from ..outcomes import Aborted, Outcome
from ..peers import PeerInfo
from ..results import ResultStore
from ..round_machine import Phase
from ..spec import PROTOCOL_VERSION, Genesis
from ..transport import Transport
from ..wakeup import Signal
from .distrust import Distrust
from .hearing import Hearing
from .pairing import Draw
from .partnering import PairHost, Partnering
from .probation import Probation
from .replica import GossipReplica
from .rounds import Rounds, Surroundings
from .search import Rules, Sight
from .vectors import Grids
from .views import is_behind, sights

_LOOKS_PER_HEARTBEAT = 4
_BEHIND = "most peers are too far ahead to swap with; their weights are loaded first"


class GossipDriver:
    """Takes part in the rounds of one gossip run. Construct it inside the event loop.

    ``replica`` is ``setup.replica``, which must be able to step by itself. ``setup.sync`` is awaited when most peers
    are too far ahead to pair with: it must install others' weights (`joining`), or leave the replica as it is.
    """

    def __init__(self, setup: DriverSetup, replica: GossipReplica) -> None:
        self._setup, self._replica, self._genesis = setup, replica, setup.rules
        self._contact = Contact(setup, lambda: Standpoint(self._told_phase))
        self._points = self._contact.points
        self._hearing = Hearing(setup, self._contact, self._look, self._obey)
        self._distrust = Distrust()
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="swap")
        self._results = ResultStore(setup.folder / "results", setup.grid, FAR_BEHIND_ROUNDS)
        self._partnering, self._rounds = self._make_rounds()
        self._changed = Signal()
        self._sync_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that ended the driver, if one does; the node should wait for it."""

    def _make_rounds(self) -> tuple[Partnering, Rounds]:
        setup, grids, folder = self._setup, Grids.of(self._setup.grid), self._setup.folder / "gossip"
        host = PairHost(
            me=setup.me,
            transport=self._contact.gate,
            executor=self._executor,
            grids=grids,
            folder=folder,
            sights=self._sights,
            rules=self._search_rules,
            is_reachable=setup.facts.reachable,
            clock=setup.clock,
            observe=self._points.observe,
            on_phase=self._contact.heartbeats.say_now,
            distrust=self._note_misconduct,
        )
        founders = setup.book.rules.genesis.membership.roster
        probation = Probation(folder / "known.json", founders, self._genesis.trust.probation_rounds)
        partnering = Partnering(host)
        return partnering, Rounds(setup.me, self._replica, grids, partnering, probation, self._surroundings)

    # --- what the node asks -------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being worked on: one after the last that this node has ended."""
        return self._replica.head_round + 1

    @property
    def phase(self) -> Phase:
        """``READY`` while it looks for a partner, ``REDUCING`` while it swaps, ``DECIDED`` during the step."""
        if self._rounds.is_stepping:
            return Phase.DECIDED
        if not self._partnering.is_searching:
            return Phase.TRAINING
        return Phase.READY if self._partnering.partner is None else Phase.REDUCING

    @property
    def _told_phase(self) -> Phase:
        """As others need it: who takes its step is no partner yet."""
        return Phase.REDUCING if self.phase is Phase.DECIDED else self.phase

    @property
    def genesis(self) -> Genesis:
        """The rules that the present round is held under, amendments applied."""
        return self._genesis

    @property
    def group(self) -> None:
        """There are none."""
        return None

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """This node, if the run admits it, and whom it has heard from lately: there is no other."""
        patience_s, now_s, me = self._genesis.timing.drop_after_s, self._setup.clock(), self._setup.me
        heard = (peer for peer, info in self.peers.items() if info.is_alive(now_s, patience_s))
        others = {peer for peer in heard if self._contact.gate.admits(peer)}
        is_in = self._replica.standing.admits(self._genesis, me) or me in self._hearing.tickets
        return tuple(sorted(others | {me} if is_in else others))

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
        """None: what swaps measure is in their outcomes (`account.Swapped`)."""
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
    def donors(self) -> tuple[PeerId, ...]:
        """Peers whose weights a joiner may ask for: those that take part, near the round that most have reached."""
        middle = median_high([self._replica.head_round, *self._heads()])
        apart = self._genesis.gossip.max_rounds_apart
        return tuple(peer for peer, sight in self._sights().items() if abs(sight.round - 1 - middle) <= apart)

    def announced(self, peer: PeerId) -> tuple[tuple[int, str], ...]:
        """Rounds and state hashes that a peer has signed lately."""
        return self._hearing.announced(peer)

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
        self._hearing.amend(amendments)

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Find a partner, swap, and take the step; or take it alone. `Aborted` if this node must load weights first.

        ``contribution.encoded`` must not change until this returns. Raises what ended the driver, if something did,
        and OSError if the step cannot be kept.
        """
        while (why := self._why_not_now()) is not None:
            if self.failed.done():
                self.failed.result()
            if why is _BEHIND:
                return Aborted(why)
            await self._changed.wait()
        if contribution.round != self.round:
            return Aborted(f"round {contribution.round} is not the present one, {self.round}")
        try:
            outcome = await self._rounds.hold(contribution)
        except (
            Exception
        ) as error:  # a bug, or a replica that cannot go on: whoever waits for the driver must hear of it
            self._fail(error)
            raise
        self._obey()
        self._points.applied(outcome.commit.record.plan.round, {"outcome": outcome})
        self._contact.heartbeats.say_now()
        return outcome

    def _why_not_now(self) -> str | None:
        rules = self._genesis
        if self.is_behind or self._is_syncing:
            return _BEHIND
        if rules.control.paused:
            return "the run is paused"
        if rules.control.required_protocol > PROTOCOL_VERSION:
            return "the run needs a newer version of atoll"
        if self.num_alive < rules.membership.min_peers:
            return f"{self.num_alive} of {rules.membership.min_peers} peers are here"
        return None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Be heard, and answer. Rounds begin with `contribute`."""
        for peer in (*self._genesis.membership.roster, *self._genesis.membership.allowed):
            self._contact.peers.add(peer)
        self._contact.gate.on_message(self._hearing.take)
        heartbeats = self._contact.heartbeats
        for work in (self._hearing.learn(), self._tick(), heartbeats.beat(), heartbeats.discover()):
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
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # also told by `contribute`: not "never retrieved"
            self._look()

    async def _tick(self) -> None:
        """Time passes: peers fall silent, the grace ends, and we may be left behind."""
        while True:
            await asyncio.sleep(self._genesis.timing.heartbeat_interval_s / _LOOKS_PER_HEARTBEAT)
            self._look()
            if self.is_behind and not self._is_syncing and self.phase is Phase.TRAINING:
                self._sync_task = self._spawn(self._catch_up())

    @property
    def _is_syncing(self) -> bool:
        return self._sync_task is not None and not self._sync_task.done()

    def _look(self) -> None:
        self._changed.fire()
        self._partnering.look()

    async def _catch_up(self) -> None:
        if self._setup.sync is not None:
            self._points.observe("state.syncing", {})
            await self._setup.sync()

    def _obey(self, _rules: RunRules | None = None) -> None:
        """The rules of the round that begins hold from now on; amendments by this node's own count of rounds."""
        rules = self._setup.book.rules.at(self.round)
        if rules.rules_id != self._genesis.rules_id:
            self._genesis = rules
            self._contact.obey(rules)
            self._points.observe("rules.in_force", {"rules": rules.rules_id})
        self._look()

    # --- others -------------------------------------------------------------------------------------------------------

    def _present(self) -> frozenset[PeerId]:
        return frozenset(peer for peer in self._contact.alive if self._contact.gate.admits(peer))

    def _heads(self) -> list[int]:
        peers = self.peers
        heartbeats = (peers[peer].heartbeat for peer in self._present())
        return [heartbeat.round for heartbeat in heartbeats if heartbeat is not None]

    def _surroundings(self) -> Surroundings:
        return Surroundings(self._genesis, self._present(), self._heads(), self._hearing.tickets)

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
