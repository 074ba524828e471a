"""What a node does about new rules: it learns amendments, and as a delegate signs the reset of a lost quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from . import round_machine as machine
from .amending import Amending, Learned, parsed
from .amendments import Amendment, RunRules
from .contact import Contact
from .driver import DriverSetup
from .identity import PeerId
from .messages import Amendments
from .recovery import Recovery, ResetFile, Sight
from .round_machine import RoundState
from .transport import RemoteProtocolError


class RuleChanges:
    """Returns new rules, durable already; the round loop puts them in force. Journal points: ``amendment.…``."""

    def __init__(self, setup: DriverSetup, contact: Contact, amending: Amending) -> None:
        self._book, self._replica, self._clock = setup.book, setup.replica, setup.clock
        self._contact, self._amending, self._observe = contact, amending, contact.points.observe
        self._recovery = Recovery(setup.identity, ResetFile(setup.folder / "resets.jsonl"), setup.clock)

    async def hear(self, sender: PeerId, message: Amendments, state: RoundState | None) -> RunRules | None:
        """As `learn`, of what a peer has sent."""
        try:
            learned = parsed(sender, message.amendments)
        except RemoteProtocolError as error:
            self._observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})
            return None
        return await self.learn(learned, state)

    async def learn(self, learned: Learned, state: RoundState | None) -> RunRules | None:
        """The rules with what is new; None if there is nothing new.

        A reset that lacks signatures is no amendment yet: a delegate that agrees adds its own.
        """
        newest = (learned.amendments or (None,))[-1]
        if newest is None or state is None or not self._amending.lacks_signatures(newest):
            return await self._amending.learn(learned)
        sight = self._sight(state)
        if self._recovery.is_lost(state.rules.genesis, has_quorum=sight.has_quorum):
            rules = await self._sign_reset(state, lambda: self._recovery.cosign(newest, sight))
            if rules is not None:
                return rules
        return await self._amending.learn(Learned(learned.amendments[:-1], learned.sender))

    async def recover(self, state: RoundState) -> RunRules | None:
        """A quorum that is lost for good: do what the run has delegated to us for that case. Call it regularly."""
        genesis, sight = state.rules.genesis, self._sight(state)
        if not self._recovery.is_lost(genesis, has_quorum=sight.has_quorum):
            return None
        if not self._recovery.is_my_turn(genesis, sight.live):
            return None
        return await self._sign_reset(state, lambda: self._recovery.propose(sight))

    async def _sign_reset(self, state: RoundState, sign: Callable[[], Amendment | None]) -> RunRules | None:
        """Enough signatures: it holds. Else the other delegates are asked for theirs."""
        try:
            amendment = await asyncio.to_thread(sign)
        except OSError as error:
            self._observe("amendment.unwritable", {"why": error.strerror or str(error)})
            return None
        if amendment is None:
            return None
        if not self._amending.lacks_signatures(amendment):
            return await self._amending.learn(Learned((amendment,)))
        self._amending.send(amendment, state.rules.genesis.recovery.delegates)
        return None

    def _sight(self, state: RoundState) -> Sight:
        live = machine.live_roster(state, self._clock())
        ahead = self._contact.peers.ahead(self._replica.head_round)
        return Sight(
            rules=self._book.rules,
            standing=self._replica.standing,
            state_hash=self._replica.state_hash,
            live=live,
            has_quorum=state.rules.quorum.reached(set(live)),
            is_level=self._contact.alive.isdisjoint(ahead),
        )


def is_about_rules(event: object) -> bool:
    """Whether an event of the round loop's may bring new rules."""
    return isinstance(event, Learned) or (isinstance(event, machine.Received) and isinstance(event.body, Amendments))
