"""What this node has given to the run: counted when a round is applied, and restored from the journal at a start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..protocol.identity import PeerId

MAX_RESTORED_ROUNDS = 20_000


@dataclass
class Tally:
    """Sums over this node's rounds, earlier starts included, but for `num_rounds`."""

    num_rounds: Counter[PeerId] = field(default_factory=Counter[PeerId])
    """Peer -> rounds in whose mean it was, as far as this process has seen."""
    num_counted: int = 0
    num_skipped: int = 0
    """Rounds that committed without us."""
    tokens: int = 0
    """In contributions that counted."""
    joined_round: int | None = None
    """The first that counted."""
    last_receipt_round: int | None = None

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rounds of earlier starts (`Journal.rounds`, oldest first)."""
        for row in rows:
            facts: Mapping[str, Any] = row["data"] or {}
            self._add(row["round"], int(facts.get("tokens") or 0), counted=row["outcome"] == "committed")

    def add(self, round_number: int, members: Iterable[PeerId], tokens: int, *, counted: bool) -> None:
        """A round is applied: ``members`` are in its mean, ``tokens`` of it are ours."""
        self.num_rounds.update(members)
        self._add(round_number, tokens, counted=counted)

    def _add(self, round_number: int, tokens: int, *, counted: bool) -> None:
        self.num_counted += counted
        self.num_skipped += not counted
        self.tokens += tokens
        if counted and self.joined_round is None:
            self.joined_round = round_number
