"""Makes the machine's promises and votes durable before anything follows from them."""

from __future__ import annotations

import asyncio

from .messages import Accepted
from .outcomes import Observe
from .reduction import Reduction
from .round_machine import Action, Persist
from .votes import VoteStore


class VoteWriter:
    """``observe`` hears ``votes.unwritable``, once for as long as it lasts."""

    def __init__(self, votes: VoteStore, reduction: Reduction, observe: Observe) -> None:
        self._votes, self._reduction, self._observe = votes, reduction, observe
        self._is_unwritable = False

    async def persist(self, round_number: int, before: Accepted | None, actions: tuple[Action, ...]) -> bool:
        """Write what ``actions`` say is to be kept; ``before`` was the last vote. False: none of them may happen."""
        acceptors = [action.acceptor for action in actions if isinstance(action, Persist)]
        if not acceptors:
            return True
        if not self._reduction.vouches(before, acceptors[-1].accepted):
            return False
        try:
            await asyncio.to_thread(self._votes.save, round_number, acceptors[-1])
        except OSError as error:
            if not self._is_unwritable:
                self._observe("votes.unwritable", {"why": error.strerror or str(error)})
            self._is_unwritable = True
            return False
        self._is_unwritable = False
        return True
