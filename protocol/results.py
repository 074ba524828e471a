"""Encoded means on disk: what makes a vote honest, and what latecomers are served from.

Each attempt of a round has one file with the encoded mean of the whole vector and an index of the spans that are
complete, verified and durable. A span enters the index only after its bytes are on disk, so whatever the index says
survives a crash. Results are found by digest, whichever attempt they came from.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .chunks import ChunkGrid, span_range, tree_of
from .durable import append_durably, read_lines, sync_folder
from .quotas import ATTEMPTS_KEPT
from .record import Plan, Record, Span
from .transport import Buffer


@dataclass(frozen=True)
class HeldSpan:
    """A durable span of a `ResultBuffer`."""

    first_chunk: int
    num_chunks: int
    digest: str


class ResultBuffer:
    """The encoded mean of one attempt, in a file of exactly ``grid.total_encoded`` bytes.

    Space is reserved when it is created: a full disk raises OSError there and not in the middle of a round.
    Blocking; call `hold` off the event loop.
    """

    def __init__(self, path: Path, round_number: int, plan_id: str, grid: ChunkGrid) -> None:
        self.path = path
        self.round = round_number
        self.plan_id = plan_id
        self.grid = grid
        self._index = path.with_suffix(".held")
        self._index_lock = threading.Lock()
        self._memory = _map(path, grid.total_encoded)
        self._view = memoryview(self._memory)
        self._held = {held.first_chunk: held for held in self._read_index() if self._is_sound(held)}

    @property
    def encoded(self) -> memoryview:
        """All bytes, read-only; those of spans that are not held yet are undefined."""
        return self._view.toreadonly()

    def write_chunk(self, chunk: int, data: Buffer) -> None:
        """Put a chunk of a span that is not held yet."""
        self._view[self.grid.encoded_range(chunk)] = memoryview(data).cast("B")

    def hold(self, span: Span, digest: str) -> None:
        """Make a span durable whose bytes are all written and match ``digest``."""
        encoded = span_range(self.grid, span)
        self._flush(encoded)
        held = HeldSpan(span.first_chunk, span.num_chunks, digest)
        with self._index_lock:  # spans are held side by side, and only one may begin the index
            if not self._index.exists() or not self._index.stat().st_size:
                append_durably(self._index, {"round": self.round, "plan": self.plan_id})
            append_durably(self._index, vars(held))
        self._held[span.first_chunk] = held

    def forget(self, span: Span) -> None:
        """The span is going to be written again (an owner has given others other bytes than this node)."""
        self._held.pop(span.first_chunk, None)

    def holds(self, span: Span, digest: str) -> bool:
        return self._held.get(span.first_chunk) == HeldSpan(span.first_chunk, span.num_chunks, digest)

    def find(self, digest: str) -> memoryview | None:
        """The bytes of a held span."""
        held = next((held for held in list(self._held.values()) if held.digest == digest), None)
        return None if held is None else self._span(held)

    def _span(self, held: HeldSpan) -> memoryview:
        last = held.first_chunk + held.num_chunks - 1
        start, stop = self.grid.encoded_range(held.first_chunk).start, self.grid.encoded_range(last).stop
        return self._view[start:stop].toreadonly()

    def _is_sound(self, held: HeldSpan) -> bool:
        last = held.first_chunk + held.num_chunks
        if not 0 <= held.first_chunk < last <= self.grid.num_chunks:
            return False
        with contextlib.suppress(ValueError):  # damaged beyond what an encoder writes
            return tree_of(self.grid, self._span(held), range(held.first_chunk, last)).root.digest == held.digest
        return False

    def _read_index(self) -> Iterator[HeldSpan]:
        for entry in read_lines(self._index)[1:]:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged: the span is fetched again
                yield HeldSpan(int(entry["first_chunk"]), int(entry["num_chunks"]), str(entry["digest"]))

    def _flush(self, encoded: slice) -> None:
        start = encoded.start - encoded.start % mmap.PAGESIZE
        self._memory.flush(start, encoded.stop - start)


class ResultStore:
    """The results of the last ``keep_rounds`` committed rounds, and of the newest attempts of later ones.

    Of a round that is not decided `quotas.ATTEMPTS_KEPT` attempts stay, and each that was voted for (`keep`).

    Creating the store and `attempt` block (they reserve, hash and sync files). Use from one task at a time, but for
    `find`, which may run anywhere.
    """

    def __init__(self, folder: Path, grid: ChunkGrid, keep_rounds: int = 4) -> None:
        self.grid = grid
        self._folder = folder
        self._keep_rounds = keep_rounds
        folder.mkdir(parents=True, exist_ok=True)
        self._buffers: dict[str, ResultBuffer] = {}
        self._voted: set[str] = set()
        for index in sorted(folder.glob("*.held")):
            self._reopen(index)
        self._remove_strays()

    def attempt(self, plan: Plan) -> ResultBuffer:
        """The buffer of an attempt, created if need be. Raises OSError when the disk is full."""
        return self.open(plan.round, plan.content_id())

    def open(self, round_number: int, plan_id: str) -> ResultBuffer:
        buffer = self._buffers.get(plan_id)
        if buffer is None:
            self._make_room(round_number)
            # The whole id: two plans with a common beginning can be made to order, and must not share a file.
            path = self._folder / f"{round_number:012d}-{plan_id}.mean"
            buffer = self._buffers[plan_id] = ResultBuffer(path, round_number, plan_id, self.grid)
        return buffer

    def keep(self, record: Record) -> bool:
        """Keep the attempt of ``record``, which is about to be voted for. False if it is not whole here (any more)."""
        if self.missing(record):
            return False
        self._voted.add(record.plan.content_id())
        return True

    def _make_room(self, round_number: int) -> None:
        """Forget the oldest attempts of a round that were not voted for: leaders make them at will."""
        idle = [plan for plan, b in self._buffers.items() if b.round == round_number and plan not in self._voted]
        for plan_id in idle[: max(0, len(idle) + 1 - ATTEMPTS_KEPT)]:
            _remove(self._buffers.pop(plan_id).path)

    def find(self, digest: str) -> memoryview | None:
        """Bytes of any held span with this digest."""
        found = (buffer.find(digest) for buffer in list(self._buffers.values()))
        return next((view for view in found if view is not None), None)

    def missing(self, record: Record) -> list[int]:
        """Spans of ``record`` that are not durably here."""
        buffer = self._buffers.get(record.plan.content_id())
        spans = zip(record.plan.spans, record.results, strict=True)
        return [i for i, (span, result) in enumerate(spans) if not (buffer and buffer.holds(span, result.digest))]

    def mean(self, record: Record) -> memoryview:
        """Encoded mean of the whole vector. Raises KeyError naming the spans that are missing."""
        if missing := self.missing(record):
            raise KeyError(f"spans {missing} of round {record.plan.round} are not here")
        return self._buffers[record.plan.content_id()].encoded

    def prune(self, record: Record) -> None:
        """``record`` is committed: forget other attempts of rounds up to its own, and rounds that are too old."""
        oldest = record.plan.round - self._keep_rounds
        for plan_id, buffer in list(self._buffers.items()):
            rival = buffer.round == record.plan.round and plan_id != record.plan.content_id()
            if rival or buffer.round <= oldest:
                del self._buffers[plan_id]
                self._voted.discard(plan_id)
                _remove(buffer.path)

    def _reopen(self, index: Path) -> None:
        lines = read_lines(index)
        path = index.with_suffix(".mean")
        if not lines or not path.exists() or path.stat().st_size != self.grid.total_encoded:
            return
        with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged: the round's results are fetched again
            plan_id, round_number = str(lines[0]["plan"]), int(lines[0]["round"])
            self._buffers[plan_id] = ResultBuffer(path, round_number, plan_id, self.grid)

    def _remove_strays(self) -> None:
        known = {buffer.path for buffer in self._buffers.values()}
        for path in self._folder.glob("*.mean"):
            if path not in known:
                _remove(path)


def _remove(path: Path) -> None:
    # The index first: it must never speak of bytes that are gone. Open maps stay readable.
    path.with_suffix(".held").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _map(path: Path, num_bytes: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Reserved, because a write through a map into a hole of a full disk kills the process.
        os.posix_fallocate(descriptor, 0, num_bytes)
        os.fsync(descriptor)
        sync_folder(path.parent)
        return mmap.mmap(descriptor, num_bytes)
    finally:
        os.close(descriptor)
