"""Every message that peers exchange, as frozen, strictly validated values. `envelope` signs them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .record import Plan, Record, SpanResult
from .suspicions import Suspicion
from .tickets import Ticket
from .values import (
    Ballot,
    Count,
    Digest,
    DigestOrNone,
    Frozen,
    Loss,
    Name,
    NodePhase,
    Peer,
    Round,
    Signature,
    Speed,
    SquaredNorm,
)


class Message(Frozen):
    """Base of signed bodies."""

    kind: Any
    """Selects the type on the wire; every message narrows it to one literal string."""


class InRound(Message):
    """Base of messages that belong to one round: the round machine gets them in that round only."""

    round: Round


class Evaluated(Frozen):
    """The validation loss of a committed state, which is the same for everybody."""

    round: Round
    validation_loss: Loss


class Echo(Frozen):
    """A peer's last heartbeat comes back to it, so that it can tell how long messages travel."""

    peer: Peer
    sent_unix_s: Annotated[float, Field(ge=0, le=1e11)]
    """Its own clock when it sent that."""
    held_s: Annotated[float, Field(ge=0, le=1e11)]
    """How long it has been here."""


class Provisional(Frozen):
    """The sender hears from no quorum of the lineage: its rounds are provisional, without certificate (L5)."""

    num_alive: Count
    """Members that it hears from, itself included."""
    num_needed: Count
    """Fewest members, the sender among them, that can commit."""
    num_members: Count
    lasted_s: Annotated[float, Field(ge=0, le=1e11)]


class Group(Frozen):
    """In two-tier rounds: whose group the sender is in, and how many peers that has, as far as the sender knows."""

    delegate: Peer
    """The sender itself, if it is a delegate."""
    num_peers: Annotated[int, Field(ge=1, le=1024)]


class Heartbeat(InRound):
    """Progress and reachability, sent to every known peer and published for discovery."""

    kind: Literal["heartbeat"] = "heartbeat"
    name: Name = ""
    version: Name = ""
    round: Round
    """Last commit that the sender has applied."""
    state_hash: Digest
    """State hash after that commit."""
    phase: NodePhase
    num_inner_steps: Count = 0
    """Done in this round."""
    target_inner_steps: Count = 0
    """After which the sender contributes; 0: it does not say."""
    tokens: Count = 0
    tokens_per_s: Speed = 0.0
    loss: Loss | None = None
    evaluated: Evaluated | None = None
    """What the sender has evaluated last, for everybody's charts."""
    provisional: Provisional | None = None
    """Unless it hears from a quorum."""
    group: Group | None = None
    reachable: bool = True
    """Whether others can open streams to the sender. A peer that is not never owns a span and never leads."""
    abstains: bool = False
    """Whether the sender may have forgotten what it has said in this round, and so neither votes nor leads."""
    addresses: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=16)] = ()
    ticket: Ticket | None = None
    """What entitles a sender that the receiver need not know yet."""
    num_amendments: Count = 0
    """Changes of the run's rules that the sender knows; who knows fewer asks for them."""
    sent_unix_s: Annotated[float, Field(ge=0, le=1e11)] = 0.0
    """Sender's clock, to estimate skew. Nothing is decided by it."""
    echoes: Annotated[tuple[Echo, ...], Field(max_length=16)] = ()
    """Of a few peers in turn."""


class Ready(InRound):
    """A member's inner steps are done and its contribution is encoded and committed to."""

    kind: Literal["ready"] = "ready"
    fragment: Count = 0
    parent: Digest
    parent_state: Digest
    tokens: Count
    commitment: Digest
    num_inner_steps: Count = 0
    life: Count = 0
    tokens_per_s: Speed = 0.0
    squared_norm: SquaredNorm = 0.0
    inner_state: DigestOrNone = ""


class PlanMessage(Message):
    """The leader starts an attempt."""

    kind: Literal["plan"] = "plan"
    plan: Plan


