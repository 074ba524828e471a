"""Every message that peers exchange, as frozen, strictly validated values with a signed envelope.

Wire form of an envelope: 64 bytes of Ed25519 signature, then canonical JSON of `Header` and body. The signature
covers a domain tag and those exact bytes, so that verification never depends on re-serialising. The sender's public
key is inside its peer id. Replay is rejected by (run id, lineage) equality, expiry and a per-sender sequence number.

Nothing here performs I/O or knows the time; expiry is checked against a time that the caller passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .identity import Identity, PeerId, verify
from .parsing import Unreadable, canonical_json, parse, parse_any, split_canonical

DOMAIN = b"atoll/envelope/1\0"
SIGNATURE_BYTES = 64

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes as lower-case hexadecimal."""
Peer = Annotated[PeerId, Field(min_length=46, max_length=64)]
Round = Annotated[int, Field(ge=0, le=2**40)]
"""Number of a commit. Round 0 is the genesis state; the first exchange produces commit 1."""
Ballot = Annotated[int, Field(ge=0, le=2**40)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Name = Annotated[str, Field(max_length=64)]
Signature = Annotated[str, Field(pattern=r"^([0-9a-f]{128})?$")]
"""An Ed25519 signature inside a message, hexadecimal; empty where nobody checks it (simulators)."""
MAX_SPEED = 1e12
Speed = Annotated[float, Field(ge=0, le=MAX_SPEED)]
"""Tokens per second."""
SquaredNorm = Annotated[float, Field(ge=0, le=1e300)]
MAX_LOSS = 1e6
Loss = Annotated[float, Field(ge=0, le=MAX_LOSS)]
"""Nats per token."""
Owner = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Whose peers they are: a name by which the operator tells people apart."""
Signed = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
"""An Ed25519 signature, hexadecimal."""
NodePhase = Literal["starting", "syncing", "training", "ready", "exchanging", "paused", "leaving"]


MAX_ADMISSIONS = 16
"""Peers that enter by invites with one commit."""
MAX_GUESTS = 1024
"""Uses of invites that a run remembers: 250 kB of every plan, at most."""


class InvalidMessage(ValueError):
    """Bytes that are not a valid message of this run: malformed, unsigned, foreign, expired or replayed."""


class Frozen(BaseModel):
    """Base of all protocol values: immutable, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def canonical(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def content_id(self) -> str:
        """SHA-256 of the canonical form: the value's identity in votes and parents. Computed once."""
        return self._content_id

    @cached_property
    def _content_id(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, unchecked, with other values of some fields; nothing that was computed from the old ones stays."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            vars(copied).pop(name)
        return copied


# --- values that messages carry ---------------------------------------------------------------------------------------


class Member(Frozen):
    """A peer whose contribution a plan averages."""

    peer: Peer
    tokens: Count
    """Weight of the contribution, already clamped by the spec's limit."""
    num_inner_steps: Count = 0
    life: Count = 0
    """Tells the starts of the member's process apart: what it has said in an earlier one it may have forgotten."""
    tokens_per_s: Speed = 0.0
    """Speed of training in this round; the next round's number of inner steps follows from everybody's."""
    squared_norm: SquaredNorm = 0.0
    """Of the contribution as its encoding decodes, float64."""
    commitment: Digest
    """Root over the digests of the contribution's encoded chunks (`chunks.commitment`)."""


class Invite(Frozen):
    """An operator's leave to join one run, for one owner of peers, until a round, a time, or both (`invites`)."""

    run_id: Digest
    owner: Owner
    bearer: Peer
    """Whose key proves that a peer may use it: the peer's own, or one whose secret comes with the invite."""
    until_round: Round | None = None
    """The last round by whose plan the peer may enter."""
    until_unix_s: Annotated[float, Field(ge=0, le=1e11)] | None = None
    signer: Peer
    ed25519: Signed


class Ticket(Frozen):
    """An invite as a peer presents it."""

    invite: Invite
    proof: Signed | None = None
    """The bearer's signature over invite and peer; None where the bearer is the peer itself."""


class Guest(Frozen):
    """A peer that has entered by an invite: for as long as the run remembers it, nobody else can use that one."""

    peer: Peer
    owner: Owner
    invite: Digest
    until_round: Round | None = None


class Admission(Frozen):
    """A peer that a plan lets in, with what entitles it."""

    peer: Peer
    ticket: Ticket


class Newcomer(Frozen):
    """A member of the next roster that is on probation: it trains and votes, but weighs nothing yet."""

    peer: Peer
    counts_from: Round


class Span(Frozen):
    """A run of chunks that one peer reduces."""

    first_chunk: Count
    num_chunks: Annotated[int, Field(ge=1, le=2**32)]
    owner: Peer


class Plan(Frozen):
    """What one attempt of a round averages, decided by the attempt's leader.

    Members are in plan order: contributions are accumulated in this order, which makes the mean's bits well defined.
    """

    lineage: Count
    fragment: Count
    round: Round
    ballot: Ballot
    leader: Peer
    parent: Digest
    """`content_id` of the `Record` of commit ``round - 1`` (of the genesis for round 1)."""
    parent_state: Digest
    """State hash after commit ``round - 1``; a member with another one does not vote and resynchronises."""
    members: Annotated[tuple[Member, ...], Field(max_length=1024)]
    spans: Annotated[tuple[Span, ...], Field(max_length=4096)]
    roster: Annotated[tuple[Peer, ...], Field(min_length=1, max_length=1024)]
    """Who votes on this round (named by the parent)."""
    next_roster: Annotated[tuple[Peer, ...], Field(min_length=1, max_length=1024)]
    """Who votes on, and leases data for, the next round."""
    data_cursor: Count
    """First global sample index that the next round's leases start from."""
    newcomers: Annotated[tuple[Newcomer, ...], Field(max_length=2048)] = ()
    """Members of ``roster`` or ``next_roster`` whose contributions weigh nothing in this round or a later one."""
    ejected: Annotated[tuple[Peer, ...], Field(max_length=4096)] = ()
    """Peers whose misconduct has been proven in this run so far: never in a roster again."""
    admissions: Annotated[tuple[Admission, ...], Field(max_length=MAX_ADMISSIONS)] = ()
    """Who of ``next_roster`` enters by an invite that it has not used before."""
    guests: Annotated[tuple[Guest, ...], Field(max_length=MAX_GUESTS)] = ()
    """Everybody who has entered by an invite so far, members or not."""
    rules: Digest
    """`Genesis.rules_id` of the rules in force: genesis and amendments, the same for everybody in a round."""
    attempt_timeout_s: Annotated[float, Field(gt=0, le=86_400)]


class SpanResult(Frozen):
    """An owner's word on a span it has reduced."""

    plan: Digest
    span: Count
    """Index into ``Plan.spans``."""
    included: Annotated[tuple[bool, ...], Field(max_length=1024)]
    """One flag per ``Plan.members``: the mean of every chunk of the span is over exactly these."""
    digest: Digest
    """Root over the chunks of the span's encoded mean (`chunks.span_digest`)."""
    signature: Signature = ""
    """The owner's, over all of the above (`signed_results`); hexadecimal."""


class Record(Frozen):
    """The value that a round decides (single-decree Paxos per lineage, fragment and round)."""

    plan: Plan
    results: Annotated[tuple[SpanResult, ...], Field(max_length=4096)]
    """One per ``plan.spans``, in order."""


# --- messages ---------------------------------------------------------------------------------------------------------


class Message(Frozen):
    """Base of signed bodies."""

    kind: Any
    """Selects the type on the wire; every message narrows it to one literal string."""


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


class Heartbeat(Message):
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
    reachable: bool = True
    """Whether others can open streams to the sender. A peer that is not never owns a span and never leads."""
    addresses: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=16)] = ()
    ticket: Ticket | None = None
    """What entitles a sender that the receiver need not know yet."""
    num_amendments: Count = 0
    """Changes of the run's rules that the sender knows; who knows fewer asks for them."""
    sent_unix_s: Annotated[float, Field(ge=0, le=1e11)] = 0.0
    """Sender's clock, to estimate skew. Nothing is decided by it."""
    echoes: Annotated[tuple[Echo, ...], Field(max_length=16)] = ()
    """Of a few peers in turn."""


class Ready(Message):
    """A member's inner steps are done and its contribution is encoded and committed to."""

    kind: Literal["ready"] = "ready"
    fragment: Count = 0
    round: Round
    parent: Digest
    parent_state: Digest
    tokens: Count
    commitment: Digest
    num_inner_steps: Count = 0
    life: Count = 0
    tokens_per_s: Speed = 0.0
    squared_norm: SquaredNorm = 0.0


class PlanMessage(Message):
    """The leader starts an attempt."""

    kind: Literal["plan"] = "plan"
    plan: Plan


class SpanDone(Message):
    """An owner tells the leader a span's result."""

    kind: Literal["span_done"] = "span_done"
    result: SpanResult
    round: Round


class SpanFailed(Message):
    """A member tells the leader that a span's owner is lost to it."""

    kind: Literal["span_failed"] = "span_failed"
    plan: Digest
    round: Round
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


class Vote(Message):
    """A member durably holds every result span and accepts the record (Paxos phase 2b). Certificates hold these."""

    kind: Literal["vote"] = "vote"
    fragment: Count
    round: Round
    ballot: Ballot
    record: Digest


class Prepare(Message):
    """A new leader asks for promises (Paxos phase 1a)."""

    kind: Literal["prepare"] = "prepare"
    fragment: Count
    round: Round
    ballot: Ballot


class Accepted(Frozen):
    """The last vote that an acceptor gave in a round."""

    ballot: Ballot
    record: Record
    seal: Signature = ""
    """`Proposal.seal` of the proposal that was voted for."""


class Promise(Message):
    """An acceptor will not vote below ``ballot`` any more (Paxos phase 1b)."""

    kind: Literal["promise"] = "promise"
    fragment: Count
    round: Round
    ballot: Ballot
    accepted: Accepted | None = None


class Nack(Message):
    """The acceptor has promised a higher ballot; the sender of the lower one gives up its attempt."""

    kind: Literal["nack"] = "nack"
    fragment: Count
    round: Round
    promised: Ballot


class Commit(Message):
    """A decided round with its certificate: signed `Vote` envelopes of a quorum of ``record.plan.roster``."""

    kind: Literal["commit"] = "commit"
    record: Record
    ballot: Ballot
    votes: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=1024)]
    """Hexadecimal envelopes, exactly as the voters signed them."""


