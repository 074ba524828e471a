"""Signs what this node has reduced, and never two results of one span: the first is on disk before it is said.

A span that is reduced again after a restart may be over other members. Its result would contradict the signed one,
which nobody could tell from a lie.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import ValidationError

from .durable import append_durably, read_lines
from .identity import Identity
from .parsing import canonical_json
from .record import SpanResult
from .signed_results import says_the_same, signed

_KEEP_ROUNDS = 16


class AlreadySigned(RuntimeError):
    """This node has signed another result of the span."""


class ResultSigner:
    """One node's signatures, a file per round in a folder of its own. Blocking; safe in several threads."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self._identity, self._folder = identity, folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._signed = {(result.plan, result.span): result for path in self._paths() for result in _read(path)}

    def sign(self, round_number: int, result: SpanResult) -> SpanResult:
        """The signed result, durably noted. Raises `AlreadySigned`, or OSError if it cannot be noted."""
        with self._lock:
            earlier = self._signed.get((result.plan, result.span))
            if earlier is not None:
                if not says_the_same(earlier, result):
                    raise AlreadySigned("another result of this span was signed before")
                return earlier
            new = signed(self._identity, result)
            append_durably(self._folder / f"{round_number:012d}.jsonl", new.model_dump(mode="json"))
            self._signed[new.plan, new.span] = new
            return new

    def prune(self, head_round: int) -> None:
        """Forget rounds that are long decided, in which nothing is reduced any more."""
        for path in self._paths():
            if int(path.stem) <= head_round - _KEEP_ROUNDS:
                with self._lock:
                    for result in _read(path):
                        self._signed.pop((result.plan, result.span), None)
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return [path for path in self._folder.glob("*.jsonl") if path.stem.isdigit()]


def _read(path: Path) -> list[SpanResult]:
    results: list[SpanResult] = []
    for line in read_lines(path):
        try:
            results.append(SpanResult.model_validate_json(canonical_json(line)))
        except ValidationError:
            continue  # damaged; what was said then is lost, as with a lost disk
    return results
