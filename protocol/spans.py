"""Who reduces what: chunks dealt out to owners in runs, and which members may own after failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from .identity import PeerId
from .record import Span

Complaints: TypeAlias = frozenset[tuple[PeerId, PeerId]]
"""(who complained, about which owner) in the attempts of one round so far."""


def assign_spans(num_chunks: int, speeds: Mapping[PeerId, float]) -> tuple[Span, ...]:
    """Cut chunks 0 … num_chunks - 1 into one run per owner, in the mapping's order, sized by relative speed.

    Every chunk has exactly one owner; an owner whose share rounds to nothing gets no span. Raises ValueError without
    owners, chunks or positive speeds.
    """
    if num_chunks < 1 or not speeds or min(speeds.values()) <= 0:
        raise ValueError("spans need at least one chunk and owners with positive speeds")
    total = sum(speeds.values())
    spans: list[Span] = []
    first, reached = 0, 0.0
    for owner, speed in speeds.items():
        reached += speed
        end = num_chunks if owner == list(speeds)[-1] else round(num_chunks * reached / total)
        if end > first:
            spans.append(Span(first_chunk=first, num_chunks=end - first, owner=owner))
            first = end
    return tuple(spans)


def cover(spans: Sequence[Span], num_chunks: int) -> bool:
    """Whether ``spans`` hold every chunk exactly once, in order."""
    expected = 0
    for span in spans:
        if span.first_chunk != expected:
            return False
        expected += span.num_chunks
    return expected == num_chunks


def at_fault(complaints: Complaints) -> frozenset[PeerId]:
    """Members to do without in the next attempt: the owners that were complained about.

    Who alone complains about two owners or more is at fault instead of them: its own link is the likelier cause.
    """
    lone = {peer for peer, _ in complaints if _is_lone_accuser(complaints, peer)}
    return frozenset(lone) | {owner for peer, owner in complaints if peer not in lone}


def _is_lone_accuser(complaints: Complaints, peer: PeerId) -> bool:
    accused = {owner for accuser, owner in complaints if accuser == peer}
    others = {owner for accuser, owner in complaints if accuser != peer}
    return len(accused) > 1 and not accused & others


def without_faulty(candidates: Sequence[PeerId], complaints: Complaints) -> Sequence[PeerId]:
    """Candidates that are not at fault; all of them if that leaves nobody."""
    faulty = at_fault(complaints)
    return [peer for peer in candidates if peer not in faulty] or candidates
