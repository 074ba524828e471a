"""What a node that reduces remembers of recent rounds' contributions, so that it recognises what is sent again.

Of every chunk it keeps a strided sample of each member's decoded values and of the mean, at places that nobody else
knows. Only what a committed round counted is remembered: work that counted nowhere comes again, merged into the next
contribution, and must not look like a copy. What was copied is remembered anew with the round that it was copied in, so
that sending one thing for ever does not outlast the memory. All of it is forgotten with the process and the lineage.

Memory: 4 bytes a sample; `NUM_ROUNDS` × members × (1 MiB × share of the vector that this node reduces), as long as the
vector has at most 2^14 chunks, and at most `RECENT_BYTES`: then the oldest rounds go first.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .chunks import ChunkGrid
from .identity import PeerId
from .quotas import RECENT_BYTES
from .record import Plan
from .transport import Buffer

NUM_ROUNDS = 4
_MAX_SAMPLES, _MAX_SAMPLES_PER_CHUNK, _MIN_SAMPLES_PER_CHUNK = 1 << 18, 1024, 16
MIN_ELEMENTS = 16_384
"""Fewer elements are no evidence: the last few (norms, a piece of the head) are alike among honest members."""
_MAX_ATTEMPTS = 4
"""Attempts of a round whose samples wait for the decision."""

Sample = NDArray[np.float32]


class Sampler:
    """Takes the values of a chunk at every n-th element, from a start that nobody else knows."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._grid = grid
        wanted = _MAX_SAMPLES // grid.num_chunks
        self._per_chunk = max(_MIN_SAMPLES_PER_CHUNK, min(_MAX_SAMPLES_PER_CHUNK, wanted))
        self._starts: dict[int, int] = {}

    def sample(self, chunk: int, encoded: Buffer) -> Sample:
        """At most 1,024 values of a valid encoding of ``chunk``, always the same places. Decodes the whole chunk."""
        values = np.empty(self._grid.chunk_length(chunk), np.float32)
        self._grid.codec.decode(encoded, values)
        return self.pick(chunk, values)

    def pick(self, chunk: int, values: NDArray[np.float32]) -> Sample:
        """The same of decoded values."""
        step = max(1, values.size // self._per_chunk)
        start = self._starts.setdefault(chunk, secrets.randbelow(step))
        return values[start::step][: self._per_chunk].copy()


@dataclass(frozen=True, eq=False)
class PastSpan:
    """Samples of one span of a committed round."""

    round: int
    authors: tuple[PeerId | None, ...]
    """Of the rows; None: the mean."""
    rows: Mapping[int, Sample]
    """Chunk -> (num_rows, num_samples)."""

    @property
    def num_bytes(self) -> int:
        return sum(sample.nbytes for sample in self.rows.values())


@dataclass
class Recent:
    """One node's memory of the last rounds; use it in one thread, what it hands out in any."""

    grid: ChunkGrid
    sampler: Sampler = field(init=False)
    past: tuple[PastSpan, ...] = ()
    _lineage: int = 0
    _round: int = 0
    _seen: dict[str, int] = field(default_factory=dict[str, int])
    """Commitment -> order in which plans of the present round named it first."""
    _offers: dict[str, list[PastSpan]] = field(default_factory=dict[str, list[PastSpan]])

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.grid)

    def begin(self, plan: Plan) -> None:
        """An attempt begins. Whoever commits to something else after it has had others' shown may have copied it."""
        if plan.lineage != self._lineage:
            self.past, self._lineage = (), plan.lineage  # work may be done again, on the same data
        if plan.round != self._round:
            self._seen, self._round = {}, plan.round
            self._offers.clear()
        rank = len(self._seen)
        for member in plan.members:
            self._seen.setdefault(member.commitment, rank)

    def order(self, plan: Plan) -> list[int]:
        """Per member, when its commitment was heard of first; equal for those of one plan."""
        return [self._seen.get(member.commitment, len(self._seen)) for member in plan.members]

    def is_evidence(self, chunks: Sequence[int]) -> bool:
        """Whether these chunks of the grid are enough to judge by."""
        return sum(self.grid.chunk_length(chunk) for chunk in chunks) >= MIN_ELEMENTS

    def offer(self, plan: Plan, span: PastSpan) -> None:
        """A span that counts if ``plan`` is committed."""
        self._offers.setdefault(plan.content_id(), []).append(span)
        while len(self._offers) > _MAX_ATTEMPTS:
            self._offers.pop(next(iter(self._offers)))

    def decide(self, plan: Plan) -> None:
        """``plan`` is committed: remember what this node has reduced of it, and forget what is too old."""
        kept = [span for span in self.past if plan.round - NUM_ROUNDS < span.round]
        kept += self._offers.pop(plan.content_id(), [])
        while sum(span.num_bytes for span in kept) > RECENT_BYTES:
            kept.pop(0)
        self.past = tuple(kept)
