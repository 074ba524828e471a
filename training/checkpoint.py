"""Checkpoints that a crash, a full disk or a flipped bit cannot spoil: atomic, verified, pruned.

A checkpoint is two files: ``NAME.safetensors`` and, written only after the first is safe on disk, ``NAME.json``, a
manifest with the first one's size and BLAKE3 digest and the small state. Each is written beside, fsynced, renamed and
its folder fsynced, and numbers are never used twice. Without its manifest a data file is litter, removed by the next
save; so at every instant the newest manifest on disk describes a complete checkpoint, and `keep` ≥ 2 leaves an older
one should the newest be damaged later.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

RETRY_DELAYS_S = (0.1, 1.0)  # a hiccup of a disk or a network file system is over by then, or it is none
_DTYPES = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<i4": "I32", "|i1": "I8", "|u1": "U8"}
_TRANSIENT_ERRORS = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETIMEDOUT, errno.ESTALE}


class CheckpointError(ValueError):
    """A checkpoint is damaged; the message names the file, what was expected and found, and the next step."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete, verified checkpoint."""

    number: int
    tensors: dict[str, NDArray[Any]]
    state: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """The checkpoint is durable."""

    path: Path
    num_bytes: int


@dataclass(frozen=True)
class SaveFailed:
    """Nothing was saved, older checkpoints are untouched; the reason is one line."""

    reason: str


def _ignore(_: str) -> None:
    pass


@dataclass
class CheckpointStore:
    """The checkpoints of one kind in one folder (made when first needed)."""

    folder: Path
    prefix: str = "checkpoint"
    keep: int = 2
    on_warning: Callable[[str], None] = _ignore
    """Called with one line when saving starts to fail, when it works again, and per damaged checkpoint."""
    on_point: Callable[[str], None] = _ignore
    """Called at ``checkpoint.saving``, after the data file is written and before it counts."""
    sleep: Callable[[float], None] = time.sleep
    _failing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()  # a later chdir must not move it
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1, not {self.keep}")

    def save(self, tensors: Mapping[str, NDArray[Any]], state: Mapping[str, Any]) -> Saved | SaveFailed:
        """Write a new checkpoint, then remove all but the newest `keep`.

        ``state`` is JSON. A transient error is retried with back-off; an error that lasts is returned, said once
        through `on_warning`, and leaves the older checkpoints and nothing else. Other exceptions are bugs and raise.
        """
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                saved = self._write(tensors, state)
            except OSError as error:
                self._remove_litter()
                if delay_s is None or error.errno not in _TRANSIENT_ERRORS:
                    return self._failed(error)
                self.sleep(delay_s)
            else:
                self._succeeded()
                return saved
        raise AssertionError("unreachable: the last attempt returns")

    def load_latest(self, is_usable: Callable[[Checkpoint], bool] = lambda _: True) -> Checkpoint | None:
        """The newest checkpoint that verifies and ``is_usable``, None if there is none. A damaged one is said."""
        for number in reversed(self.numbers()):
            try:
                checkpoint = self.load(number)
            except CheckpointError as error:
                self.on_warning(str(error))
                continue
            if is_usable(checkpoint):
                return checkpoint
        return None

    def load(self, number: int) -> Checkpoint:
        """Checkpoint ``number``, verified. Raises `CheckpointError`."""
        manifest = self._read_manifest(number)
        path = self._data_path(number)
        _verify(path, manifest)
        try:
            return Checkpoint(number, load_file(path), manifest["state"])
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"checkpoint {path} cannot be read: {error}; {_NEXT_STEP}") from error

    def numbers(self) -> list[int]:
        """Numbers of the checkpoints with a manifest, oldest first."""
        return sorted(number for number, suffix in self._files() if suffix == "json")

    def _write(self, tensors: Mapping[str, NDArray[Any]], state: Mapping[str, Any]) -> Saved:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prune()  # what saves that were killed have left
        number = max((number for number, _ in self._files()), default=0) + 1
        path = self._data_path(number)
        temporary = path.with_name(f".{path.name}.tmp")
        digest = write_tensors(tensors, temporary)
        manifest = {"bytes": temporary.stat().st_size, "blake3": digest, "state": dict(state)}
        self.on_point("checkpoint.saving")
        _publish(temporary, path)
        temporary.write_text(json.dumps(manifest, allow_nan=False))
        _sync(temporary)
        _publish(temporary, self._manifest_path(number))
        self._prune()
        return Saved(path, manifest["bytes"])

    def _read_manifest(self, number: int) -> dict[str, Any]:
        path = self._manifest_path(number)
        try:
            manifest = json.loads(path.read_text())
            if not isinstance(manifest, dict) or not manifest.keys() >= {"bytes", "blake3", "state"}:
                raise ValueError("fields are missing")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"manifest {path} cannot be read: {error}; {_NEXT_STEP}") from error
        return manifest

    def _files(self) -> Iterator[tuple[int, str]]:
        pattern = re.compile(rf"{re.escape(self.prefix)}-(\d+)\.(json|safetensors)")
        names = os.listdir(self.folder) if self.folder.is_dir() else ()
        return ((int(match[1]), match[2]) for name in names if (match := pattern.fullmatch(name)))

    def _data_path(self, number: int) -> Path:
        return self.folder / f"{self.prefix}-{number:08d}.safetensors"

    def _manifest_path(self, number: int) -> Path:
        return self.folder / f"{self.prefix}-{number:08d}.json"

    def _prune(self) -> None:
        for number in self.numbers()[: -self.keep]:
            self._manifest_path(number).unlink(missing_ok=True)  # first, so that no manifest lacks its data
        self._remove_litter()

    def _remove_litter(self) -> None:
        with contextlib.suppress(OSError):  # tried again by the next save
            whole = set(self.numbers())
            for number, suffix in self._files():
                if suffix == "safetensors" and number not in whole:
                    self._data_path(number).unlink(missing_ok=True)
            for path in self.folder.glob(f".{self.prefix}-*.tmp"):
                path.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> SaveFailed:
        reason = f"checkpoint not saved in {self.folder}: {error.strerror or error}; the previous one is kept"
        if not self._failing:
            self.on_warning(f"{reason}; work goes on and the next save tries again")
        self._failing = True
        return SaveFailed(reason)

    def _succeeded(self) -> None:
        if self._failing:
            self.on_warning(f"checkpoints are saved in {self.folder} again")
        self._failing = False


