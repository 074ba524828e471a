"""A founder's part in `recollection`: it remembers the first words of others, and asks for its own where it must."""

from __future__ import annotations

from collections.abc import Callable

from .contact import Contact
from .driver import DriverSetup
from .identity import PeerId
from .messages import MAX_MEMORY, Memory, MemoryRequest
from .quorum import quorum_of
from .recollection import Recollected, Recollection, Verdict


class Memories:
    """Of round 1 only. ``tell`` gets what has become clear of an earlier life of ours, once."""

    def __init__(self, setup: DriverSetup, contact: Contact, tell: Callable[[Recollected], None]) -> None:
        self._book, self._replica, self._clock = setup.book, setup.replica, setup.clock
        self._mail, self._contact, self._tell = contact.mail, contact, tell
        self._first_words: dict[PeerId, bytes] = {}
        """The first heartbeat that was heard from each founder in round 1, as it was signed."""
        self._recollection: Recollection | None = None

    def begin(self) -> None:
        """Our disk is empty: find out whether it has always been."""
        genesis, round_number = self._book.rules.at(1), self._replica.head_round + 1
        self._recollection = Recollection(
            self._mail.me,
            genesis.run_id,
            self._book.rules.lineage,
            quorum_of(genesis, self._replica.standing.roster, round_number),
            self._mail.has_used,
            began_s=self._clock(),
            patience_s=genesis.timing.heartbeat_timeout_s,
        )

    def hear(self, peer: PeerId, raw: bytes) -> None:
        """A heartbeat has come."""
        is_founder = self._replica.head_round == 0 and peer in self._replica.standing.roster
        if is_founder and 2 * len(raw) <= MAX_MEMORY:  # no honest heartbeat is longer
            self._first_words.setdefault(peer, raw)

    def answer(self, peer: PeerId, request: MemoryRequest) -> None:
        """Give the first words that we have of ``peer``."""
        first = self._first_words.get(peer)
        self._mail.post((peer,), Memory(round=request.round, envelope=None if first is None else first.hex()))

    def note(self, peer: PeerId, memory: Memory) -> None:
        """What ``peer`` has heard of us."""
        if self._recollection is not None and peer in self._replica.standing.roster:
            self._recollection.note(peer, None if memory.envelope is None else bytes.fromhex(memory.envelope))
            self.ask()

    def ask(self) -> None:
        """Ask who has not answered yet; once it is clear, the round loop votes, or abstains. Call it regularly."""
        if self._recollection is None:
            return
        alive, round_number = self._contact.alive, self._replica.head_round + 1
        verdict = self._recollection.verdict(alive, self._clock())
        if round_number > 1 or verdict is not Verdict.UNSURE:
            self._recollection = None
            self._tell(Recollected(has_forgotten=verdict is Verdict.FORGOT))
        elif unasked := self._recollection.unasked(alive):
            self._mail.post(unasked, MemoryRequest(round=round_number))
