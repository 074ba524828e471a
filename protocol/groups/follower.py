"""A follower's side of its group: it finds a delegate, trains on a part of its lease, and reduces with its group.

In a round a follower contributes only to the delegate whose lease it trains on, so that no sample enters twice. If that
delegate is lost, the contribution is withdrawn, training goes on, and what the round then commits without it becomes a
carry for the next one, in another group.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from ..chunks import Contribution, span_chunks, span_range, tree_of
from ..exchange_points import journal
from ..identity import PeerId
from ..messages import Commit, Enlist, GroupPlan, GroupResult, GroupResultRequest, GroupWithdrawn, Ready, Seat
from ..offload import off_loop
from ..outcomes import Aborted
from ..pending import Pending, ready_of
from ..record import Plan
from ..round_machine import Phase
from ..spec import Genesis, TimingConfig
from ..tasks import Background
from ..transport import RemoteProtocolError, Transport
from . import choice, mustering
from .choice import Candidate
from .counting import UNKNOWN, account, flags_of
from .fidelity import is_faithful
from .hand_down import Crew, sources
from .mustering import GroupRules
from .parts import GroupParts
from .places import Place
from .probe import probe
from .seat_store import PartStore

_ROUNDS_KEPT = 4


class Follower:
    """`begin` in each round in which this node is no delegate; all methods run in the event loop."""

    def __init__(self, parts: GroupParts, transport: Transport, pending: Pending, store: PartStore) -> None:
        self._parts, self._transport, self._pending, self._store = parts, transport, pending, store
        self._genesis: Genesis | None = None
        """None while this node is a delegate."""
        self._timing = TimingConfig()
        self.delegate: PeerId | None = None
        """Whom it follows at present; the round's work may still be another one's."""
        self.group: tuple[PeerId, ...] = ()
        """Its followers, by its last word."""
        self._joined_s = self._asked_s = 0.0
        self._patient_since_s = 0.0
        """When the delegate has last said something of a seat, or the round began."""
        self._refused: set[PeerId] = set()
        self._shunned: set[PeerId] = set()
        """Delegates that have altered their group's mean: never again, while this node runs."""
        self._places: dict[int, Place] = {}
        self._ready: Ready | None = None
        """Said of the contribution that waits; None if none does, or nobody can take it any more."""
        self._plan: Plan | None = None
        self._exchange: asyncio.Task[None] | None = None
        self._search: asyncio.Task[None] | None = None
        self._background = Background()

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        return self._parts.replica.head_round + 1

    @property
    def place(self) -> Place | None:
        """Of the present round."""
        place = self._places.get(self.round)
        return place if place is not None and place.member in self._parts.replica.standing.roster else None

    @property
    def phase(self) -> Phase:
        """As the round machine would call it."""
        if self._pending.offer is None:
            return Phase.TRAINING
        return Phase.READY if self._exchange is None else Phase.REDUCING

    def begin(self, genesis: Genesis) -> None:
        """A round begins (or begins anew)."""
        self._genesis, self._timing = genesis, genesis.timing
        self._patient_since_s = self._parts.clock()
        self._places = {number: place for number, place in self._places.items() if number > self.round - _ROUNDS_KEPT}
        self._refused.clear()
        self._end()

    def leave(self) -> None:
        """This node is a delegate now."""
        self._genesis, self.delegate, self.group = None, None, ()
        self._end()

    def _end(self) -> None:
        if self._plan is not None:
            self._parts.reduction.cancel(self._plan.content_id())  # nothing of it is shown any more
        self._ready = self._plan = None
        self._stop_exchange()

    def _stop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.cancel()

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look for a delegate, ask the one that was found, say again what has not been answered."""
        genesis, now = self._genesis, self._parts.clock()
        if genesis is None:
            return
        interval_s = genesis.timing.heartbeat_interval_s
        if self.delegate is not None and not self._is_here(genesis, self.delegate, now):
            self._lose(self.delegate, "it does not answer")
        if self.delegate is None:
            self._look_around(genesis)
        if now - self._asked_s >= interval_s:
            self._asked_s = now
            self._repeat()

    def _is_here(self, genesis: Genesis, delegate: PeerId, now: float) -> bool:
        timeout_s, info = genesis.timing.heartbeat_timeout_s, self._parts.peers.all.get(delegate)
        if delegate not in self._parts.replica.standing.roster:
            return False
        if self.place is None and now - max(self._joined_s, self._patient_since_s) > 2 * timeout_s:
            return False  # it lives, but seats nobody: it may be behind, or not want us
        if info is None or info.heard_s is None or info.heard_s < self._joined_s:
            return now - self._joined_s <= timeout_s
        return self._parts.peers.may_live(delegate, timeout_s)

    def _lose(self, delegate: PeerId, why: str) -> None:
        """Withdraw what was meant for it, and look for another one."""
        self.delegate, self.group = None, ()
        self._refused.add(delegate)
        self._parts.points.observe("group.left", {"peer": delegate, "why": why})
        place = self.place
        if place is not None and place.member == delegate:
            self._withdraw(f"its delegate …{delegate[-5:]} is gone")

    def _withdraw(self, why: str) -> None:
        self._end()
        self._pending.settle(Aborted(why))

    def _repeat(self) -> None:
        delegate, place = self.delegate, self.place
        if delegate is None:
            return
        if self._places.get(self.round) is None:
            self._parts.mail.post((delegate,), Enlist(round=self.round))
        elif self._ready is not None and place is not None and place.member == delegate and not self._is_reduced:
            self._parts.mail.post((delegate,), self._ready)

    @property
    def _is_reduced(self) -> bool:
        """Whether the delegate has what it can have of us in this round."""
        return self._plan is not None and self._parts.ledger.knows(self._plan)

    # --- finding a delegate -------------------------------------------------------------------------------------------

    def _look_around(self, genesis: Genesis) -> None:
        roster = self._parts.replica.standing.roster
        is_behind = any(peer in roster for peer in self._parts.peers.ahead(self.round - 1))
        if not is_behind and self._search is None:
            self._search = self._background.spawn(self._find(genesis))

    async def _find(self, genesis: Genesis) -> None:
        try:
            size = genesis.exchange.group_size
            candidates = choice.worth_probing(self._candidates(genesis), size, random.SystemRandom())
            limit_s = genesis.timing.progress_timeout_s
            found = await asyncio.gather(*(probe(self._transport, one.peer, limit_s) for one in candidates))
            probes = {one.peer: result for one, result in zip(candidates, found, strict=True) if result is not None}
            chosen = choice.best(candidates, probes)
            if chosen is not None and self.delegate is None and self._genesis is not None:
                self._join(chosen)
            else:
                await asyncio.sleep(genesis.timing.heartbeat_interval_s)
        finally:
            self._search = None

    def _candidates(self, genesis: Genesis) -> Sequence[Candidate]:
        parts, timeout_s, now = self._parts, genesis.timing.heartbeat_timeout_s, self._parts.clock()
        known = parts.peers.all
        found: list[Candidate] = []
        for peer in parts.replica.standing.roster:
            info = known.get(peer)
            is_barred = peer in self._shunned or peer in genesis.control.banned
            if info is None or is_barred or not info.is_alive(now, timeout_s):
                continue
            group = None if info.heartbeat is None else info.heartbeat.group
            is_delegate = group is not None and group.delegate == peer
            found.append(Candidate(peer, group.num_peers if group and is_delegate else 1, info.round_trip_s))
        return choice.without(found, self._refused)

    def _join(self, delegate: PeerId) -> None:
        self.delegate, self._joined_s = delegate, self._parts.clock()
        self._asked_s = self._joined_s
        self._parts.points.observe("group.joined", {"peer": delegate})
        self._parts.greet(delegate)  # it is then no stranger's question that it gets
        self._parts.mail.post((delegate,), Enlist(round=self.round))

    # --- what others say ----------------------------------------------------------------------------------------------

    def hear(self, sender: PeerId, body: Seat | GroupPlan | GroupWithdrawn) -> None:
        """The delegate speaks; whoever else does is not meant. Raises `RemoteProtocolError`."""
        match body:
            case Seat() if sender == self.delegate:
                self._on_seat(sender, body)
            case GroupPlan():
                self._on_plan(sender, body.plan)
            case GroupWithdrawn() if body.round == self.round and self._is_bound_to(sender):
                self._withdraw(body.why)
            case _:
                pass

    def _is_bound_to(self, peer: PeerId) -> bool:
        place = self.place
        return place is not None and place.member == peer

    def _on_seat(self, sender: PeerId, seat: Seat) -> None:
        if seat.round not in (self.round, self.round + 1):
            return
        self._patient_since_s = self._parts.clock()
        if seat.seat is None:
            if seat.round == self.round and seat.is_full:
                self._lose(sender, "all its seats are taken")
            return
        self.group = tuple(peer for peer in seat.group if peer != self._parts.me)
        if seat.round not in self._places:  # in a round the first one holds: training may have begun
            self._places[seat.round] = Place(seat.round, sender, seat.seat)
            if seat.round == self.round:
                self._parts.points.observe("group.seated", {"peer": sender, "seat": seat.seat})

    def _on_plan(self, sender: PeerId, plan: Plan) -> None:
        genesis, parts, contribution = self._genesis, self._parts, self._pending.contribution
        is_expected = plan.round == self.round and self._is_bound_to(sender)
        if genesis is None or contribution is None or self._ready is None or not is_expected:
            return
        standing, grid = parts.replica.standing, parts.grid
        rules = GroupRules(genesis, sender, standing, parts.replica.state_hash, grid.num_chunks)
        mustering.check_plan(rules, plan, parts.me, contribution.commitment, sender)
        if self._plan is not None and mustering.order_of(self._plan) >= mustering.order_of(plan):
            return
        self._plan = plan
        self._stop_exchange()
        self._exchange = self._background.spawn(self._take_part(genesis, plan, contribution))

    def learn(self, sender: PeerId, result: GroupResult, envelope: bytes) -> None:
        """A delegate that has had our work says what its group has made of it. Raises `RemoteProtocolError`."""
        if sender in (self.delegate, self._store.delegate_of(result.record.plan.round)):
            self._parts.ledger.add(sender, result, envelope)
            self._background.spawn(self._examine(sender, result))

    def learn_copy(self, sender: PeerId, number: int, envelope: bytes) -> None:
        """As `learn`, from whoever has it. Raises `RemoteProtocolError`."""
        delegate = self._store.delegate_of(number)
        if delegate is not None:
            result = self._parts.ledger.add_copy(sender, envelope, delegate)
            self._background.spawn(self._examine(delegate, result))

    async def _examine(self, delegate: PeerId, result: GroupResult) -> None:
        """Compare what the delegate contributes with the means that we have reduced; leave one that alters them."""
        record, parts = result.record, self._parts
        own = [index for index, span in enumerate(record.plan.spans) if span.owner == parts.me]
        if self._plan != record.plan or not own:
            return
        encoded = parts.store.attempt(record.plan).encoded
        for index in own:
            span = record.plan.spans[index]
            chunks = span_chunks(parts.grid, span)
            tree = await off_loop(parts.executor, tree_of, parts.grid, encoded[span_range(parts.grid, span)], chunks)
            if not is_faithful(result, index, tree.leaves, parts.grid.num_chunks):
                self._shun(delegate)

    def _shun(self, delegate: PeerId) -> None:
        self._shunned.add(delegate)
        self._parts.points.observe("group.betrayed", {"peer": delegate})
        if self.delegate == delegate:
            self._lose(delegate, "it does not contribute what its group has averaged")

    async def _take_part(self, genesis: Genesis, plan: Plan, contribution: Contribution) -> None:
        parts = self._parts
        try:
            await off_loop(parts.executor, self._store.note, plan.round, plan.leader)
            buffer = await off_loop(parts.executor, parts.store.attempt, plan)
            tell = partial(journal, observe=parts.points.observe)
            await parts.reduction.exchange(plan, contribution, genesis, buffer, tell).run()
        except OSError as error:
            parts.points.observe("group.unwritable", {"why": error.strerror or str(error)})
        except RemoteProtocolError as error:
            parts.points.reject(error)

    # --- its own work -------------------------------------------------------------------------------------------------

    def offer(self, contribution: Contribution) -> None:
        """The contribution is about to wait: let the delegate know, if it is there."""
        place = self.place
        if contribution.round != self.round or place is None or place.member != self.delegate:
            return  # it becomes a carry, unless the delegate comes back
        parts = self._parts
        self._end()
        self._ready = ready_of(contribution, parts.replica, parts.mail.life)
        parts.mail.post((place.member,), self._ready)

    def sources(self, span: int, waited_s: float) -> Sequence[PeerId]:
        """Whom to ask for a span of the round's result: the group first, so that the delegate gives it away once.

        Empty, for anybody, if that does not lead to it soon.
        """
        delegate, plan, parts = self.delegate, self._plan, self._parts
        if delegate is None or waited_s > 2 * self._timing.progress_timeout_s:
            return ()
        crew = Crew(delegate, ()) if plan is None or plan.leader != delegate else Crew.of(plan)
        line = crew.line(span, parts.me)
        gone = [peer for peer in line if not parts.peers.may_live(peer, self._timing.heartbeat_timeout_s)]
        return sources(line, gone, is_patient=waited_s < self._timing.progress_timeout_s)

    async def account(self, commit: Commit) -> tuple[bool, ...]:
        """Which spans of a decided round have our work in them. Asks around if that is not known here."""
        delegate = self._store.delegate_of(commit.record.plan.round)
        found = account(commit, delegate, self._parts.me, self._parts.ledger.records())
        if found is UNKNOWN and delegate is not None:
            await self._ask_around(commit, delegate)
            found = account(commit, delegate, self._parts.me, self._parts.ledger.records())
        if found is UNKNOWN:
            self._parts.points.observe("group.unknown", {"peer": delegate})
            if delegate is not None and delegate == self.delegate:
                self._lose(delegate, "it has not said what its contribution is over")
        return flags_of(found, commit)

    async def _ask_around(self, commit: Commit, delegate: PeerId) -> None:
        plan, timing = commit.record.plan, self._timing
        commitment = next(member.commitment for member in plan.members if member.peer == delegate)
        question = GroupResultRequest(round=plan.round, commitment=commitment)
        deadline_s = self._parts.clock() + timing.heartbeat_timeout_s
        while self._parts.ledger.envelope(commitment) is None and self._parts.clock() < deadline_s:
            self._parts.mail.post((delegate, *self.group), question)
            await asyncio.sleep(timing.heartbeat_interval_s / 2)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.leave()
        await self._background.close()
