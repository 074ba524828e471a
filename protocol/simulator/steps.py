"""How many inner steps a simulated peer takes in a round: the spec's H, or its part of a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from ..identity import PeerId
from ..messages import Plan
from .trainers import InnerLoop, StepRule

StepRuleName: TypeAlias = Literal["fixed", "budget"]


def has_budget() -> bool:
    """Whether this atoll has rounds with a budget of tokens."""
    return find_spec("..budget", __package__) is not None


def step_rule(name: StepRuleName, loop: InnerLoop) -> StepRule:
    """``fixed``: everybody takes H steps. ``budget``: as fast as each is, so that all finish together."""
    if name == "fixed" or not has_budget():
        return lambda _plan, _peer: loop.num_steps
    target_steps: Any = import_module("..budget", __package__).target_steps

    def steps_of(plan: Plan | None, me: PeerId) -> int:
        return target_steps(_speeds(plan), me, num_steps=loop.num_steps, max_steps=loop.max_steps)

    return steps_of


def _speeds(plan: Plan | None) -> Mapping[PeerId, float]:
    """Tokens per second of everybody in the next roster, as the last plan has them; 0 for those it has not."""
    if plan is None:
        return {}
    measured = {member.peer: member.tokens_per_s for member in plan.members}
    return {peer: measured.get(peer, 0.0) for peer in plan.next_roster}
