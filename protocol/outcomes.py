"""What the round driver tells the node: journal points, and what became of a contribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .identity import PeerId
from .messages import Commit


@dataclass(frozen=True)
class RoundEvent:
    """Something that happened. Points of a round, in order: ``round.plan_sent`` and ``round.proposed`` (leader),
    ``exchange.sending``, ``exchange.reducing`` (owner), ``round.voted``, ``round.committed``, ``round.applied``.

    Others: ``round.aborted``, ``exchange.lost``, ``exchange.excluded``, ``exchange.left_out``, ``exchange.failed``,
    ``peer.rejected``, ``peer.unreachable``, ``results.unavailable``, ``state.disagrees``, ``state.syncing``,
    ``state.unproven``, ``state.unwritable``, ``state.rejected``, ``votes.unwritable``, ``votes.abstaining``,
    ``audit.done``, ``audit.lie``, ``audit.refused``, ``audit.incomplete``, ``peer.proven``, ``evidence.unwritable``,
    ``node.woke``, ``quorum.missing``, ``quorum.lost``, ``quorum.found``, ``amendment.learned``, ``amendment.refused``,
    ``spot.passed``, ``spot.suspected``, ``spot.hidden``, ``spot.unconfirmed``, ``spot.failed``,
    ``amendment.unwritable``, ``invite.refused``, ``rules.in_force``, ``rules.outdated``, ``lineage.begun``;
    of two-tier rounds ``group.joined``, ``group.seated``, ``group.left``, ``group.reduced``, ``group.failed``,
    ``group.betrayed``, ``group.unwritable``, ``group.unknown``;
    of gossip runs ``swap.begun``, ``swap.lost``, ``swap.refused``, ``peer.shunned``.
    """

    point: str
    round: int
    """The round that was worked on."""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])


Observe: TypeAlias = Callable[[str, dict[str, object]], None]
"""Takes a point (`RoundEvent.point`) and its fields, and says them of the present round."""


@dataclass(frozen=True)
class Committed:
    """The round is decided and applied."""

    commit: Commit
    state_hash: str
    included_spans: tuple[bool, ...]
    """Per span of the plan: whether our contribution is part of its mean."""

    @property
    def counted(self) -> bool:
        """Whether any span includes our contribution. If not, it is a carry (S6)."""
        return any(self.included_spans)


@dataclass(frozen=True)
class Aborted:
    """Our contribution was withdrawn and nothing has changed (S3); go on training and contribute again."""

    reason: str


Outcome: TypeAlias = Committed | Aborted


def included_spans(commit: Commit, me: PeerId) -> tuple[bool, ...]:
    """Per span of the commit's plan, whether its mean is over what ``me`` has contributed.

    Whatever of ours is in the means counts, also a contribution that was withdrawn, or given by an earlier process and
    encoded anew since: all of a round's contributions are over the same lease, and no sample may count twice (S6).
    """
    plan = commit.record.plan
    place = next((index for index, member in enumerate(plan.members) if member.peer == me), None)
    if place is None:
        return (False,) * len(plan.spans)
    return tuple(result.included[place] for result in commit.record.results)


def committed(commit: Commit, state_hash: str, me: PeerId) -> Committed:
    """Outcome of ``commit`` for ``me``, a member for itself alone."""
    return Committed(commit, state_hash, included_spans(commit, me))
