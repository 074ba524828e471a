"""Where a node keeps the run's amendments, and where its operator puts new ones for a running node to find."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ..protocol.amendments import Amendment, InvalidAmendment, RunRules
from ..protocol.durable import append_durably, read_lines, sync_folder
from ..protocol.spec import Genesis


class AmendmentStore:
    """One JSON line per amendment, durable before any of them is in force. A line that a crash has torn is cut off."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "amendments.jsonl"
        self._inbox = folder / "inbox"

    def load(self, genesis: Genesis) -> RunRules:
        """The rules by what is on disk. A damaged line ends the list: others still have what followed it."""
        rules = RunRules(genesis)
        for line in read_lines(self._path):
            try:
                rules = rules.extended([Amendment.parse(json.dumps(line))])
            except InvalidAmendment:
                break
        num_sound = len(rules.amendments)
        if self._path.exists() and num_sound < len(self._path.read_bytes().splitlines()):
            self._rewrite(rules.amendments)
        return rules

    def append(self, amendments: Sequence[Amendment]) -> None:
        """Add amendments durably. Blocking; raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for amendment in amendments:
            append_durably(self._path, amendment.model_dump(mode="json"))

    def _rewrite(self, amendments: Sequence[Amendment]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(amendment.canonical() + b"\n" for amendment in amendments))
        temporary.replace(self._path)
        sync_folder(self._path.parent)

    # --- the operator's way in ----------------------------------------------------------------------------------------

    def submit(self, amendments: Sequence[Amendment]) -> None:
        """Put amendments where the node of this folder finds them, now or when it starts."""
        self._inbox.mkdir(parents=True, exist_ok=True)
        for amendment in amendments:
            path = self._inbox / f"{amendment.number:06d}.json"
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(amendment.canonical())
            temporary.replace(path)

    def collect(self) -> list[Amendment]:
        """Take what was submitted, oldest first. What is no amendment is thrown away."""
        found: list[Amendment] = []
        for path in sorted(self._inbox.glob("*.json")):
            with contextlib.suppress(InvalidAmendment, OSError):
                found.append(Amendment.parse(path.read_bytes()))
            path.unlink(missing_ok=True)
        return found


def companion(spec: Path) -> Path:
    """The file beside a run spec that has its amendments: what an operator publishes together with it."""
    return spec.with_name(spec.name + ".amendments")


def read_companion(spec: Path) -> list[Amendment]:
    """Amendments beside a spec, the last of which may still lack signatures. Raises `InvalidAmendment`, OSError."""
    path = companion(spec)
    if not path.exists():
        return []
    return [Amendment.parse(line) for line in path.read_bytes().splitlines() if line.strip()]


def write_companion(spec: Path, amendments: Sequence[Amendment]) -> None:
    """Replace the file beside a spec, all or nothing."""
    path = companion(spec)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(b"".join(amendment.canonical() + b"\n" for amendment in amendments))
    temporary.replace(path)
