"""A gossip round's account: who was in it and what it left, in the form in which other runs keep a commit.

Everything that reads rounds (journal, page, checkpoints) reads these. But nobody has voted: ``votes`` is empty, only
the node that wrote an account has it, and it proves nothing to anybody else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..identity import PeerId
from ..invites import guests_after, let_in
from ..messages import Commit
from ..outcomes import Committed
from ..record import Member, Newcomer, Plan, Record, Span, SpanResult
from ..spec import Genesis
from ..standing import Standing
from ..tickets import Admission, Ticket
from .wire import Terms


@dataclass(frozen=True)
class Swapped(Committed):
    """A gossip round is over: with a partner, or alone."""

    partner: PeerId | None = None
    distance: float | None = None
    """Between the partner's weights and ours, before the step."""
    spread: float | None = None
    """`distance` over the norm of our weights."""
    distance_in_rounds: float | None = None
    """`distance` over the median norm of our recent pseudo-gradients: what admission measures by."""
    why_alone: str | None = None


@dataclass(frozen=True)
class Part:
    """One side of a round."""

    peer: PeerId
    terms: Terms
    counts: bool = True
    """False on probation: it was given our work, its own was not used."""


@dataclass(frozen=True)
class Company:
    """Who is known at the end of a round."""

    present: Collection[PeerId]
    """Peers that are heard from, without this node."""
    tickets: Mapping[PeerId, Ticket]
    """Of those among them that have shown an invite."""
    newcomers: tuple[Newcomer, ...] = ()


def account(
    me: PeerId,
    genesis: Genesis,
    standing: Standing,
    state_hash: str,
    parts: tuple[Part, ...],
    company: Company,
    *,
    round_number: int,
    num_chunks: int,
) -> Commit:
    """The account of a round that ends as ``round_number``.

    ``parts``: our own first, then the partner's, if any; none at all where ``me`` has begun with others' weights.
    """
    roster = (me, *sorted(set(company.present) - {me}))[:1024]
    candidates = {peer: company.tickets.get(peer) for peer in roster if peer not in standing.guest_of}
    admitted = let_in(genesis, standing, (), candidates)
    admissions = tuple(_admissions(standing, genesis, admitted, company.tickets))
    plan = Plan(
        lineage=genesis.lineage,
        fragment=0,
        round=round_number,
        ballot=0,
        leader=me,
        parent=standing.record_id,
        parent_state=state_hash,
        members=tuple(_member(part) for part in parts),
        spans=(Span(first_chunk=0, num_chunks=num_chunks, owner=me),),
        roster=roster,
        next_roster=roster,
        data_cursor=0,
        newcomers=company.newcomers,
        admissions=admissions,
        guests=guests_after(standing, roster, admissions),
        rules=genesis.rules_id,
        attempt_timeout_s=genesis.timing.attempt_timeout_s,
    )
    included = tuple(part.counts or part.peer == me for part in parts)
    result = SpanResult(plan=plan.content_id(), span=0, included=included, digest=_digest(parts))
    return Commit(record=Record(plan=plan, results=(result,)), ballot=0, votes=())


def _digest(parts: tuple[Part, ...]) -> str:
    return parts[0].terms.delta.digest if parts else "0" * 64


def _admissions(
    standing: Standing, genesis: Genesis, admitted: Iterable[PeerId], tickets: Mapping[PeerId, Ticket]
) -> Iterable[Admission]:
    for peer in admitted:
        if peer in tickets and not standing.admits(genesis, peer):
            yield Admission(peer=peer, ticket=tickets[peer])


def _member(part: Part) -> Member:
    terms = part.terms
    return Member(
        peer=part.peer,
        tokens=terms.tokens,
        num_inner_steps=terms.num_inner_steps,
        tokens_per_s=terms.tokens_per_s,
        squared_norm=terms.delta.squared_norm,
        commitment=terms.delta.digest,
    )
