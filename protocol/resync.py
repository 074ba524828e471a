"""When a node replaces its state by the swarm's: results do not lead there any more, or most have another state."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from .agreement import Agreement
from .contact import Contact
from .driver import DriverSetup
from .lag import FAR_BEHIND_ROUNDS, Lag


class Resync:
    """Without a ``sync`` (None) it is never due, and without ``prove`` peers are believed.

    Journal points: ``state.syncing`` and ``state.unproven``. ``spawn`` runs a proof beside the rounds.
    """

    def __init__(
        self,
        setup: DriverSetup,
        contact: Contact,
        agreement: Agreement,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._sync, self._replica, self._peers, self._agreement = setup.sync, setup.replica, contact.peers, agreement
        self._observe, self._spawn = contact.points.observe, spawn
        self._lag = Lag(setup.prove or self._believe, setup.rules.timing.heartbeat_interval_s, setup.clock)

    @property
    def is_due(self) -> bool:
        """Whether to `run` now: far behind, or our state is damaged. Begins to ask for a proof of the former."""
        is_wanted = self._sync is not None and self._lag.may_ask
        return is_wanted and (self._is_far_behind() or self._agreement.is_broken)

    @property
    def is_shorter(self) -> bool:
        """Whether a snapshot may be had now where results may not. Begins to ask for a proof."""
        return self._is_far_behind() and self._lag.may_ask

    async def run(self) -> bool:
        """Whether there is another state now. If not, nothing has changed."""
        if self._sync is None:
            return False
        before = (self._replica.head_round, self._replica.state_hash)
        self._observe("state.syncing", {})
        await self._sync()
        is_fruitful = before != (self._replica.head_round, self._replica.state_hash)
        self._lag.pace(is_fruitful=is_fruitful)
        return is_fruitful

    def _is_far_behind(self) -> bool:
        """Whether it is proven that results alone may not lead to the others any more."""
        head_round = self._replica.head_round
        is_claimed = self._sync is not None and bool(self._peers.ahead(head_round + FAR_BEHIND_ROUNDS))
        if self._lag.begins_proof(head_round, is_claimed=is_claimed):
            self._spawn(self._look_ahead(head_round))
        return self._lag.is_proven(head_round)

    async def _look_ahead(self, head_round: int) -> None:
        if (why := await self._lag.prove(head_round)) is not None:
            self._observe("state.unproven", {"why": why})

    async def _believe(self) -> int:
        """Without anybody to prove it, what peers say of themselves."""
        return max(self._peers.rounds(), default=0)
