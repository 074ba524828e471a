"""The chain of commits: what a joiner may believe, starting from what it already trusts. Pure.

Each commit is signed by a quorum of the roster that its parent names, so that whoever trusts the genesis can verify
every later roster without trusting whom the commits come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..amendments import UnknownRules
from ..messages import Commit
from ..record import Record
from ..standing import Standing

VerifyCommit = Callable[[Commit, Standing], None]
"""Raises an exception that says why, unless the commit is valid after that standing and a quorum has certified it."""
StandingAfter = Callable[[Commit], Standing]
"""What a commit leaves in force, by the run's rules: where a lineage begins, its roster is not the commit's."""


class InvalidChain(ValueError):
    """A commit that does not continue the chain, or whose certificate does not hold."""


class RulesMissing(InvalidChain):
    """A commit that cannot be judged here: it names rules made by amendments that are not known. Not a lie."""


@dataclass(frozen=True)
class Chain:
    """Verified commits that follow ``anchor``, oldest first."""

    anchor: Standing
    commits: tuple[Commit, ...] = ()
    standing_after: StandingAfter = Standing.after

    @property
    def head(self) -> Standing:
        return self.standing_after(self.commits[-1]) if self.commits else self.anchor

    def record(self, round_number: int) -> Record | None:
        """The record that decided a round, if it lies after the anchor."""
        index = round_number - self.anchor.round - 1
        return self.commits[index].record if 0 <= index < len(self.commits) else None

    def extended(self, commits: Iterable[Commit], verify_commit: VerifyCommit) -> Chain:
        """With ``commits`` appended. Raises `InvalidChain` at the first that does not fit."""
        head, added = self.head, list[Commit]()
        for commit in commits:
            check_commit(head, commit, verify_commit)
            head = self.standing_after(commit)
            added.append(commit)
        return replace(self, commits=self.commits + tuple(added))


def check_commit(head: Standing, commit: Commit, verify_commit: VerifyCommit) -> None:
    """Raise `InvalidChain` unless ``commit`` is the one that follows ``head``."""
    plan = commit.record.plan
    if plan.round != head.round + 1:
        raise InvalidChain(f"commit of round {plan.round} where {head.round + 1} is due")
    if plan.parent != head.record_id:
        raise InvalidChain(f"commit of round {plan.round} has another parent")
    if plan.roster != head.roster:
        raise InvalidChain(f"commit of round {plan.round} was voted on by another roster than its parent names")
    try:
        verify_commit(commit, head)
    except UnknownRules as error:
        raise RulesMissing(str(error)) from None
    except Exception as error:
        raise InvalidChain(f"commit of round {plan.round}: {error}") from error
