"""What a world checks by itself while it runs: S1 and S2 at every vote and decision."""

from __future__ import annotations

from typing import NoReturn

from ..envelope import InvalidMessage
from ..identity import PeerId
from ..messages import Commit, Vote
from .nodes import Node, Violation


class Checks:
    """Remembers every vote that was truly given and every decision; raises `Violation`."""

    def __init__(self) -> None:
        self.decided: dict[tuple[int, int], str] = {}
        """Lineage and round → record id, the first time somebody decides."""
        self._said: set[tuple[PeerId, int, int, str]] = set()
        """Votes that were truly given: voter, round, ballot, record."""
        self._papers: dict[str, tuple[PeerId, Vote, int]] = {}
        """Envelope → what it holds. Signatures are stubbed: an envelope counts if its vote was given."""

    def paper(self, voter: PeerId, vote: Vote, lineage: int = 0) -> bytes:
        """The stub of a vote's signed envelope, of the lineage that its voter speaks for."""
        raw = f"{lineage} {voter} {vote.round} {vote.ballot} {vote.record}".encode()
        self._papers[raw.hex()] = (voter, vote, lineage)
        return raw

    def open_vote(self, raw: str, lineage: int = 0) -> tuple[PeerId, Vote]:
        """Voter and vote of a certificate's entry, as `Rules.verified_vote` has them.

        Raises `InvalidMessage` for one that nobody gave, or in another lineage.
        """
        voter, vote, said_in = self._papers.get(raw) or _refuse()
        if said_in != lineage or (voter, vote.round, vote.ballot, vote.record) not in self._said:
            _refuse()
        return voter, vote

    def check_vote(self, node: Node, vote: Vote) -> None:
        """S2: a vote is only given for results that are durably held, and after it is on disk."""
        acceptor = node.disk.acceptors.get(vote.round)
        accepted = None if acceptor is None else acceptor.accepted
        if accepted is None or (accepted.ballot, accepted.record.content_id()) != (vote.ballot, vote.record):
            raise Violation(f"{node.peer} voted for something else than its disk says")
        digests = tuple(result.digest for result in accepted.record.results)
        if node.disk.held.get(accepted.record.plan.content_id()) != digests:
            raise Violation(f"{node.peer} voted without holding the results")
        self._said.add((node.peer, vote.round, vote.ballot, vote.record))

    def check_decision(self, commit: Commit) -> None:
        """S1: one record per round. S2: its certificate holds only votes that were given, of more than half."""
        number, record_id = commit.record.plan.round, commit.record.content_id()
        lineage = commit.record.plan.lineage
        if self.decided.setdefault((lineage, number), record_id) != record_id:
            raise Violation(f"round {number} has decided two records")
        voters = {self.open_vote(raw, lineage)[0] for raw in commit.votes}
        if any((voter, number, commit.ballot, record_id) not in self._said for voter in voters):
            raise Violation(f"round {number}'s certificate holds a vote that nobody gave")
        if 2 * len(voters) < len(commit.record.plan.roster):
            raise Violation(f"round {number} was decided by {len(voters)} votes")


def _refuse() -> NoReturn:
    raise InvalidMessage("a forged vote")
