"""The journal points of the rounds: what the node hears of them; of one peer's misconduct only so much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .allowance import Allowances
from .identity import PeerId
from .mail import Mail
from .messages import Message, PlanMessage, Proposal, Vote
from .outcomes import RoundEvent
from .replica import Replica
from .tasks import Background
from .transport import RemoteProtocolError

_REJECTIONS_AT_ONCE, _REJECTIONS_PER_S = 32, 0.1
"""Of one peer that are said and journalled; the rest is refused in silence."""

Observer: TypeAlias = Callable[[RoundEvent], None]


class Points:
    """``observer`` is the node's: called in the event loop, it must not raise."""

    def __init__(self, observer: Observer, replica: Replica, mail: Mail, clock: Callable[[], float]) -> None:
        self._observer, self._replica, self._mail = observer, replica, mail
        self._rejections = Allowances(_REJECTIONS_PER_S, _REJECTIONS_AT_ONCE, clock)
        self._said: set[tuple[str, str]] = set()
        self._leaving = Background()

    def observe(self, point: str, fields: dict[str, object]) -> None:
        """Tell the node what happened in the present round."""
        if point != "peer.rejected" or self._rejections.take(PeerId(str(fields["peer"]))):
            self._observer(RoundEvent(point, self._replica.head_round + 1, fields))

    def reject(self, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""
        self.observe("peer.rejected", {"peer": error.peer, "rule": error.rule, "detail": error.detail})

    def applied(self, round_number: int, fields: dict[str, object]) -> None:
        """A round is over: the replica's head is that round already."""
        self._observer(RoundEvent("round.applied", round_number, fields))

    def begin_round(self) -> None:
        """What was posted in the former round is not needed any more."""
        self._said.clear()

    def posted(self, message: Message) -> None:
        """Say what ``message`` stands for, the first time in a round, when it has left."""
        if (named := _named(message)) is None or named in self._said:
            return
        self._said.add(named)
        self._leaving.spawn(self._say_when_sent(RoundEvent(named[0], self._replica.head_round + 1)))

    async def _say_when_sent(self, event: RoundEvent) -> None:
        await self._mail.flush()
        self._observer(event)

    async def close(self) -> None:
        await self._leaving.close()


def _named(message: Message) -> tuple[str, str] | None:
    """The point that ``message`` stands for, and what tells it from others of its kind; None if it has none."""
    match message:
        case PlanMessage():
            return "round.plan_sent", message.plan.content_id()
        case Proposal():
            return "round.proposed", message.record.content_id()
        case Vote():
            return "round.voted", f"{message.ballot} {message.record}"
        case _:
            return None
