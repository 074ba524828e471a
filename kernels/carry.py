"""The carry (S6): what becomes of a round's work when the round is committed.

A pure rule of its own, because trainer and simulator must decide alike: work that a commit includes is spent, work that
a commit misses is carried into the next contribution, and what misses that one too is lost. Only commits decide; an
aborted round (S3) leaves own work and carry as they are, since the next pseudo-gradient contains the work anyway.
"""

from __future__ import annotations

from typing import TypeVar

Work = TypeVar("Work")


def carry_after(own: Work | None, *, counted: bool) -> Work | None:
    """The carry into the next round, given this round's ``own`` work (without the carry that it was merged with).

    ``counted``: whether the commit includes anything that this member has contributed to the round. The carry of the
    round before is gone either way: it was part of what counted, or it has missed twice.
    """
    return None if counted else own
