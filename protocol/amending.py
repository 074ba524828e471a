"""How amendments spread: heartbeats tell how many a node knows, whoever knows fewer asks, and everybody checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .allowance import Allowances
from .amendments import Amendment, InvalidAmendment, RunRules
from .identity import PeerId
from .mail import Mail
from .messages import Amendments, AmendmentsRequest, Heartbeat
from .outcomes import Observe
from .recovery import lacks_signatures
from .rule_book import RuleBook
from .transport import RemoteProtocolError

_QUESTIONS_AT_ONCE = 4


@dataclass(frozen=True)
class Learned:
    """Amendments, from a peer or (``sender`` None) from this node's operator. What is known already does no harm."""

    amendments: tuple[Amendment, ...]
    sender: PeerId | None = None


class Amending:
    """Asks, answers and checks. What is new becomes durable here; the round loop puts it in force."""

    def __init__(
        self,
        book: RuleBook,
        mail: Mail,
        observe: Observe,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._book, self._mail, self._observe = book, mail, observe
        self._questions = Allowances(1 / interval_s, _QUESTIONS_AT_ONCE, clock)
        self._answers = Allowances(1 / interval_s, _QUESTIONS_AT_ONCE, clock)

    def hear(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """A peer says how many amendments it knows."""
        if heartbeat.num_amendments > self._book.num_amendments:
            self.ask(peer)

    def ask(self, peer: PeerId) -> None:
        """Ask a peer for what we lack; not too often."""
        if self._questions.take(peer):
            self._mail.post((peer,), AmendmentsRequest(first=self._book.num_amendments + 1))

    def answer(self, peer: PeerId, request: AmendmentsRequest) -> None:
        """Send what a peer lacks; not too often."""
        if request.first <= self._book.num_amendments and self._answers.take(peer):
            self._mail.post((peer,), Amendments(amendments=self._book.texts(request.first)))

    def lacks_signatures(self, amendment: Amendment) -> bool:
        """As `recovery.lacks_signatures`, by the rules that are known here."""
        return lacks_signatures(self._book.rules, amendment)

    def send(self, amendment: Amendment, peers: Iterable[PeerId]) -> None:
        """Give others an amendment that is not in force yet."""
        self._mail.post((peer for peer in peers if peer != self._mail.me), Amendments(amendments=(_text(amendment),)))

    async def learn(self, learned: Learned) -> RunRules | None:
        """The rules with what is new, durable; None if there is nothing new, or it must not be, which is said."""
        try:
            rules = self._book.rules.extended(learned.amendments)
        except InvalidAmendment as error:
            self._observe("amendment.refused", {"peer": learned.sender, "why": str(error)})
            return None
        if rules.head == self._book.rules.head:
            return None
        try:
            await asyncio.to_thread(self._book.keep, rules)
        except OSError as error:  # asked for again with the next heartbeat
            self._observe("amendment.unwritable", {"why": error.strerror or str(error)})
            return None
        for amendment in rules.amendments[self._book.num_amendments :]:
            self._observe("amendment.learned", {"amendment": amendment})
        return rules


def _text(amendment: Amendment) -> str:
    return amendment.canonical().decode()


def parsed(sender: PeerId, texts: Sequence[str]) -> Learned:
    """What a peer has sent. Raises `RemoteProtocolError` if it is no amendment at all."""
    try:
        return Learned(tuple(map(Amendment.parse, texts)), sender)
    except InvalidAmendment as error:
        raise RemoteProtocolError(sender, "amendments", str(error)) from None
