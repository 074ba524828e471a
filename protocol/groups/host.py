"""A delegate's side of its group: it gives seats, gathers, and lets the group reduce to one contribution.

Failures: a follower that dies or is late costs its own work. An owner that dies costs an attempt: the group reduces
again without it as an owner, from what the others still hold. After `_MAX_ATTEMPTS` the delegate contributes alone, and
says so to those who have taken part. If the contribution is withdrawn, so are the followers'.
"""

from __future__ import annotations

from collections import deque

from ..chunks import Contribution
from ..grace import NUM_ROUNDS, Pace
from ..identity import PeerId
from ..messages import Enlist, GroupPlan, GroupResult, GroupResultCopy, GroupWithdrawn, Ready, Seat
from ..offload import off_loop
from ..pending import ready_of
from ..record import Plan, Record
from ..spec import Genesis
from ..tasks import Background
from ..wakeup import Signal
from . import mustering
from .attempt import GroupAttempt
from .fidelity import proofs_of
from .mustering import GroupRules
from .parts import GroupParts
from .seat_store import SeatStore
from .seating import Seating
from .seats import Seats

_MAX_ATTEMPTS = 3
_LOOKS_PER_HEARTBEAT = 8


class Host:
    """`begin` in each round in which this node is a delegate; all methods run in the event loop."""

    def __init__(self, parts: GroupParts, store: SeatStore) -> None:
        self._parts = parts
        self._seating = Seating(store, parts.executor, parts.points.observe)
        self._rules: GroupRules | None = None
        self._readies: dict[PeerId, Ready] = {}
        self._ballot = 0
        self._began_s = 0.0
        self._ready_s: float | None = None
        """When this node's own work of the round was done."""
        self._last_ready_s = 0.0
        self._recent: deque[Pace] = deque(maxlen=NUM_ROUNDS)
        self._is_gathering = False
        self._changed = Signal()
        self._enlisting: set[PeerId] = set()
        self._background = Background()
        self._attempts: list[GroupAttempt] = []
        """Of this round, or of the last one, while it is not over."""
        self._barred: set[PeerId] = set()
        """Followers that have lied about a mean: they get no seat from this node while it runs."""

    # --- who is here --------------------------------------------------------------------------------------------------

    @property
    def is_gathering(self) -> bool:
        """Whether this node's contribution waits for the group's."""
        return self._is_gathering

    @property
    def followers(self) -> tuple[PeerId, ...]:
        """Those with a seat who are here at present."""
        rules, seats = self._rules, self._seating.seats
        if rules is None or seats is None:
            return ()
        views, now = self._parts.peers.views(), self._parts.clock()
        seated = (peer for peer in seats.peers if peer not in self._barred)
        return tuple(peer for peer in seated if mustering.follows(views.get(peer), rules, now))

    async def begin(self, genesis: Genesis) -> None:
        """A round begins (or begins anew): followers that are still here keep their seats, and are told so."""
        parts, standing = self._parts, self._parts.replica.standing
        followers = self.followers
        before = None if self._rules is None else (self._rules.genesis.lineage, self._rules.round)
        self._rules = rules = GroupRules(genesis, parts.me, standing, parts.replica.state_hash, parts.grid.num_chunks)
        if before == (genesis.lineage, rules.round):
            return
        self._readies, self._ballot = {}, 0
        self._note_pace()
        self._changed.fire()
        staying = [peer for peer in followers if self._may_sit(peer)]
        if await self._seating.begin(genesis.lineage, rules.round, genesis.exchange.num_seats, staying):
            for peer in self.followers:
                self._tell_seat(peer)

    def _note_pace(self) -> None:
        """Remember how the last round went, late followers included: the grace of the next ones follows from it."""
        if self._ready_s is not None:
            self._recent.append(Pace(self._ready_s - self._began_s, max(0.0, self._last_ready_s - self._ready_s)))
        self._began_s, self._ready_s = self._parts.clock(), None

    def leave(self) -> None:
        """This node is no delegate (any more)."""
        self._rules = None
        self._changed.fire()

    def _may_sit(self, peer: PeerId) -> bool:
        rules = self._rules
        if rules is None or peer in rules.standing.roster or peer in self._barred:
            return False
        return peer not in rules.standing.ejected and peer not in rules.genesis.control.banned

    # --- what followers say -------------------------------------------------------------------------------------------

    def hear(self, sender: PeerId, body: Enlist | Ready) -> None:
        """A follower, or who would like to be one, speaks. What is of another round is left alone: it is repeated."""
        rules = self._rules
        if rules is None or body.round != rules.round:
            return
        match body:
            case Enlist() if not self._may_sit(sender):
                self._parts.mail.post((sender,), Seat(round=rules.round, seat=None, is_full=True))
            case Enlist():
                self._enlist(rules, sender)
            case Ready():
                self._on_ready(rules, sender, body)

    def _enlist(self, rules: GroupRules, peer: PeerId) -> None:
        if peer not in self._enlisting:
            self._enlisting.add(peer)
            giving = self._background.spawn(self._give_seat(rules, peer))
            giving.add_done_callback(lambda _: self._enlisting.discard(peer))

    async def _give_seat(self, rules: GroupRules, peer: PeerId) -> None:
        if await self._seating.give(rules.round, peer) and self._rules is rules:
            self._tell_seat(peer)

    def _tell_seat(self, peer: PeerId) -> None:
        seats = self._seating.seats
        if seats is None:
            return
        seat = seats.seat_of(peer)
        is_full = seat is None and not seats.is_closed
        self._parts.mail.post((peer,), Seat(round=seats.round, seat=seat, is_full=is_full, group=self.followers))

    def _on_ready(self, rules: GroupRules, sender: PeerId, ready: Ready) -> None:
        seats = self._seating.seats
        is_of_round = (ready.parent, ready.parent_state) == (rules.standing.record_id, rules.parent_state)
        if seats is None or seats.seat_of(sender) is None or not is_of_round or sender in self._barred:
            return
        if sender not in self._readies:
            self._last_ready_s = self._parts.clock()
        self._readies[sender] = ready
        self._changed.fire()
        plan = self._attempts[-1].plan if self._attempts else None
        if plan is not None and any(member.peer == sender for member in plan.members):
            self._repeat(sender, plan)

    def _repeat(self, follower: PeerId, plan: Plan) -> None:
        """It says again what it has said because it has missed something."""
        ledger = self._parts.ledger
        known = next((entry for entry in ledger.entries() if entry.record.plan == plan), None)
        if known is None:
            self._parts.mail.post((follower,), GroupPlan(plan=plan))
        else:
            copy = GroupResultCopy(round=plan.round, envelope=known.envelope.hex())
            self._parts.mail.post((follower,), copy)

    # --- the group's contribution -------------------------------------------------------------------------------------

    async def gather(self, own: Contribution) -> Contribution:
        """What this node contributes: the mean of its group, or ``own``, if it is alone or the round is over."""
        rules = self._rules
        if rules is None or own.round != rules.round:
            return own
        self._is_gathering = True
        try:
            return await self._gather(rules, own)
        except OSError as error:
            self._observe("group.failed", {"why": f"cannot keep results on disk: {error.strerror}"})
            return own
        finally:
            self._is_gathering = False

    async def _gather(self, rules: GroupRules, own: Contribution) -> Contribution:
        parts = self._parts
        self._readies[parts.me] = ready_of(own, parts.replica, parts.mail.life)
        self._ready_s = parts.clock()
        await self._until_due(rules, self._ready_s)
        lost: set[PeerId] = set()
        for number in range(_MAX_ATTEMPTS + 1):
            if self._rules is not rules or (seats := self._seating.seats) is None:
                return own
            others = self._ready_followers() if number < _MAX_ATTEMPTS else []
            if not others and not self._attempts:
                return own  # nobody has taken part in anything
            attempt = GroupAttempt(parts, self._make_plan(rules, seats, others, lost), own, rules.genesis)
            self._attempts.append(attempt)
            record = await attempt.run()
            if record is not None:
                return await self._conclude(rules, record, own)
            lost |= attempt.lost
            self._barred |= attempt.liars
        return own

    async def _until_due(self, rules: GroupRules, ready_s: float) -> None:
        look_s = rules.genesis.timing.heartbeat_interval_s / _LOOKS_PER_HEARTBEAT
        while self._rules is rules and (seats := self._seating.seats) is not None:
            views, now = self._parts.peers.views(), self._parts.clock()
            waiting = mustering.awaited(rules, seats, self._readies, views, now)
            if mustering.may_plan(rules, (views[peer] for peer in waiting), tuple(self._recent), ready_s, now):
                return
            await self._changed.wait_for(look_s)

    def _ready_followers(self) -> list[PeerId]:
        return [peer for peer in self.followers if peer in self._readies]

    def _make_plan(self, rules: GroupRules, seats: Seats, others: list[PeerId], faulty: set[PeerId]) -> Plan:
        me, views = self._parts.me, self._parts.peers.views()
        heartbeats = {peer: views[peer].heartbeat for peer in others}
        owners = [peer for peer, said in heartbeats.items() if said is not None and said.reachable]
        readies = {peer: self._readies[peer] for peer in (me, *others)}
        fit = [me, *(peer for peer in owners if peer not in faulty)]
        self._ballot += 1
        return mustering.make_plan(rules, seats, readies, fit, self._ballot)

    async def _conclude(self, rules: GroupRules, record: Record, own: Contribution) -> Contribution:
        parts, plan = self._parts, record.plan
        mean = await off_loop(
            parts.executor,
            Contribution.of,
            parts.grid,
            parts.store.mean(record),
            round_number=own.round,
            tokens=mustering.tokens_of(record, rules.genesis.limits),
            num_inner_steps=own.num_inner_steps,
            tokens_per_s=mustering.speed_of(plan),
        )
        result = GroupResult(
            record=record,
            commitment=mean.commitment,
            squared_norm=mean.squared_norm,
            proofs=proofs_of(mean.tree, plan),
        )
        members = tuple(member.peer for member in plan.members if member.peer != parts.me)
        told = {*members, *self.followers}
        parts.ledger.add(parts.me, result, parts.mail.post(sorted(told), result))
        self._observe("group.reduced", {"num_peers": len(plan.members), "tokens": mean.tokens})
        return mean

    async def end(self) -> None:
        """The round is decided, or this node's contribution withdrawn: its bytes may change from now on."""
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            await attempt.stop()

    def withdraw(self, why: str) -> None:
        """The round did not take the group's contribution. Its peers' have changed when they offer them again."""
        followers = self.followers
        if followers and self._rules is not None:
            self._parts.mail.post(followers, GroupWithdrawn(round=self._rules.round, why=why[:200]))
        self._readies.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _observe(self, point: str, fields: dict[str, object]) -> None:
        self._parts.points.observe(point, fields)

    async def close(self) -> None:
        self.leave()
        await self.end()
        await self._background.close()
