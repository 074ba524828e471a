"""Promises and votes on disk (S1): what a member has said in a round survives its process.

One JSON file per lineage, fragment and round, replaced atomically (written beside, fsynced, renamed, folder fsynced)
before the message that follows from it is sent, with a SHA-256 so that damage is noticed. A member that forgets a vote
can break the whole run, so whoever may have forgotten one abstains (`VoteStore.forgot`):

- in a round whose file cannot be read back;
- in a round before the newest one of which there is a file, if its own is missing: this member has moved past the round
  (its state is older than its votes now), so the round is decided and can only be learnt;
- with a folder without any file, as a newcomer's or after a lost disk, in the one round in which a member of the roster
  may have spoken before. In round 1, where every founder's folder is empty, until the others have been asked
  (`recollection`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .durable import sync_folder
from .messages import Accepted, canonical_json
from .round_machine import Acceptor

_OPENED = "opened.json"
_KEEP_ROUNDS = 16


class VoteFileDamaged(RuntimeError):
    """Promises or votes cannot be read back. The message names the file and what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"vote file {path} is damaged ({why}); this node must not vote in that round again: restore the file from "
            "a backup, or start the node once the swarm has committed the round and then delete the file"
        )
        self.path = path


def abstained_at_open(next_round: int, *, is_member: bool) -> int | None:
    """The round in which a node must not vote that begins with an empty folder; None if it can have forgotten nothing.

    ``is_member``: the roster of ``next_round`` names it already. Past round 1 it has then lost its memory.
    """
    return next_round if is_member and next_round > 1 else None


def is_forgotten(round_number: int, rounds_on_disk: Iterable[int], abstained_round: int | None) -> bool:
    """Whether a node may have said something in a round that its disk does not hold any more.

    ``rounds_on_disk``: those with promises or votes. Who has moved past a round has only its outcome to learn.
    """
    known = set(rounds_on_disk)
    return round_number == abstained_round or (round_number not in known and any(n > round_number for n in known))


class VoteStore:
    """The acceptor states of one node in a folder of its own. Blocking: call it off the event loop."""

    def __init__(self, folder: Path, lineage: int, fragment: int = 0) -> None:
        self._folder, self._fragment = folder, fragment
        self.begin_lineage(lineage)
        folder.mkdir(parents=True, exist_ok=True)
        self._is_damaged = False
        self.is_unsure = False
        """Whether a founder in round 1 may have spoken in an earlier life: it abstains until `recollect`."""
        self._abstained_round = self._read_abstained()

    def begin_lineage(self, lineage: int) -> None:
        """What was said in another lineage binds nobody in this one."""
        self._prefix = f"{lineage}-{self._fragment}-"

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever said from this folder."""
        return not any(self._folder.glob("*.json"))

    def open(self, next_round: int, *, is_member: bool) -> None:
        """Call once at start. ``is_member``: the roster of ``next_round`` names us already.

        A member with an empty folder past round 1 has lost its memory and abstains in ``next_round``, the only round in
        which it can have voted without applying the outcome.
        """
        if not self.is_new and not self._is_damaged:
            return
        forgotten = abstained_at_open(next_round, is_member=is_member)
        self._abstained_round = self._abstained_round if forgotten is None else forgotten
        self.is_unsure = is_member and next_round == 1
        self._write_opened()

    def recollect(self, *, has_forgotten: bool) -> None:
        """The others have answered: abstain in round 1, or vote. Durable, like everything here."""
        self.is_unsure = False
        if has_forgotten:
            self._abstained_round = 1
        self._write_opened()

    def _write_opened(self) -> None:
        content = {"abstained_round": self._abstained_round, "is_unsure": self.is_unsure}
        self._write(self._folder / _OPENED, content)

    def forgot(self, round_number: int) -> bool:
        """Whether this node must not vote in the round."""
        if is_forgotten(round_number, self._rounds(), self._abstained_round) or (self.is_unsure and round_number == 1):
            return True
        try:
            self.load(round_number)
        except VoteFileDamaged:
            return True
        return False

    def _rounds(self) -> list[int]:
        names = (path.stem.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*.json"))
        return [int(name) for name in names if name.isdigit()]

    def load(self, round_number: int) -> Acceptor:
        """What was promised and accepted in a round. Raises `VoteFileDamaged`, which means that `forgot` says so."""
        path = self._path(round_number)
        if not path.exists():
            return Acceptor()
        content = _read(path)
        try:
            accepted = content["accepted"]
            return Acceptor(
                promised=int(content["promised"]),
                accepted=None if accepted is None else Accepted.model_validate_json(canonical_json(accepted)),
                led=int(content["led"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise VoteFileDamaged(path, (str(error) or type(error).__name__).splitlines()[0]) from None

    def save(self, round_number: int, acceptor: Acceptor) -> None:
        """Make an acceptor durable. Raises OSError; nothing that follows from it may then be sent."""
        accepted = None if acceptor.accepted is None else acceptor.accepted.model_dump(mode="json")
        content = {"promised": acceptor.promised, "accepted": accepted, "led": acceptor.led}
        self._write(self._path(round_number), content)

    def prune(self, head_round: int) -> None:
        """Forget rounds long applied. The last few are kept, lest a state restored from an older checkpoint forgets."""
        for path in self._folder.glob(f"{self._prefix}*.json"):
            number = path.stem.removeprefix(self._prefix)
            if number.isdigit() and int(number) <= head_round - _KEEP_ROUNDS:
                path.unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{self._prefix}{round_number:012d}.json"

    def _read_abstained(self) -> int | None:
        path = self._folder / _OPENED
        try:
            content = _read(path) if path.exists() else {}
            number, self.is_unsure = content.get("abstained_round"), content.get("is_unsure") is True
        except (VoteFileDamaged, AttributeError):
            self._is_damaged = True  # `open` then abstains, as with a lost folder
            return None
        return number if isinstance(number, int) else None

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it meanwhile
        temporary = path.with_suffix(".tmp")
        body = canonical_json(content)
        with temporary.open("wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(self._folder)


def _read(path: Path) -> dict[str, Any]:
    try:
        digest, _, body = path.read_bytes().removesuffix(b"\n").partition(b"\n")
    except OSError as error:
        raise VoteFileDamaged(path, error.strerror or str(error)) from None
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise VoteFileDamaged(path, "its checksum does not match")
    return json.loads(body)
