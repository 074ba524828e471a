"""A node of a two-tier run: as every node, but its part of the data is its place in a group (`protocol/groups`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ..protocol.budget import steps_at
from ..protocol.driver import Driver
from ..protocol.groups.places import Place
from ..protocol.identity import PeerId
from ..protocol.outcomes import RoundEvent
from ..protocol.round_driver import RoundDriver
from ..training.config import InnerConfig
from ..training.data import Lease
from .ending import others_are_done
from .node import Node
from .own_state import OwnState
from .work import Work


@dataclass(frozen=True)
class GroupWork:
    """By the place that a delegate has given, and the speeds of the groups in the last plan."""

    replica: OwnState
    inner: InnerConfig
    num_seats: int
    place: Callable[[], Place | None]

    def lease(self, last_round: int = 0) -> Lease | None:
        """This node's samples; None if it has no place yet, or ``last_round`` (0: none) is applied."""
        place, samples = self.place(), self.inner.lease_samples
        if place is None or 0 < last_round <= self.replica.head_round:
            return None
        first = place.first_sample(self.replica.standing, samples, self.num_seats)
        return None if first is None else Lease(first=first, count=samples)

    def num_steps(self, own_tokens_per_s: float) -> int:
        """So many that all peers of all groups finish together: plans name the speed of each group's typical peer."""
        head = self.replica.head
        if not self.inner.adaptive_steps or head is None or own_tokens_per_s <= 0:
            return self.inner.num_steps
        speeds = {member.peer: member.tokens_per_s for member in head.record.plan.members}
        return steps_at(own_tokens_per_s, speeds, num_steps=self.inner.num_steps, max_steps=self.inner.lease_steps)


class TwoTierNode(Node):
    """Built, then `run` once, then `stop`."""

    def _work(self, driver: Driver) -> Work | None:
        local, rounds = self._local, cast("RoundDriver", driver)
        num_seats = local.spec.genesis.exchange.num_seats
        return GroupWork(local.replica, local.spec.training.inner, num_seats, lambda: rounds.place)

    def _is_admitted(self) -> bool:
        """Or let in as a follower, by a delegate that has seen its invite."""
        rules, me = self._local.rules, self._local.me
        is_barred = me in rules.control.banned or me in self._replica.standing.ejected
        return super()._is_admitted() or (not is_barred and self._place is not None)

    @property
    def _place(self) -> Place | None:
        return None if self._live is None else cast("RoundDriver", self._live.driver).place

    @property
    def _is_follower(self) -> bool:
        place = self._place
        return place is not None and place.member != self._local.me

    def _may_train_on(self, driver: Driver) -> bool:
        """A follower hears from its group only, and cannot tell how many others are there."""
        return self._is_follower or super()._may_train_on(driver)

    def _other_members(self) -> list[PeerId]:
        """Those whom a follower has to do with are its group."""
        if self._live is None or not self._is_follower:
            return super()._other_members()
        return list(cast("RoundDriver", self._live.driver).circle)

    def _others_are_done(self, driver: Driver) -> bool:
        """Followers get the last round from their delegates, and from each other."""
        awaited = {*driver.roster, *cast("RoundDriver", driver).circle}
        patience_s = self._local.rules.timing.drop_after_s
        return others_are_done(awaited, driver.peers, self.head_round, patience_s, time.monotonic())

    def _on_round_event(self, event: RoundEvent) -> None:
        super()._on_round_event(event)
        if event.point == "group.seated" and self._live is not None:
            self._live.rounds.on_rules()