_NEXT_STEP = "the previous checkpoint is used if there is one, otherwise the state is loaded from the swarm"


def write_tensors(tensors: Mapping[str, NDArray[Any]], path: Path) -> str:
    """Write ``tensors`` as a safetensors file, durably; returns its BLAKE3 digest. Raises OSError.

    By hand, because the library's writer leaves a nameless temporary file when it is killed, hides the error number,
    and would have to be read back to be hashed. The format: header length (8 bytes), JSON header, raw tensors.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in sorted(tensors.items())}
    digest = blake3()
    with path.open("wb") as file:
        for data in (_header(arrays), *(array.data.cast("B") for array in arrays.values() if array.size)):
            file.write(data)
            digest.update(data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _header(arrays: dict[str, NDArray[Any]]) -> bytes:
    entries, end = {}, 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": _DTYPES[array.dtype.str], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    return len(text).to_bytes(8, "little") + text


def _verify(path: Path, manifest: dict[str, Any]) -> None:
    try:
        num_bytes = path.stat().st_size
        if num_bytes != manifest["bytes"]:
            raise CheckpointError(
                f"checkpoint {path} has {num_bytes} bytes instead of {str(manifest['bytes'])[:20]}; {_NEXT_STEP}"
            )
        if _digest(path) != manifest["blake3"]:
            raise CheckpointError(
                f"checkpoint {path} is damaged: its {num_bytes} bytes have another digest; {_NEXT_STEP}"
            )
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}; {_NEXT_STEP}") from error


def _digest(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


def _publish(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