class SpanDone(InRound):
    """An owner tells the leader a span's result."""

    kind: Literal["span_done"] = "span_done"
    result: SpanResult


class SpanFailed(InRound):
    """A member tells the leader that a span's owner is lost to it."""

    kind: Literal["span_failed"] = "span_failed"
    plan: Digest
    span: Count
    why: Annotated[str, Field(max_length=200)]
    distrusted: bool = False
    """There is a result, but its owner does not show what it is over, or the sender has found it to be wrong."""


class Proposal(Message):
    """The leader asks for votes on a record (Paxos phase 2a)."""

    kind: Literal["proposal"] = "proposal"
    ballot: Ballot
    record: Record
    seal: Signature = ""
    """The leader's signature under ballot and record, which voters keep: it makes their promises credible."""


class Vote(InRound):
    """A member durably holds every result span and accepts the record (Paxos phase 2b). Certificates hold these."""

    kind: Literal["vote"] = "vote"
    fragment: Count
    ballot: Ballot
    record: Digest


class Prepare(InRound):
    """A new leader asks for promises (Paxos phase 1a)."""

    kind: Literal["prepare"] = "prepare"
    fragment: Count
    ballot: Ballot


class Accepted(Frozen):
    """The last vote that an acceptor gave in a round."""

    ballot: Ballot
    record: Record
    seal: Signature = ""
    """`Proposal.seal` of the proposal that was voted for."""


class Promise(InRound):
    """An acceptor will not vote below ``ballot`` any more (Paxos phase 1b)."""

    kind: Literal["promise"] = "promise"
    fragment: Count
    ballot: Ballot
    accepted: Accepted | None = None


class Nack(InRound):
    """The acceptor has promised a higher ballot; the sender of the lower one gives up its attempt."""

    kind: Literal["nack"] = "nack"
    fragment: Count
    promised: Ballot


class Commit(Message):
    """A decided round with its certificate: signed `Vote` envelopes of a quorum of ``record.plan.roster``."""

    kind: Literal["commit"] = "commit"
    record: Record
    ballot: Ballot
    votes: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=1024)]
    """Hexadecimal envelopes, exactly as the voters signed them."""


class Attest(InRound):
    """The sender has applied a commit and its state hash is this. A quorum of these certifies a snapshot."""

    kind: Literal["attest"] = "attest"
    record: Digest
    state_hash: Digest
    receipts: Digest | None = None
    """Root over what the commit says of each contribution (`receipts.statements_root`): a countersignature for all."""


class CommitRequest(InRound):
    """Asks for the commit of a round; the answer is a `Commit` message, if the receiver has it."""

    kind: Literal["commit_request"] = "commit_request"
    fragment: Count


class AmendmentsRequest(Message):
    """Asks for the amendments from number ``first`` on; the answer is `Amendments`, if the receiver has any."""

    kind: Literal["amendments_request"] = "amendments_request"
    first: Annotated[Count, Field(ge=1)]


class Amendments(Message):
    """Changes of the run's rules. They prove themselves (`amendments.Amendment`), whoever sends them."""

    kind: Literal["amendments"] = "amendments"
    amendments: Annotated[tuple[Annotated[str, Field(max_length=1 << 17)], ...], Field(max_length=1024)]
    """Canonical JSON of each, in order."""


OF_ANY_LINEAGE = (AmendmentsRequest, Amendments)
"""What peers of two lineages may say to each other: how one of them learns of the other."""


MAX_MEMORY = 32_768
"""Characters of what is remembered: two per byte of a heartbeat."""


class MemoryRequest(InRound):
    """A founder with an empty disk asks what the receiver has heard of it in round 1; answered by `Memory`."""

    kind: Literal["memory_request"] = "memory_request"


