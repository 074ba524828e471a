"""A founder's part in `recollection`: it remembers the first words of others, and asks for its own where it must."""

from __future__ import annotations

from collections.abc import Callable

from .contact import Contact
from .driver import DriverSetup
from .first_words import FirstWords
from .identity import PeerId
from .messages import Memory, MemoryRequest
from .quorum import quorum_of
from .recollection import Recollected, Recollection, Verdict, is_of_earlier_life


class Memories:
    """Of the founders only. ``tell`` gets what has become clear of an earlier life of ours, once."""

    def __init__(self, setup: DriverSetup, contact: Contact, tell: Callable[[Recollected], None]) -> None:
        self._book, self._replica, self._clock = setup.book, setup.replica, setup.clock
        self._mail, self._contact, self._tell = contact.mail, contact, tell
        genesis = setup.book.rules.genesis
        self._first_words = FirstWords(setup.folder / "heard", genesis.membership.roster, genesis.run_id)
        self._recollection: Recollection | None = None

    def begin(self, opened_life: int) -> None:
        """Our disk was empty in the life that opened it: find out whether it had always been.

        What was said since, by a process that was stopped before it knew, is no sign of votes: it gave none.
        """
        genesis, round_number = self._book.rules.at(1), self._replica.head_round + 1
        self._recollection = Recollection(
            self._mail.me,
            quorum_of(genesis, self._replica.standing.roster, round_number),
            lambda raw: is_of_earlier_life(raw, self._mail.me, genesis.run_id, self._mail.used_since(opened_life)),
            began_s=self._clock(),
            patience_s=genesis.timing.heartbeat_timeout_s,
        )

    def hear(self, peer: PeerId, raw: bytes) -> None:
        """A heartbeat has come."""
        self._first_words.note(peer, raw)

    def answer(self, peer: PeerId, request: MemoryRequest) -> None:
        """Give the first words that we have of ``peer``."""
        first = self._first_words.of(peer)
        self._mail.post((peer,), Memory(round=request.round, envelope=None if first is None else first.hex()))

    def note(self, peer: PeerId, memory: Memory) -> None:
        """What ``peer`` has heard of us."""
        if self._recollection is not None and peer in self._book.rules.genesis.membership.roster:
            self._recollection.note(peer, None if memory.envelope is None else bytes.fromhex(memory.envelope))
            self._conclude()

    def ask(self) -> None:
        """Ask who has not answered yet; once it is clear, the round loop votes, or abstains. Call it regularly."""
        self._conclude()
        if self._recollection is not None and (unasked := self._recollection.unasked(self._contact.alive)):
            self._mail.post(unasked, MemoryRequest(round=self._replica.head_round + 1))

    def _conclude(self) -> None:
        if self._recollection is None:
            return
        verdict = self._recollection.verdict(self._contact.alive, self._clock())
        if verdict is not Verdict.UNSURE:
            self._recollection = None
            self._tell(Recollected(has_forgotten=verdict is Verdict.FORGOT))
