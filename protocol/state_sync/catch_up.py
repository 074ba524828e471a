"""From a snapshot (or a node's own last round) to the head, commit by commit, with means fetched by digest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from ..identity import PeerId
from ..messages import Commit
from ..result_transfer import ResultFetcher

Apply = Callable[[Commit, memoryview], Awaitable[str]]
"""Applies a commit with the encoded mean of the whole vector; returns the new state hash."""


class StateMismatch(Exception):
    """This node's state after a commit is not the one that the swarm's next commit names: it must load a snapshot."""

    def __init__(self, round_number: int, expected: str, found: str) -> None:
        super().__init__(f"state hash after round {round_number} is {found[:16]}…, the swarm's is {expected[:16]}…")
        self.round = round_number


async def catch_up(
    commits: Iterable[Commit],
    fetcher: ResultFetcher,
    peers: Callable[[], Collection[PeerId]],
    apply: Apply,
    state_hash: str,
) -> str:
    """Apply consecutive verified ``commits`` on top of a state with ``state_hash``; returns the hash at the end.

    Raises `StateMismatch` *before* applying to a wrong state, and `result_transfer.ResultsUnavailable` when peers no
    longer keep a round's mean; what was applied until then stays applied.
    """
    for commit in commits:
        plan = commit.record.plan
        if plan.parent_state != state_hash:
            raise StateMismatch(plan.round - 1, plan.parent_state, state_hash)
        buffer = await fetcher.fetch(commit.record, list(peers()))
        state_hash = await apply(commit, buffer.encoded)
    return state_hash
