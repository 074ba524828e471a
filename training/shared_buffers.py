"""The memory that a daemon and its trainer share: the anchor, and the encoded contribution, each under a seal.

One memory file: a header page, the mask of complete chunks, the anchor (float32), the contribution (bytes of the
codec). Each vector has exactly one writer: the daemon writes the anchor, the trainer the contribution. A writer opens
its seal, writes, and seals again with (round, generation); a reader gets the vector only under the seal it asks for, so
a writer that was killed half-way has written nothing. The generation tells two trainers of one round apart.

A seal is a sequence lock: an edition that is odd while the vector is open and counts up with every opening and sealing.
Its numbers are aligned 64-bit words, each stored at once, and the writer stores them in order. A reader that copies
(`copy_anchor`) compares the editions before and after: equal and even means that nobody wrote in between, even if the
same round was opened and sealed again. A reader that uses the memory in place (`anchor`, `contribution`) must know
otherwise that the writer waits: the daemon reads its own anchor, and a trainer leaves its contribution alone until it
hears the outcome.

x86-64 keeps the order of stores and of loads; on other processors the control channel's messages order most of it.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"ATOLLBF1"
_PAGE = 4096
_GEOMETRY = struct.Struct("<8sQQQ")  # magic, num_elements, num_chunks, contribution_bytes
_EDITION, _ROUND, _GENERATION = range(3)  # words of a seal

Part = Literal["anchor", "contribution"]
_SEAL_OFFSETS: dict[Part, int] = {"anchor": 64, "contribution": 128}  # a cache line each


class NotSealed(RuntimeError):
    """The vector is not complete, or belongs to another round or generation; the message says which."""


@dataclass(frozen=True)
class Seal:
    """What a sealed vector belongs to."""

    round: int
    generation: int
    edition: int = 0
    """Differs between any two sealings of the vector."""


class SharedBuffers:
    """The shared vectors of one node. `create` in the daemon, `attach` in the trainer by file descriptor."""

    def __init__(self, descriptor: int, num_elements: int, num_chunks: int, contribution_bytes: int) -> None:
        self.fd = descriptor
        self.num_elements, self.num_chunks, self.contribution_bytes = num_elements, num_chunks, contribution_bytes
        mask_at = _PAGE
        anchor_at = mask_at + _pages(num_chunks)
        contribution_at = anchor_at + _pages(4 * num_elements)
        self._memory = mmap.mmap(descriptor, contribution_at + _pages(contribution_bytes))
        self._seals = {part: np.frombuffer(self._memory, np.uint64, 3, at) for part, at in _SEAL_OFFSETS.items()}
        self._mask = np.frombuffer(self._memory, np.uint8, num_chunks, mask_at)
        self._anchor = np.frombuffer(self._memory, np.float32, num_elements, anchor_at)
        self._contribution = np.frombuffer(self._memory, np.uint8, contribution_bytes, contribution_at)

    @classmethod
    def create(cls, num_elements: int, num_chunks: int, contribution_bytes: int, folder: Path | None = None) -> Self:
        """New buffers, nothing sealed: in memory, or in a nameless file in ``folder``.

        The space is reserved here, so a full disk or memory limit raises OSError now instead of killing a writer later.
        """
        size = _PAGE + _pages(num_chunks) + _pages(4 * num_elements) + _pages(contribution_bytes)
        descriptor = _open_memory(folder)
        try:
            _reserve(descriptor, size)
            os.pwrite(descriptor, _GEOMETRY.pack(_MAGIC, num_elements, num_chunks, contribution_bytes), 0)
            return cls(descriptor, num_elements, num_chunks, contribution_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """Buffers that another process created. Raises ValueError if the file is something else."""
        header = os.pread(descriptor, _GEOMETRY.size, 0)
        if len(header) < _GEOMETRY.size or not header.startswith(_MAGIC):
            raise ValueError("the descriptor does not hold shared buffers")
        return cls(descriptor, *_GEOMETRY.unpack(header)[1:])

    def seal_of(self, part: Part) -> Seal | None:
        """The seal on a vector, None while it is open."""
        words = self._seals[part]
        edition = int(words[_EDITION])
        seal = Seal(int(words[_ROUND]), int(words[_GENERATION]), edition)
        is_sealed = edition > 0 and edition % 2 == 0 and int(words[_EDITION]) == edition
        return seal if is_sealed else None

    # The anchor: written by the daemon.

    def open_anchor(self) -> NDArray[np.float32]:
        """The anchor for writing, (num_elements,); readers are refused until `seal_anchor`."""
        self._break_seal("anchor")
        return self._anchor

    def seal_anchor(self, round: int, generation: int = 0) -> None:  # noqa: A002
        """Declare the anchor to be the state after ``round`` (0: initial)."""
        self._set_seal("anchor", round, generation)

    def anchor(self, round: int | None = None) -> NDArray[np.float32]:  # noqa: A002
        """The sealed anchor in place, read-only, for its writer, who knows that it is not being replaced.

        Raises `NotSealed` if it is being written or is not that of ``round``.
        """
        self._require("anchor", round, None)
        return _read_only(self._anchor)

    def copy_anchor(self, round: int, out: NDArray[np.float32]) -> None:  # noqa: A002
        """Copy the sealed anchor of ``round`` into ``out`` (num_elements,), for the process that does not write it.

        Raises `NotSealed` if it is not there or was opened during the copy; ``out`` is then a mixture, not to be used.
        """
        before = self._require("anchor", round, None)
        out[:] = self._anchor
        if self.seal_of("anchor") != before:
            raise NotSealed(f"the anchor of round {round} was replaced while it was copied")

    # The contribution: written by the trainer.

    def open_contribution(self) -> NDArray[np.uint8]:
        """The contribution for writing, (contribution_bytes,); no chunk counts as complete."""
        self._break_seal("contribution")
        self._mask.fill(0)
        return self._contribution

    def mark_complete(self, chunk: int) -> None:
        """Chunk ``chunk`` of the open contribution is written."""
        self._mask[chunk] = 1

    def seal_contribution(self, round: int, generation: int) -> None:  # noqa: A002
        """Declare the contribution complete. Raises `NotSealed` if a chunk was not marked."""
        num_missing = self.num_chunks - int(self._mask.sum())
        if num_missing:
            raise NotSealed(f"contribution of round {round}: {num_missing} of {self.num_chunks} chunks are missing")
        self._set_seal("contribution", round, generation)

    def contribution(self, round: int | None = None, generation: int | None = None) -> NDArray[np.uint8]:  # noqa: A002
        """The sealed contribution, read-only. Raises `NotSealed` unless it is that of (round, generation)."""
        self._require("contribution", round, generation)
        return _read_only(self._contribution)

    def close(self) -> None:
        """Give the descriptor back. The memory itself goes when the last view of it does."""
        os.close(self.fd)

    def _break_seal(self, part: Part) -> None:
        words = self._seals[part]
        words[_EDITION] = int(words[_EDITION]) | 1  # still odd if the last writer died half-way

    def _set_seal(self, part: Part, round_: int, generation: int) -> None:
        words = self._seals[part]
        self._break_seal(part)  # also for a vector that is sealed again as it is
        words[_ROUND], words[_GENERATION] = round_, generation
        words[_EDITION] = int(words[_EDITION]) + 1

    def _require(self, part: Part, round_: int | None, generation: int | None) -> Seal:
        seal = self.seal_of(part)
        if seal is None:
            raise NotSealed(f"the {part} is being written, or its writer died")
        if round_ not in (None, seal.round) or generation not in (None, seal.generation):
            raise NotSealed(
                f"the {part} is of round {seal.round}, generation {seal.generation}, not of {round_}, {generation}"
            )
        return seal


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def _read_only(array: NDArray) -> NDArray:
    view = array.view()
    view.flags.writeable = False
    return view


def _open_memory(folder: Path | None) -> int:
    if folder is None and hasattr(os, "memfd_create"):
        return os.memfd_create("atoll", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