class Memory(InRound):
    """The first heartbeat that the sender has heard from the receiver, as the receiver has signed it."""

    kind: Literal["memory"] = "memory"
    envelope: Annotated[str, Field(max_length=MAX_MEMORY, pattern=r"^([0-9a-f]{2})*$")] | None
    """Hexadecimal; None if it has heard none."""


class Enlist(InRound):
    """A follower asks a delegate for a seat in its group, for this round and those after it; answered by `Seat`."""

    kind: Literal["enlist"] = "enlist"


class Seat(InRound):
    """A delegate's word to a follower: this part of the delegate's lease is yours in this round, and nobody else's."""

    kind: Literal["seat"] = "seat"
    seat: Annotated[int, Field(ge=1, le=1023)] | None
    """None: there is none in this round."""
    is_full: bool = False
    """There may be none in the next rounds either: better look elsewhere."""
    group: Annotated[tuple[Peer, ...], Field(max_length=1024)] = ()
    """Followers of the group at present."""


class GroupPlan(Message):
    """A delegate starts the reduction of its group. ``plan.leader`` is the delegate, ``plan.roster`` the group."""

    kind: Literal["group_plan"] = "group_plan"
    plan: Plan


class GroupResult(Message):
    """What the group's mean is over, whose encoding is the delegate's contribution to the round."""

    kind: Literal["group_result"] = "group_result"
    record: Record
    commitment: Digest
    """`Member.commitment` of the delegate in the round's plan, if that counts on this mean."""
    squared_norm: SquaredNorm
    """`Member.squared_norm` of it."""
    proofs: Annotated[
        tuple[Annotated[str, Field(max_length=8192, pattern=r"^([0-9a-f]{80})*$")], ...], Field(max_length=128)
    ]
    """Per span, what leads from its chunks to the commitment (`groups.fidelity`)."""


class GroupResultRequest(InRound):
    """Asks for the group result behind a delegate's commitment; answered by `GroupResultCopy`, if it is known."""

    kind: Literal["group_result_request"] = "group_result_request"
    commitment: Digest


class GroupResultCopy(InRound):
    """A `GroupResult` as its delegate has signed it."""

    kind: Literal["group_result_copy"] = "group_result_copy"
    envelope: Annotated[str, Field(max_length=1 << 20, pattern=r"^([0-9a-f]{2})*$")]
    """Hexadecimal."""


class GroupWithdrawn(InRound):
    """A delegate's contribution is withdrawn, and its group's with it: nothing has changed, train on."""

    kind: Literal["group_withdrawn"] = "group_withdrawn"
    why: Annotated[str, Field(max_length=200)]


class Suspected(Message):
    """A spot check of the sender's has found that a member's contribution is not what its steps give."""

    kind: Literal["suspected"] = "suspected"
    suspicion: Suspicion


def round_of(body: Message) -> int:
    """The round that a message belongs to; for a heartbeat the last one that its sender has applied."""
    match body:
        case InRound():
            return body.round
        case PlanMessage() | GroupPlan():
            return body.plan.round
        case Proposal() | Commit() | GroupResult():
            return body.record.plan.round
        case _:
            raise TypeError(f"{type(body).__name__} belongs to no round")


class Refused(Message):
    """To a stranger: the invite that it shows lets nobody in here, or not it, or not now. To a peer that the run has
    ejected: that it has. Nothing follows from it.
    """

    kind: Literal["refused"] = "refused"
    why: Annotated[str, Field(max_length=200)]


AnyMessage = Annotated[
    Heartbeat
    | Ready
    | PlanMessage
    | SpanDone
    | SpanFailed
    | Proposal
    | Vote
    | Prepare
    | Promise
    | Nack
    | Commit
    | Attest
    | CommitRequest
    | AmendmentsRequest
    | Amendments
    | MemoryRequest
    | Memory
    | Refused
    | Enlist
    | Seat
    | GroupPlan
    | GroupResult
    | GroupResultRequest
    | GroupResultCopy
    | GroupWithdrawn
    | Suspected,
    Field(discriminator="kind"),
]
