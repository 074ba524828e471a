"""The values of the round machine: its rules, its state, the events it takes and the actions it asks for.

Everything is immutable; mappings are replaced, never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from ..envelope import Envelope
from ..grace import Pace
from ..identity import PeerId
from ..leader import permutation
from ..messages import Accepted, Commit, Heartbeat, Ready, Vote
from ..quorum import Quorum, quorum_of
from ..record import Plan, Record, SpanResult
from ..spans import Complaints
from ..spec import Genesis
from ..standing import Standing

OpenVote: TypeAlias = Callable[[str], tuple[PeerId, Vote]]
"""Verify one hexadecimal vote envelope of a certificate; raises `InvalidMessage`. Simulators pass a cheaper one."""

IsSigned: TypeAlias = Callable[[SpanResult, PeerId], bool]
IsSealed: TypeAlias = Callable[[str, PeerId, int, str], bool]
"""Of (seal, leader, ballot, content id of the record)."""


class IllegalTransition(RuntimeError):
    """A local event that cannot happen in the present state: a bug in the driver. The state is unchanged."""


@dataclass(frozen=True)
class Rules:
    """What does not change during a round: the rules in force and the commit that this round follows."""

    genesis: Genesis
    """The rules in force, amendments applied."""
    me: PeerId
    standing: Standing
    """What the parent commit leaves in force."""
    parent_state: str
    """State hash after the parent commit."""
    lease_samples: int
    """Samples leased to each peer for this round."""
    num_chunks: int
    fragment: int = 0
    abstain: bool = False
    """Never promise or vote in this round: this member's disk has forgotten what it said (S1)."""
    open_vote: OpenVote | None = None
    alternatives: tuple[Genesis, ...] = ()
    """Other rules that this round may have been planned under, by a leader who knew fewer amendments: what was voted on
    under them is to be proposed again and may be decided, but nothing new is planned under them."""
    began_unix_s: float = 0.0
    """Wall clock when the round begins here. Nothing but the expiry of invites depends on it."""
    recent: tuple[Pace, ...] = ()
    """What this member has seen of the last rounds; how long stragglers are waited for follows from it."""
    proven: frozenset[PeerId] = frozenset()
    """Peers of whose misconduct this member holds evidence when the round begins."""
    is_signed: IsSigned | None = None
    """Whether an owner has signed a span result. None: results carry no signatures (simulators)."""
    is_sealed: IsSealed | None = None
    """Whether a leader has proposed a record at a ballot. None: proposals carry no seals (simulators)."""

    @cached_property
    def run_id(self) -> str:
        return self.genesis.run_id

    @property
    def round(self) -> int:
        """The round that is decided."""
        return self.standing.round + 1

    @property
    def parent(self) -> str:
        """`content_id` of the parent's record; the run id for round 1."""
        return self.standing.record_id

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """Who votes."""
        return self.standing.roster

    @cached_property
    def sound(self) -> set[str]:
        """Plans and records of this round that were found valid: they come in plan, proposal, promise and commit."""
        return set()

    @cached_property
    def order(self) -> list[PeerId]:
        """The roster in the order in which its members lead."""
        return permutation(self.run_id, self.genesis.lineage, self.fragment, self.round, self.roster)

    @cached_property
    def quorum(self) -> Quorum:
        return quorum_of(self.genesis, self.roster, self.round, self.fragment)

    @property
    def may_vote(self) -> bool:
        return self.me in self.roster and not self.abstain

    @property
    def next_cursor(self) -> int:
        """First sample index after this round's leases."""
        return self.standing.data_cursor + len(self.roster) * self.genesis.exchange.num_seats * self.lease_samples

    def under(self, rules_id: str) -> Rules | None:
        """These rules with the genesis that a plan names; None if the round cannot be held under it."""
        if rules_id == self.genesis.rules_id:
            return self
        found = next((genesis for genesis in self.alternatives if genesis.rules_id == rules_id), None)
        return None if found is None else replace(self, genesis=found)

    def admits(self, peer: PeerId) -> bool:
        """Whether ``peer`` may be a member without showing an invite: not banned, not ejected, known to the run."""
        return self.standing.admits(self.genesis, peer)

    def leader_of(self, ballot: int) -> PeerId:
        return self.order[ballot % len(self.order)]

    def verified_vote(self, raw: str) -> tuple[PeerId, Vote]:
        """Voter and vote of a certificate's entry. Raises `InvalidMessage` or ValueError."""
        if self.open_vote is not None:
            return self.open_vote(raw)
        envelope = Envelope.open(bytes.fromhex(raw), run_id=self.run_id)
        if not isinstance(envelope.body, Vote) or envelope.header.lineage != self.genesis.lineage:
            raise ValueError("not a vote of this lineage")
        return envelope.header.sender, envelope.body


@dataclass(frozen=True)
class Acceptor:
    """What a member has bound itself to in a round. On disk before any message that follows from it is sent."""

    promised: int = 0
    """No vote below this ballot any more. 0 binds to nothing: ballot 0 needs no promise."""
    accepted: Accepted | None = None
    led: int = -1
    """Highest ballot that this member has led. After a restart it never leads that one again, so that it cannot
    propose two records at one ballot."""


