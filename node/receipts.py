"""This node's receipts: one per round that its contribution counted in, kept in the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..protocol.identity import Identity, PeerId
from ..protocol.messages import Commit
from ..protocol.parsing import canonical_json
from ..protocol.receipts import FIRST, Receipt
from .journal import Journal

Attests = Callable[[int], Mapping[PeerId, bytes]]
"""Signed `Attest` envelopes that are known for a round, by sender."""


class ReceiptBook:
    """Writes the receipt of a round when the next one is applied: by then the others have attested it.

    A node that is killed in between has no receipt for that one round; the chain goes on without it.
    """

    def __init__(self, identity: Identity, run_id: str, journal: Journal) -> None:
        self._identity, self._run_id, self._journal = identity, run_id, journal
        self._waiting: Commit | None = None
        self._previous = self._last_link()

    def on_applied(self, commit: Commit, attests: Attests) -> int | None:
        """A commit is applied. Returns the round of the receipt that has been written by this, if any."""
        number = self.flush(attests)
        self._waiting = commit
        return number

    def flush(self, attests: Attests) -> int | None:
        """Write the receipt that waits for countersignatures with those that are here."""
        commit, self._waiting = self._waiting, None
        if commit is None:
            return None
        number, me = commit.record.plan.round, self._identity.peer_id
        others = [raw for peer, raw in attests(number).items() if peer != me]
        receipt = Receipt.make(self._identity, self._run_id, commit, others, self._previous)
        if receipt is None:
            return None
        self._journal.receipt(number, me, receipt.model_dump(mode="json"))
        self._previous = receipt.link
        return number

    def _last_link(self) -> str:
        for receipt in read_receipts(self._journal, self._run_id, self._identity.peer_id)[-1:]:
            return receipt.link
        return FIRST


def read_receipts(journal: Journal, run_id: str, peer: PeerId | None = None) -> list[Receipt]:
    """Receipts of one run in the journal, oldest first; rows that do not parse (an older version's) are left out."""
    receipts: list[Receipt] = []
    for row in journal.receipts(limit=journal.limits.num_receipts):
        try:
            receipt = Receipt.model_validate_json(canonical_json(row["data"]))
        except ValueError:
            continue
        if receipt.statement.run_id == run_id and peer in (None, receipt.statement.peer):
            receipts.append(receipt)
    return receipts
