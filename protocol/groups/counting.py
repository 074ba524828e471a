"""Whose work is in a commit, if members contribute for whole groups (S6). Pure.

A peer's work has counted if, in some chunk, the round's mean is over the delegate's contribution and that is over the
peer's. What has not counted its owner carries itself, nobody for it: the delegate carries only its own. Work that may
have counted is never carried: without the group's result the answer is `UNKNOWN`, and the work is not used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from ..identity import PeerId
from ..messages import Commit
from ..record import Record, Span


class Unknown(Enum):
    """Its only value says that the delegate's contribution is in the commit, and nobody knows yet what it is over."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN
Account: TypeAlias = tuple[bool, ...] | Unknown
"""Per span of the commit's plan whether the peer's work is in its mean."""


def account(commit: Commit, delegate: PeerId | None, me: PeerId, results: Mapping[str, Record]) -> Account:
    """What became of the work of ``me`` in the commit's round.

    ``delegate``: the one whose group has had any of it (``me``, for a delegate); None if nobody has. ``results`` are
    what groups have reduced, by the commitment to their mean.
    """
    plan = commit.record.plan
    place = next((index for index, member in enumerate(plan.members) if member.peer == delegate), None)
    missed = (False,) * len(plan.spans)
    if place is None:
        return missed
    flags = tuple(result.included[place] for result in commit.record.results)
    record = results.get(plan.members[place].commitment)
    if record is None:
        if me == delegate:
            return flags  # it contributed alone
        return UNKNOWN if any(flags) else missed
    return tuple(is_in and _is_in(record, span, me) for span, is_in in zip(plan.spans, flags, strict=True))


def flags_of(found: Account, commit: Commit) -> tuple[bool, ...]:
    """Per span of the commit's plan whether the work counts as used up; what nobody knows does."""
    return (True,) * len(commit.record.plan.spans) if found is UNKNOWN else found


def _is_in(record: Record, span: Span, peer: PeerId) -> bool:
    """Whether a group's mean is over the work of ``peer`` in some chunk of ``span``."""
    place = next((index for index, member in enumerate(record.plan.members) if member.peer == peer), None)
    if place is None:
        return False
    own = zip(record.plan.spans, record.results, strict=True)
    return any(result.included[place] and _overlap(span, other) for other, result in own)


def _overlap(first: Span, second: Span) -> bool:
    return (
        first.first_chunk < second.first_chunk + second.num_chunks
        and second.first_chunk < first.first_chunk + first.num_chunks
    )