class Attest(Message):
    """The sender has applied a commit and its state hash is this. A quorum of these certifies a snapshot."""

    kind: Literal["attest"] = "attest"
    round: Round
    record: Digest
    state_hash: Digest
    receipts: Digest | None = None
    """Root over what the commit says of each contribution (`receipts.statements_root`): a countersignature for all."""


class CommitRequest(Message):
    """Asks for the commit of a round; the answer is a `Commit` message, if the receiver has it."""

    kind: Literal["commit_request"] = "commit_request"
    fragment: Count
    round: Round


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


class MemoryRequest(Message):
    """A founder with an empty disk asks what the receiver has heard of it in round 1; answered by `Memory`."""

    kind: Literal["memory_request"] = "memory_request"
    round: Round


class Memory(Message):
    """The first heartbeat that the sender has heard from the receiver, as the receiver has signed it."""

    kind: Literal["memory"] = "memory"
    round: Round
    envelope: Annotated[str, Field(max_length=32_768, pattern=r"^([0-9a-f]{2})*$")] | None
    """Hexadecimal; None if it has heard none."""


def round_of(body: Message) -> int:
    """The round that a message belongs to; for a heartbeat the last one that its sender has applied."""
    match body:
        case PlanMessage():
            return body.plan.round
        case Proposal() | Commit():
            return body.record.plan.round
        case (
            Heartbeat()
            | Ready()
            | SpanDone()
            | SpanFailed()
            | Vote()
            | Prepare()
            | Promise()
            | Nack()
            | Attest()
            | CommitRequest()
            | MemoryRequest()
            | Memory()
        ):
            return body.round
        case _:
            raise TypeError(f"{type(body).__name__} belongs to no round")


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
    | Memory,
    Field(discriminator="kind"),
]
_ANY: TypeAdapter[Any] = TypeAdapter(AnyMessage)
M = TypeVar("M", bound=Message)


