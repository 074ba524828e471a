"""Samples of one span of the present attempt: who sends again what was sent before, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..admission import Copy, Earlier, Present, Refusal, copies
from ..recent import PastSpan, Recent, Sample
from ..record import Plan
from ..spec import TrustConfig
from ..transport import Buffer


class SpanSamples:
    """Samples of one span of the present attempt; a member's are taken once, however often the span is reduced.

    Members are named by their index in the plan. CPU-bound: use it off the event loop, in one thread at a time.
    """

    def __init__(self, recent: Recent, plan: Plan, chunks: range, trust: TrustConfig) -> None:
        self._recent, self._plan, self._chunks, self._copy_cosine = recent, plan, chunks, trust.copy_cosine
        self._past, self._order = recent.past, recent.order(plan)
        self._taken: dict[tuple[int, int], Sample] = {}
        """(member, chunk of the grid) -> sample."""
        self._copied: dict[tuple[PastSpan, int], None] = {}
        """Rows of the past that were sent again."""

    def look(self, position: int, encoded: Mapping[int, Buffer], judged: Sequence[int]) -> dict[int, Refusal]:
        """Sample each member's chunk at ``position`` of the span; who of ``judged`` sends a copy, going by all so far.

        It is judged after 1, 2, 4, ... chunks and after the last: a copy that is seen early costs little.
        """
        for member, data in encoded.items():
            self._take(member, self._chunks[position], data)
        num_taken = position + 1
        if num_taken < len(self._chunks) and num_taken.bit_count() > 1:
            return {}
        found = self._copies(judged, self._chunks[:num_taken])
        return {member: copy.refusal for member, copy in found.items()}

    def _take(self, member: int, chunk: int, encoded: Buffer) -> None:
        if (member, chunk) not in self._taken:
            self._taken[member, chunk] = self._recent.sampler.sample(chunk, encoded)

    def _copies(self, members: Sequence[int], chunks: range) -> dict[int, Copy]:
        if not members or not self._recent.is_evidence(chunks):
            return {}
        seen = ((past, self._earlier(past, members, chunks)) for past in self._past)
        known = [(past, each) for past, each in seen if each is not None]
        present = Present(
            members=[self._plan.members[member] for member in members],
            samples=self._rows(members, chunks),
            order=[self._order[member] for member in members],
        )
        found = copies(present, [each for _, each in known], self._copy_cosine)
        originals = (copy.original for copy in found.values() if copy.original is not None)
        self._copied |= {(known[index][0], row): None for index, row in originals}
        return {members[index]: copy for index, copy in found.items()}

    def _earlier(self, past: PastSpan, members: Sequence[int], chunks: range) -> Earlier | None:
        both = [chunk for chunk in chunks if chunk in past.rows]
        if not self._recent.is_evidence(both):
            return None
        rows = np.concatenate([past.rows[chunk] for chunk in both], axis=1)
        return Earlier(past.round, past.authors, rows, self._rows(members, both))

    def _rows(self, members: Sequence[int], chunks: Sequence[int]) -> Sample:
        return np.stack([np.concatenate([self._taken[member, chunk] for chunk in chunks]) for member in members])

    def finish(self, members: Sequence[int], means: Sequence[Sample]) -> PastSpan:
        """The span is reduced over ``members``: what is to be remembered of it. ``means``: samples of the mean."""
        authors = [*(self._plan.members[m].peer for m in members), None]
        authors += [past.authors[row] for past, row in self._copied]
        rows = {
            chunk: np.stack([*(self._taken[m, chunk] for m in members), mean, *self._originals(chunk, mean)])
            for chunk, mean in zip(self._chunks, means, strict=True)
        }
        return PastSpan(self._plan.round, tuple(authors), rows)

    def _originals(self, chunk: int, like: Sample) -> list[Sample]:
        """Of what was copied, this chunk; zeros where this node did not see it when it was new."""
        known = ((past.rows.get(chunk), row) for past, row in self._copied)
        return [np.zeros_like(like) if rows is None else rows[row] for rows, row in known]