@dataclass(frozen=True)
class PeerView:
    """What this member knows of another from its own messages."""

    heard_s: float
    """Time (the caller's monotonic clock) of the last message; of one never heard, since when it has been known."""
    heartbeat: Heartbeat | None = None
    is_met: bool = True
    """Whether it has ever spoken to us directly."""


@dataclass(frozen=True)
class Attempt:
    """The plan that this member is executing or watching."""

    plan: Plan
    plan_id: str
    lost: frozenset[int] = frozenset()
    """Spans whose owner was lost to us."""
    ended: bool = False
    """Our part of the exchange is over: what is not held now does not come by itself any more."""
    done: Mapping[int, SpanResult] = field(default_factory=dict[int, SpanResult])
    """Results of the spans that we own, kept to repeat them to the leader."""


@dataclass(frozen=True)
class Proposed:
    """The record that the leader of ``ballot`` asks us to vote for."""

    ballot: int
    record: Record
    record_id: str
    seal: str = ""


@dataclass(frozen=True)
class Preparing:
    """Leader, stage 1: collecting promises."""

    ballot: int
    promises: Mapping[PeerId, Accepted | None] = field(default_factory=dict[PeerId, Accepted | None])


@dataclass(frozen=True)
class Gathering:
    """Leader, stage 2: free to plan, waiting for contributions."""

    ballot: int


@dataclass(frozen=True)
class Reducing:
    """Leader, stage 3: the plan runs; collecting the owners' results."""

    ballot: int
    plan: Plan
    plan_id: str
    started_s: float
    results: Mapping[int, SpanResult] = field(default_factory=dict[int, SpanResult])
    failed: frozenset[int] = frozenset()
    """Spans that a member has newly complained about in this attempt."""


@dataclass(frozen=True)
class Proposing:
    """Leader, stage 4: collecting votes."""

    ballot: int
    record: Record
    record_id: str
    started_s: float
    votes: Mapping[PeerId, str] = field(default_factory=dict[PeerId, str])
    """Hexadecimal vote envelopes by voter."""


Lead: TypeAlias = Preparing | Gathering | Reducing | Proposing


class Phase(Enum):
    """Where a member stands in the round (derived from its state; see `RoundState.phase`)."""

    TRAINING = "training"
    READY = "ready"
    REDUCING = "reducing"
    IN_DOUBT = "in doubt"
    DECIDED = "decided"


_LOOKED_AT = frozenset({"rules", "peers", "readies", "proven"})
"""Fields of a state that its `RoundState.memo` depends on."""


@dataclass(frozen=True)
class RoundState:
    """One member's view of one round."""

    rules: Rules
    acceptor: Acceptor
    peers: Mapping[PeerId, PeerView]
    seen: int = 0
    """Highest ballot heard of: its owner is the leader we wait for."""
    deadline_s: float | None = None
    """When the others may take over from that leader. None while nothing is owed to us."""
    ready: Ready | None = None
    ready_since_s: float = 0.0
    no_quorum_since_s: float | None = None
    """Since when our contribution has waited without a quorum alive."""
    secluded_since_s: float | None = None
    """Since when no quorum has been heard from, whatever we do: rounds are provisional (L5)."""
    began_s: float = 0.0
    enough_since_s: float | None = None
    """Since when a quorum has been ready (the grace for stragglers runs from here)."""
    last_ready_s: float = 0.0
    """When a member's contribution was last heard of for the first time."""
    readies: Mapping[PeerId, Ready] = field(default_factory=dict[PeerId, Ready])
    attempt: Attempt | None = None
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Plan id → digests of the span results that are durable here."""
    proposed: Proposed | None = None
    fetching: str | None = None
    """Record whose results are being fetched."""
    lead: Lead | None = None
    complaints: Complaints = frozenset()
    distrusted: frozenset[PeerId] = frozenset()
    """Leader: owners in the present attempt that members distrust."""
    proven: frozenset[PeerId] = frozenset()
    """Peers whose misconduct is proven to this member, ejected ones included: they count as gone."""
    repeated_s: float = 0.0
    """When messages were last repeated."""
    decided: Commit | None = None

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What `views` has found out about this state: several rules ask the same of it."""
        return {}

    def having(self, **changes: Any) -> RoundState:
        """As `dataclasses.replace`, four times as fast: for what happens with every message."""
        following = object.__new__(RoundState)
        following.__dict__.update(self.__dict__, **changes)
        if not _LOOKED_AT.isdisjoint(changes):
            following.__dict__.pop("memo", None)
        return following

    def renewed(self, views: Mapping[PeerId, PeerView]) -> RoundState:
        """Peers that are live have said that they still are, and nothing else of them is new: what is known holds."""
        following = self.having()
        following.__dict__["peers"] = {**self.peers, **views}
        return following

    @property
    def phase(self) -> Phase:
        if self.decided is not None:
            return Phase.DECIDED
        if self.acceptor.accepted is not None:
            return Phase.IN_DOUBT
        if self.attempt is not None and self.attempt.plan.ballot == self.seen:
            return Phase.REDUCING
        return Phase.TRAINING if self.ready is None else Phase.READY

    def holds(self, record: Record) -> bool:
        """Whether every span's bytes are durable here (S2)."""
        digests = tuple(result.digest for result in record.results)
        return self.held.get(record.plan.content_id()) == digests
