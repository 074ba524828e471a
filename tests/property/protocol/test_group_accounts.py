"""Two-tier rounds count no work twice and lose none without a reason, whatever fails (S6).

Trainers, groups and commits as values, the decisions those of the product: places by `Seats`, plans by `mustering`,
`account` for what has become of each peer's work, `carry_after` for what it does about it. What really is in a commit
is worked out apart from them, chunk by chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.carry import carry_after
from atoll.protocol.groups import mustering
from atoll.protocol.groups.counting import UNKNOWN, account, flags_of
from atoll.protocol.groups.mustering import GroupRules
from atoll.protocol.groups.places import Place
from atoll.protocol.groups.seats import Seats
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Commit, Ready
from atoll.protocol.record import Member, Plan, Record, SpanResult
from atoll.protocol.spans import assign_spans
from atoll.protocol.spec import ExchangeConfig, Genesis, LimitsConfig, MembershipConfig
from atoll.protocol.standing import Standing

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 10)]
DELEGATES, FOLLOWERS = PEERS[:3], PEERS[3:]
NUM_CHUNKS, NUM_SEATS, TOKENS = 5, 4, 100
GENESIS = Genesis(
    name="accounts",
    protocol_version=1,
    initial_state="0" * 64,
    operators=(PEERS[0],),
    model={},
    exchange=ExchangeConfig(topology="two_tier", group_size=NUM_SEATS),
    membership=MembershipConfig(roster=tuple(DELEGATES)),
)

Unit = tuple[PeerId, int]
"""What a peer has trained in a round."""


@dataclass
class Trainer:
    """A peer's work, and what it remembers."""

    peer: PeerId
    delegate: PeerId | None = None
    own: Unit | None = None
    carry: Unit | None = None
    has_let_use: PeerId | None = None
    """On disk: the delegate whose group has had this round's work."""
    results: dict[str, Record] = field(default_factory=dict)

    @property
    def units(self) -> frozenset[Unit]:
        return frozenset(unit for unit in (self.own, self.carry) if unit is not None)


