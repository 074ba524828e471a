"""Promises and votes on disk (S1): what a member has said in a round survives its process.

One JSON file per lineage, fragment and round, replaced atomically (written beside, fsynced, renamed, folder fsynced)
before the message that follows from it is sent, with a SHA-256 so that damage is noticed. A member that forgets a vote
can break the whole run, so whoever may have forgotten one abstains (`VoteStore.forgot`):

- in a round whose file cannot be read back;
- in a round before the newest one of which there is a file, if its own is missing: this member has moved past the round
  (its state is older than its votes now), so the round is decided and can only be learnt;
- with a folder without any file, as a newcomer's or after a lost disk, if the roster names it, until a commit shows
  that the rounds in which it may have spoken are over (`Abstention`). A founder that begins so in round 1, where every
  founder's folder is empty, abstains until the others have been asked (`recollection`), or such a commit is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .durable import sync_folder
from .identity import PeerId
from .messages import Accepted, Commit
from .parsing import canonical_json
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


@dataclass(frozen=True)
class Abstention:
    """Rounds in which a member does not vote that may have forgotten its votes."""

    since_round: int
    until_counted: bool
    """Whether it lasts until a commit holds a contribution that was made since (`is_alive_in`)."""

    def covers(self, round_number: int) -> bool:
        return round_number == self.since_round or (self.until_counted and round_number > self.since_round)


def abstention_at_open(next_round: int, roster_size: int, *, is_member: bool) -> Abstention | None:
    """How a node abstains that begins with an empty folder; None if it can have forgotten nothing.

    ``is_member``: the roster of ``next_round`` names it already. Past round 1 it has then lost its memory. The state
    that it has loaded may be older than the rounds in which it has voted, but a commit that holds what it contributes
    from now on is not: once it sees one, it votes in later rounds. In a pair, where the other may not be able to commit
    anything alone, it abstains in one round: the state can only be the other's, which is at most one behind.
    """
    return abstention_after_loss(next_round, roster_size) if is_member and next_round > 1 else None


def abstention_after_loss(next_round: int, roster_size: int) -> Abstention:
    """How a member abstains whose disk is lost, and which goes on from the state before ``next_round``."""
    return Abstention(next_round, until_counted=roster_size > 2)


def is_alive_in(commit: Commit, me: PeerId, life: int) -> bool:
    """Whether a commit averages a contribution that ``me`` has made in this ``life`` (`Member.life`)."""
    results = commit.record.results
    return any(
        (member.peer, member.life) == (me, life) and any(result.included[index] for result in results)
        for index, member in enumerate(commit.record.plan.members)
    )


def is_forgotten(round_number: int, rounds_on_disk: Iterable[int], abstention: Abstention | None) -> bool:
    """Whether a node may have said something in a round that its disk does not hold any more.

    ``rounds_on_disk``: those with promises or votes. Who has moved past a round has only its outcome to learn.
    """
    if abstention is not None and abstention.covers(round_number):
        return True
    known = set(rounds_on_disk)
    return round_number not in known and any(number > round_number for number in known)


class VoteStore:
    """The acceptor states of one node in a folder of its own. Blocking: call it off the event loop."""

    def __init__(self, folder: Path, lineage: int, fragment: int = 0) -> None:
        self._folder, self._fragment = folder, fragment
        self.begin_lineage(lineage)
        folder.mkdir(parents=True, exist_ok=True)
        self._is_damaged = False
        self.is_unsure = False
        """Whether a founder that began in round 1 may have spoken in an earlier life: it abstains until `recollect`."""
        self.opened_life = 0
        """The life in which the folder was empty."""
        self._abstention = self._read_abstention()

    def begin_lineage(self, lineage: int) -> None:
        """What was said in another lineage binds nobody in this one."""
        self._prefix = f"{lineage}-{self._fragment}-"

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever said from this folder."""
        return not any(self._folder.glob("*.json"))

    def open(self, next_round: int, roster: Collection[PeerId], me: PeerId, life: int) -> None:
        """Call once at start, with the roster of ``next_round``. ``life`` is `Mail.life`."""
        if not self.is_new and not self._is_damaged:
            return
        is_member = me in roster
        self._abstention = abstention_at_open(next_round, len(roster), is_member=is_member) or self._abstention
        self.is_unsure, self.opened_life = is_member and next_round == 1, life
        self._write_opened()

    def recollect(self, roster_size: int, *, has_forgotten: bool) -> None:
        """The others have answered: abstain as with any lost disk, or vote. Durable, like everything here."""
        self.is_unsure = False
        if has_forgotten:
            self._abstention = abstention_after_loss(1, roster_size)
        self._write_opened()

    @property
    def is_abstaining(self) -> bool:
        """Whether this node waits for a commit with a contribution of this life of its."""
        return self.is_unsure or (self._abstention is not None and self._abstention.until_counted)

    def end_abstention(self, round_number: int) -> None:
        """A commit (`is_alive_in`) of that round is applied: in the next ones nothing can be forgotten."""
        self.is_unsure, self._abstention = False, Abstention(round_number, until_counted=False)
        self._write_opened()

    def _write_opened(self) -> None:
        abstention = None if self._abstention is None else asdict(self._abstention)
        content = {"abstention": abstention, "is_unsure": self.is_unsure, "life": self.opened_life}
        self._write(self._folder / _OPENED, content)

    def forgot(self, round_number: int) -> bool:
        """Whether this node must not vote in the round."""
        if self.is_unsure or is_forgotten(round_number, self._rounds(), self._abstention):
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

    def _read_abstention(self) -> Abstention | None:
        path = self._folder / _OPENED
        try:
            if not path.exists():
                return None
            content: dict[str, Any] = _read(path)
            found, self.is_unsure = content["abstention"], content["is_unsure"] is True
            self.opened_life = int(content["life"])
            return None if found is None else Abstention(int(found["since_round"]), bool(found["until_counted"]))
        except (VoteFileDamaged, AttributeError, KeyError, TypeError, ValueError):
            self._is_damaged = True  # `open` then abstains, as with a lost folder
            return None

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
