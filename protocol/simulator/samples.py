"""Symbolic trainers: a contribution is the set of samples that it was trained on, so that none counts twice (S6).

They decide as `atoll.training.session` and `atoll.node.trainer_rounds` do, by the same rules: `outcomes.committed` says
whether a commit counts for us, `kernels.carry` what becomes of the work if not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...kernels import carry
from ..round_machine import Rules
from .nodes import digest

Samples: TypeAlias = frozenset[int]
NOTHING: Samples = frozenset()
SAMPLES_PER_CONTRIBUTION = 4


@dataclass(frozen=True)
class Offer:
    """A contribution as its maker knows it."""

    peer: str
    round: int
    own: Samples
    """Of the round's own lease."""
    carried: Samples

    @property
    def samples(self) -> Samples:
        return self.own | self.carried

    @property
    def commitment(self) -> str:
        """The same work gives the same bytes (re-encoding reproduces them)."""
        return digest(self.peer, self.round, sorted(self.own), sorted(self.carried))


@dataclass(frozen=True)
class Position:
    """Where training stands: what a trainer's checkpoint holds."""

    round: int
    parent: str
    lease: range
    used: int = 0
    """Samples of the lease that are trained on."""
    own: Samples = NOTHING
    carried: Samples = NOTHING


def lease_of(rules: Rules) -> range | None:
    """This member's samples in a round: a block by its place in the roster. None: not a member, no lease."""
    if rules.me not in rules.roster:
        return None
    first = rules.standing.data_cursor + rules.roster.index(rules.me) * rules.lease_samples
    return range(first, first + rules.lease_samples)


@dataclass
class Trainer:
    """One node's trainer. `pending` is the offer whose outcome is awaited."""

    peer: str
    position: Position | None = None
    checkpoint: Position | None = None
    pending: Offer | None = None
    generation: int = 0
    """Grows whenever what was going on is void, so that old timers mean nothing."""
    missed: Samples = field(default=NOTHING)
    """What the round before should have left as carry; kept for the checks."""

    def restart(self) -> None:
        """The process is new: only the checkpoint is left."""
        self.position, self.pending, self.missed = None, None, NOTHING
        self.generation += 1

    def begin(self, rules: Rules, carried: Samples) -> None:
        """Stand at the anchor before ``rules.round``, or where the checkpoint of this very round stood."""
        lease, saved = lease_of(rules), self.checkpoint
        self.pending = None
        self.generation += 1
        if lease is None:
            self.position = None
            return
        fresh = Position(rules.round, rules.parent, lease, carried=carried)
        is_resumed = self.position is None and saved is not None and saved.lease == lease
        is_same = saved is not None and (saved.round, saved.parent) == (rules.round, rules.parent)
        self.position = saved if is_resumed and is_same else fresh

    def train(self) -> Offer | None:
        """Some more steps of the lease, and the contribution with all work so far; None without any."""
        at = self.position
        if at is None:
            return None
        samples = at.lease[at.used : at.used + SAMPLES_PER_CONTRIBUTION]
        at = replace(at, used=at.used + len(samples), own=at.own | frozenset(samples))
        self.position = at
        self.pending = Offer(self.peer, at.round, at.own, at.carried)
        return self.pending

    def save(self) -> None:
        """Write the checkpoint."""
        self.checkpoint = self.position

    def aborted(self) -> None:
        """S3: the work stays as it is."""
        self.pending = None
        self.generation += 1

    def after_commit(self, number: int, *, counted: bool) -> Samples:
        """The carry into the next round (S6)."""
        at = self.position
        own = at.own if at is not None and at.round == number and at.own else None
        return carry.carry_after(own, counted=counted) or NOTHING
