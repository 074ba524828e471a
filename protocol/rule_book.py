"""The rules of the run as this node knows them at present: they grow while it runs, and are kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .amendments import Amendment, RunRules

MAX_SENT_BYTES = 1 << 18
"""Amendments in one message, roughly. Who lacks more asks again."""


class RuleBook:
    """Shared by whoever needs the rules; only the round loop changes them, between two events of a round.

    ``save`` makes new amendments durable, blocking; it raises OSError, and nothing has been learnt then.
    """

    def __init__(self, rules: RunRules, save: Callable[[Sequence[Amendment]], None] = lambda _: None) -> None:
        self.rules = rules
        self._save = save

    @property
    def num_amendments(self) -> int:
        """How many are known here."""
        return len(self.rules.amendments)

    def keep(self, rules: RunRules) -> None:
        """Make the amendments durable that ``rules`` has beyond the present ones. Blocking; `take` must follow."""
        self._save(rules.amendments[self.num_amendments :])

    def take(self, rules: RunRules) -> None:
        """From now on these rules hold."""
        self.rules = rules

    def texts(self, first: int) -> tuple[str, ...]:
        """Amendments from number ``first`` on for one message, in canonical form."""
        texts: list[str] = []
        for amendment in self.rules.amendments[max(first, 1) - 1 :]:
            texts.append(amendment.canonical().decode())
            if sum(map(len, texts)) > MAX_SENT_BYTES:
                break
        return tuple(texts)
