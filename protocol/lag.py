"""How far behind the swarm this node is proven to be, and when to ask for a newer state. A peer's word is no proof."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

FAR_BEHIND_ROUNDS = 4
"""Results are kept by everybody for this many rounds; who is further behind needs a snapshot."""
_MAX_PAUSE_S = 60.0

Sync: TypeAlias = Callable[[], Awaitable[None]]
"""Installs a certified state into the replica, or leaves it as it is."""
Prove: TypeAlias = Callable[[], Awaitable[int]]
"""The newest round that some peer can prove to be committed. Raises OSError if nobody can be asked."""


class Lag:
    """Asks for proofs while rounds go on. Peers that lie about their round, or give nothing, are asked ever less."""

    def __init__(self, prove: Prove, first_pause_s: float, clock: Callable[[], float]) -> None:
        self._prove, self._clock, self._first_pause_s = prove, clock, first_pause_s
        self._proven_round = 0
        self._is_asking = False
        self._pause_s, self._not_before_s = first_pause_s, 0.0

    @property
    def may_ask(self) -> bool:
        """Whether the pause after the last fruitless question is over."""
        return self._clock() >= self._not_before_s

    def begins_proof(self, head_round: int, *, is_claimed: bool) -> bool:
        """Whether a claim that somebody is far ahead wants a proof: then the caller runs `prove`, once."""
        if not is_claimed or self._is_asking or not self.may_ask or self.is_proven(head_round):
            return False
        self._is_asking = True
        return True

    def is_proven(self, head_round: int) -> bool:
        """Whether it is proven that results alone may not lead to the others any more."""
        return self._proven_round > head_round + FAR_BEHIND_ROUNDS

    async def prove(self, head_round: int) -> str | None:
        """Ask; returns why nobody could be asked. Run it in the background: it may take minutes."""
        before = self._proven_round
        try:
            self._proven_round = await self._prove()
        except OSError as error:
            return str(error)
        finally:
            self._is_asking = False
            self.pace(is_fruitful=self._proven_round > max(before, head_round))
        return None

    def pace(self, *, is_fruitful: bool) -> None:
        """Note what a question has brought."""
        self._pause_s = self._first_pause_s if is_fruitful else min(2 * self._pause_s, _MAX_PAUSE_S)
        self._not_before_s = 0.0 if is_fruitful else self._clock() + self._pause_s