class Header(Frozen):
    """Who says something, in which run, and until when it may be believed."""

    run_id: Digest
    lineage: Count
    sender: Peer
    sequence: Count
    """Strictly increasing per sender over restarts (microseconds since 1970 at start, then counting)."""
    expires_unix_s: Annotated[float, Field(ge=0, le=1e11)]


class Envelope(Frozen):
    """A verified message with its header. `raw` is what was signed and can be forwarded as evidence."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    header: Header
    body: Message
    raw: bytes

    @classmethod
    def open(cls, raw: bytes, *, run_id: str, now_unix_s: float | None = None) -> Self:
        """Verify and parse. Raises `InvalidMessage`; never trusts a length or a type from the bytes.

        ``now_unix_s=None`` skips the expiry check, for evidence such as the votes of an old certificate.
        """
        if len(raw) < SIGNATURE_BYTES + 2:
            raise InvalidMessage("message is too short")
        signature, signed = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        header, body = _parse(signed)
        if header.run_id != run_id:
            raise InvalidMessage(f"message of another run ({header.run_id[:8]}…)")
        if not verify(header.sender, signature, DOMAIN + signed):
            raise InvalidMessage(f"bad signature of …{header.sender[-5:]}")
        if now_unix_s is not None and header.expires_unix_s < now_unix_s:
            raise InvalidMessage(f"message of …{header.sender[-5:]} expired")
        return cls(header=header, body=body, raw=raw)


def _parse(signed: bytes) -> tuple[Header, Any]:
    try:
        body_text, header_text = split_canonical(signed, "body", "header")
        return parse(Header, header_text), parse_any(_ANY, body_text)
    except Unreadable as error:
        raise InvalidMessage(f"malformed message: {error}") from None


def seal(identity: Identity, header: Header, body: Message) -> bytes:
    """Signed wire form of ``body``."""
    signed = canonical_json({"header": header.model_dump(mode="json"), "body": body.model_dump(mode="json")})
    return identity.sign(DOMAIN + signed) + signed
