"""Files that are on disk when the call returns: new names in a folder, and lines that a crash may tear, not mix."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast


def sync_folder(folder: Path) -> None:
    """Make new names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Give a file new content, all of it or none, and wait until it is on disk."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def append_durably(path: Path, entry: dict[str, Any]) -> None:
    """Add one JSON line and wait until it is on disk."""
    is_new = not path.exists()
    with path.open("ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that `append_durably` writes; a line that a crash has torn is cut off."""
    entries: list[dict[str, Any]] = []
    num_sound_bytes = 0
    data = path.read_bytes() if path.exists() else b""
    for line in data.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        entries.append(cast("dict[str, Any]", entry))
        num_sound_bytes += len(line)
    if num_sound_bytes < len(data):
        os.truncate(path, num_sound_bytes)
    return entries
