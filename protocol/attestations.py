"""Signed state hashes of recent rounds: they certify snapshots, and show a replica that has gone astray (S4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from .identity import PeerId
from .messages import Attest

KEEP_ROUNDS = 8
MAX_SENDERS = 1024
"""Of one round's attestations. A roster has no more, and its members always find room."""


class Attestations:
    """The newest rounds' `Attest` envelopes, by round and sender."""

    def __init__(self) -> None:
        self._rounds: dict[int, dict[PeerId, tuple[Attest, bytes]]] = {}

    def add(self, sender: PeerId, body: Attest, raw: bytes, head_round: int, roster: Collection[PeerId] = ()) -> None:
        """Keep a verified attestation of a round within `KEEP_ROUNDS` of ours, ``head_round``.

        What others say never decides what is kept: a peer that attests a round far ahead would wipe out all others. Nor
        do strangers to the ``roster`` take its members' places.
        """
        if abs(body.round - head_round) >= KEEP_ROUNDS:
            return
        senders = self._rounds.setdefault(body.round, {})
        if sender in senders or sender in roster or len(senders) < MAX_SENDERS:
            senders[sender] = (body, raw)
        for number in [number for number in self._rounds if abs(number - head_round) >= KEEP_ROUNDS]:
            del self._rounds[number]

    def envelopes(self, round_number: int) -> dict[PeerId, bytes]:
        """Signed attestations of a round, as their senders signed them."""
        return {peer: raw for peer, (_, raw) in self._rounds.get(round_number, {}).items()}

    def majority(self, round_number: int, record: str, roster: tuple[PeerId, ...]) -> str | None:
        """The state hash that more than half of ``roster`` state after ``record``, if there is one."""
        attests = self._rounds.get(round_number, {})
        votes = Counter(
            body.state_hash for peer, (body, _) in attests.items() if peer in roster and body.record == record
        )
        found = [state_hash for state_hash, count in votes.items() if 2 * count > len(roster)]
        return found[0] if found else None
