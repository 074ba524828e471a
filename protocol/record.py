"""What a round decides: the plan of an attempt, the result of each of its spans, and the record of both.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .tickets import MAX_ADMISSIONS, MAX_GUESTS, Admission, Guest
from .values import Ballot, Count, Digest, DigestOrNone, Frozen, Peer, Round, Signature, Speed, SquaredNorm

MAX_EJECTED = 4096
"""In the life of a run. Nobody is ejected after that."""


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
    inner_state: DigestOrNone = ""
    """BLAKE3 of the inner optimizer's state that the steps began with, for spot checks; empty where none is shown."""


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
    ejected: Annotated[tuple[Peer, ...], Field(max_length=MAX_EJECTED)] = ()
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
