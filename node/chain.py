"""The run's commits with their certificates, oldest first: what a joiner needs to trust a roster it has never met.

An append-only file of one JSON line per commit. A line cut off by a crash is dropped when the file is opened; the
commit is then appended again when the node catches up.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from ..protocol.messages import Commit


class Chain:
    """Commits 1, 2, … in order. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: list[int] = []
        """Byte offset of commit i + 1."""
        self._end = 0
        self._open()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last(self) -> Commit | None:
        """The newest commit."""
        return self.get(len(self)) if self._offsets else None

    def get(self, round_number: int) -> Commit:
        """Commit of a round. Raises IndexError if it is not here."""
        if not 1 <= round_number <= len(self):
            raise IndexError(f"commit {round_number} is not among the {len(self)} here")
        with self._path.open("rb") as file:
            file.seek(self._offsets[round_number - 1])
            return Commit.model_validate_json(file.readline())

    def read(self, first: int, count: int) -> list[Commit]:
        """Commits ``first``, ``first + 1``, … as far as there are any, at most ``count``."""
        return [self.get(number) for number in range(max(first, 1), min(first + count, len(self) + 1))]

    def append(self, commit: Commit) -> None:
        """Add the next commit durably. One that is already here is ignored; a gap raises ValueError.

        Raises OSError, with nothing added, if the disk does not take it.
        """
        number = commit.record.plan.round
        if number <= len(self):
            return
        if number != len(self) + 1:
            raise ValueError(f"commit {number} does not follow commit {len(self)}")
        line = commit.canonical() + b"\n"
        os.truncate(self._path, self._end)  # what an append that failed has left
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._offsets.append(self._end)
        self._end += len(line)

    def truncate(self, num_commits: int) -> None:
        """Forget commits after ``num_commits`` (the state on disk is older than the chain)."""
        if num_commits < len(self):
            self._end = self._offsets[num_commits]
            del self._offsets[num_commits:]
            os.truncate(self._path, self._end)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or not _is_commit(line, len(self._offsets) + 1):
                    break
                self._offsets.append(self._end)
                self._end += len(line)
        os.truncate(self._path, self._end)


def _is_commit(line: bytes, number: int) -> bool:
    try:
        return Commit.model_validate_json(line).record.plan.round == number
    except ValidationError:
        return False