class Swarm:
    """Rounds with failures as a seed draws them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.standing = Standing.of_genesis(GENESIS)
        self.trainers = {peer: Trainer(peer) for peer in PEERS}
        self.seats = {peer: Seats(0, 0, NUM_SEATS) for peer in DELEGATES}
        self.contributed: dict[str, frozenset[Unit]] = {}
        """Commitment of a peer's own contribution -> the work in it."""
        self.groups: dict[str, Record] = {}
        """Commitment of a group's mean -> what it is over: the truth, which peers may not know."""
        self.times_counted: Counter[Unit] = Counter()
        self.lost: set[Unit] = set()
        self.places: set[Place] = set()
        self._number = self._placed_round = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def fresh(self) -> str:
        self._number += 1
        return f"{self._number:064x}"

    # --- a round ------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Train, reduce in groups, decide, account."""
        if self._placed_round != self.standing.round + 1:
            self._take_places()
        offered = {delegate: mean for delegate in DELEGATES if (mean := self._group_of(delegate)) is not None}
        if not offered:
            return  # no round: nothing has changed, and all train on
        commit = self._decide(offered)
        for unit in self._truth(commit):
            self.times_counted[unit] += 1
        for trainer in self.trainers.values():
            self._account(trainer, commit)
        self.standing = Standing.after(commit)

    def _take_places(self) -> None:
        self._placed_round = number = self.standing.round + 1
        for delegate, seats in self.seats.items():
            staying = [t.peer for t in self.trainers.values() if t.delegate == delegate and self.chance(0.9)]
            self.seats[delegate] = seats.next_round(number, staying)
        for peer in FOLLOWERS:
            trainer = self.trainers[peer]
            if trainer.delegate is None or self.chance(0.1):
                trainer.delegate = self.random.choice(DELEGATES)
        for trainer in self.trainers.values():
            trainer.has_let_use, place = None, self._place_of(trainer, number)
            trainer.own = None
            if place is not None:
                assert place not in self.places
                self.places.add(place)
                trainer.own = (trainer.peer, number)

    def _place_of(self, trainer: Trainer, number: int) -> Place | None:
        if trainer.peer in DELEGATES:
            return Place(number, trainer.peer)
        delegate = trainer.delegate
        assert delegate is not None
        given = self.seats[delegate].given_to(trainer.peer)
        if given is None:
            trainer.delegate = None
            return None
        self.seats[delegate] = given
        seat = given.seat_of(trainer.peer)
        assert seat is not None
        return Place(number, delegate, seat)

    def _group_of(self, delegate: PeerId) -> str | None:
        """Commitment of what the delegate offers, after an attempt or several; None if it dies before that."""
        commitment = None
        for ballot in range(self.random.choice([1, 1, 2, 3])):  # aborted ones are offered anew, attempts are repeated
            commitment = self._attempt(delegate, ballot)
            if self.chance(0.1):
                return None
        return commitment

    def _attempt(self, delegate: PeerId, ballot: int) -> str:
        rules = GroupRules(GENESIS, delegate, self.standing, "0" * 64, NUM_CHUNKS)
        seats, readies = self.seats[delegate], {delegate: self._ready_of(delegate)}
        for peer in seats.peers:
            if self.trainers[peer].delegate == delegate and self.trainers[peer].own and self.chance(0.8):
                readies[peer] = self._ready_of(peer)
        if len(readies) == 1 and not any(self.trainers[peer].has_let_use == delegate for peer in seats.peers):
            return readies[delegate].commitment
        owners = [peer for peer in readies if peer == delegate or self.chance(0.7)]
        plan = mustering.make_plan(rules, seats, readies, owners, ballot)
        for peer in readies:
            self.trainers[peer].has_let_use = delegate
        record, mean = self._reduced(plan), self.fresh()
        self.groups[mean] = record
        self.trainers[delegate].results[mean] = record
        for peer in readies:
            if self.chance(0.8):  # its message may be lost
                self.trainers[peer].results[mean] = record
        return mean

    def _ready_of(self, peer: PeerId) -> Ready:
        commitment = self.fresh()
        self.contributed[commitment] = self.trainers[peer].units
        standing, tokens = self.standing, TOKENS * len(self.trainers[peer].units)
        parent = {"parent": standing.record_id, "parent_state": "0" * 64}
        return Ready(round=standing.round + 1, tokens=tokens, commitment=commitment, squared_norm=1.0, **parent)

    def _reduced(self, plan: Plan) -> Record:
        """Some members are left out of some spans; nobody's span is over nobody."""
        plan_id, results = plan.content_id(), []
        for index in range(len(plan.spans)):
            flags = [self.chance(0.85) for _ in plan.members]
            flags[self.random.randrange(len(flags))] = True
            digest = self.fresh()
            results.append(SpanResult(plan=plan_id, span=index, included=tuple(flags), digest=digest))
        return Record(plan=plan, results=tuple(results))

    def _decide(self, offered: Mapping[PeerId, str]) -> Commit:
        weighs = {peer: self._tokens(mean) for peer, mean in offered.items()}
        members = tuple(Member(peer=p, tokens=weighs[p], commitment=mean) for p, mean in offered.items())
        standing = self.standing
        plan = Plan(
            lineage=0,
            fragment=0,
            round=standing.round + 1,
            ballot=0,
            leader=members[0].peer,
            parent=standing.record_id,
            parent_state="0" * 64,
            members=members,
            spans=assign_spans(NUM_CHUNKS, dict.fromkeys(offered, 1.0)),
            roster=tuple(DELEGATES),
            next_roster=tuple(DELEGATES),
            data_cursor=standing.data_cursor + len(DELEGATES) * NUM_SEATS,
            rules="0" * 64,
            attempt_timeout_s=1.0,
        )
        return Commit(record=self._reduced(plan), ballot=0, votes=())

    def _tokens(self, commitment: str) -> int:
        record = self.groups.get(commitment)
        own = self.contributed.get(commitment, frozenset())
        return TOKENS * len(own) if record is None else mustering.tokens_of(record, LimitsConfig())

    # --- accounts -----------------------------------------------------------------------------------------------------

    def _account(self, trainer: Trainer, commit: Commit) -> None:
        delegate = trainer.peer if trainer.peer in DELEGATES else trainer.has_let_use
        if self.chance(0.1):
            trainer.results = {}  # a restart; the delegate's own is lost as well, and whom it asks may be gone
        elif self.chance(0.7):
            trainer.results |= self.groups  # somebody had a copy
        found = account(commit, delegate, trainer.peer, trainer.results)
        counted = any(flags_of(found, commit))
        used = self._truth(commit) & trainer.units
        if not counted:
            assert not used, "what is in the mean would be carried"
        elif found is not UNKNOWN and not self._has_forgotten(trainer, commit):
            assert used, "work that is in no mean would be forgotten"
        self.lost |= {trainer.carry} - used if trainer.carry else set()
        trainer.carry = carry_after(trainer.own, counted=counted)

    def _has_forgotten(self, trainer: Trainer, commit: Commit) -> bool:
        """Whether a delegate takes a group's mean for its own: a restart has cost it the record."""
        mine = [member.commitment for member in commit.record.plan.members if member.peer == trainer.peer]
        return any(commitment in self.groups and commitment not in trainer.results for commitment in mine)

    def _truth(self, commit: Commit) -> set[Unit]:
        """The work that is in some chunk of the commit's mean."""
        found: set[Unit] = set()
        for chunk in range(NUM_CHUNKS):
            for delegate_commitment in _included(commit.record, chunk):
                group = self.groups.get(delegate_commitment)
                behind = [delegate_commitment] if group is None else _included(group, chunk)
                found |= {unit for commitment in behind for unit in self.contributed[commitment]}
        return found


def _included(record: Record, chunk: int) -> list[str]:
    """Commitments of the contributions that the mean of a chunk is over."""
    for span, result in zip(record.plan.spans, record.results, strict=True):
        if span.first_chunk <= chunk < span.first_chunk + span.num_chunks:
            flags = zip(record.plan.members, result.included, strict=True)
            return [member.commitment for member, is_in in flags if is_in]
    raise LookupError(chunk)


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_no_work_is_in_two_rounds_and_none_that_missed_is_forgotten(seed: int) -> None:
    swarm = Swarm(seed)
    for _ in range(8):
        swarm.play()
    assert max(swarm.times_counted.values(), default=0) <= 1
    assert len(swarm.times_counted) > 20  # most work does count
