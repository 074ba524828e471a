"""How many inner steps a simulated peer takes in a round: the spec's H, or its part of a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ..budget import target_steps
from ..identity import PeerId
from ..record import Plan
from .trainers import InnerLoop, StepRule

StepRuleName: TypeAlias = Literal["fixed", "budget"]


def step_rule(name: StepRuleName, loop: InnerLoop) -> StepRule:
    """``fixed``: everybody takes H steps. ``budget``: as fast as each is, so that all finish together."""
    if name == "fixed":
        return lambda _plan, _peer: loop.num_steps

    def steps_of(plan: Plan | None, me: PeerId) -> int:
        return target_steps(_speeds(plan), me, num_steps=loop.num_steps, max_steps=loop.max_steps)

    return steps_of


def _speeds(plan: Plan | None) -> Mapping[PeerId, float]:
    """Tokens per second of everybody in the next roster, as the last plan has them; 0 for those it has not."""
    if plan is None:
        return {}
    measured = {member.peer: member.tokens_per_s for member in plan.members}
    return {peer: measured.get(peer, 0.0) for peer in plan.next_roster}
