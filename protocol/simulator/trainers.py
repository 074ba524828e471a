"""Simulated trainers: inner steps at each node's own speed, which drifts, and what becomes of them.

A trainer works for the round that its node was in when it began. If that round commits without it, what it has done is
a carry of the next contribution (S6): at most one round old, its tokens are added. A contribution that is given up
changes nothing (S3): training goes on, and the next one contains the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..identity import PeerId
from ..record import Plan
from .nodes import Node
from .world import World

StepRule: TypeAlias = Callable[[Plan | None, PeerId], int]
"""Inner steps of a peer in the round after a commit, from the commit's plan (None before the first)."""


@dataclass(frozen=True)
class InnerLoop:
    """What one round's training takes."""

    num_steps: int
    """H."""
    max_steps: int
    """What a lease allows."""
    tokens_per_step: int
    step_s: float
    """Of a peer with speed 1."""
    encode_s: float = 0.0
    """From the last inner step to the contribution."""


@dataclass
class Trainer:
    """One node's trainer."""

    speed: float
    works_for: int | None = None
    """Round of the inner steps that run now; None: it waits for an outcome."""
    num_starts: int = 0
    began_s: float = 0.0
    is_encoding: bool = False
    busy_s: float = 0.0
    """Spent on inner steps so far."""
    carry: tuple[int, int] | None = None
    """Round that committed without it, and its tokens there."""
    unspent_tokens: int = 0
    """Of contributions that were given up: the next one contains their work."""
    tokens_per_s: float = 0.0


@dataclass
class Trainers:
    """The trainers of a world. Every node trains as soon as it has a round."""

    world: World
    loop: InnerLoop
    steps_of: StepRule
    speeds: Mapping[PeerId, float] = field(default_factory=dict[PeerId, float])
    drift: float = 0.0
    """Each round's speed is drawn evenly from (1 ± drift) × the peer's."""
    of: dict[PeerId, Trainer] = field(default_factory=dict[PeerId, Trainer])

    def __post_init__(self) -> None:
        self.world.on_begin = self.begin
        self.world.on_give_up = self._take_back
        for node in self.world.nodes.values():
            self.begin(node)

    def begin(self, node: Node) -> None:
        """A node has a round: its trainer begins, unless it still works for an earlier one."""
        trainer = self.of.setdefault(node.peer, Trainer(self.speeds.get(node.peer, 1.0)))
        is_new_process = trainer.num_starts != node.num_starts
        if trainer.works_for is not None and not is_new_process:
            return
        if is_new_process:
            trainer.unspent_tokens, trainer.carry = 0, None
        trainer.num_starts = node.num_starts
        self._train(node, trainer)

    def _train(self, node: Node, trainer: Trainer) -> None:
        world, loop = self.world, self.loop
        commits = node.disk.commits
        num_steps = self.steps_of(commits[-1].record.plan if commits else None, node.peer)
        speed = trainer.speed * world.random.uniform(1 - self.drift, 1 + self.drift)
        trainer.works_for, trainer.began_s, trainer.is_encoding = node.round, world.now, False
        duration_s = num_steps * loop.step_s / speed
        world.at(world.now + duration_s, self._finish, node, trainer, node.num_starts, num_steps)

    def _finish(self, node: Node, trainer: Trainer, num_starts: int, num_steps: int) -> None:
        if not node.is_up or node.num_starts != num_starts:
            return
        if node.is_asleep:  # suspended steps go on later
            self.world.at(self.world.now + 1.0, self._finish, node, trainer, num_starts, num_steps)
            return
        tokens = num_steps * self.loop.tokens_per_step
        duration_s = self.world.now - trainer.began_s
        trainer.busy_s += duration_s
        trainer.is_encoding = True
        trainer.tokens_per_s = tokens / duration_s
        trainer.unspent_tokens += tokens
        self.world.at(self.world.now + self.loop.encode_s, self._offer, node, trainer, num_starts, num_steps)

    def _offer(self, node: Node, trainer: Trainer, num_starts: int, num_steps: int) -> None:
        if not node.is_up or node.num_starts != num_starts:
            return
        worked_for, trainer.works_for = trainer.works_for, None
        if worked_for == node.round:
            carried = trainer.carry[1] if trainer.carry is not None and trainer.carry[0] == node.round - 1 else 0
            tokens, trainer.carry, trainer.unspent_tokens = trainer.unspent_tokens + carried, None, 0
            self.world.contribute(node.peer, tokens, num_steps, trainer.tokens_per_s)
        else:
            trainer.carry = (node.round - 1, trainer.unspent_tokens)
            trainer.unspent_tokens = 0
            self._train(node, trainer)

    def _take_back(self, node: Node, tokens: int) -> None:
        """A contribution was given up: training goes on, and its work is in the next."""
        trainer = self.of[node.peer]
        trainer.unspent_tokens += tokens
        if trainer.works_for is None:
            self._train(node, trainer)

    def busy_s(self, node: Node) -> float:
        """Time in inner steps up to now."""
        trainer = self.of.get(node.peer)
        if trainer is None:
            return 0.0
        is_working = trainer.works_for is not None and node.is_up and trainer.num_starts == node.num_starts
        return trainer.busy_s + (self.world.now - trainer.began_s if is_working and not trainer.is_encoding else 0.0)
