"""The invite that a node holds, in its folder: who may read the file may join in the node's place until it is used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol.amendments import RunRules
from ..protocol.doorkeeper import refusal
from ..protocol.durable import sync_folder
from ..protocol.identity import PeerId
from ..protocol.invites import MAX_FILE_BYTES, InviteFile, InviteRefused
from ..protocol.spec import Genesis
from ..protocol.standing import Standing
from ..protocol.tickets import Ticket
from .chain import Chain
from .errors import UserError

if TYPE_CHECKING:
    from .telemetry import Telemetry


def kept_in(folder: Path) -> Path:
    """Where a node keeps its invite."""
    return folder / "invite.json"


def read_invite(path: Path) -> InviteFile:
    """The invite of a file. Raises `UserError`."""
    try:
        with path.open("rb") as file:
            return InviteFile.parse(file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        raise UserError("invite", str(path), error.strerror or str(error), code="invite") from None
    except InviteRefused as error:
        raise UserError("invite", f"{path}: {error}", "get the file from the operator again", code="invite") from None


def write_invite(path: Path, file: InviteFile) -> None:
    """Keep an invite, readable by its owner only; all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(file.canonical() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def standing_in(folder: Path, rules: RunRules) -> Standing:
    """Where the run stands, as far as a node's folder knows."""
    path = folder / "chain.jsonl"
    return rules.standing(Chain(path).last if path.exists() else None)


def ticket_of(file: InviteFile, me: PeerId) -> Ticket:
    """What the node presents. Raises `UserError` if the invite is for another peer."""
    try:
        return file.ticket(me)
    except InviteRefused as error:
        todo = f"ask the operator for one for {me}, or use the key that it is for"
        raise UserError("invite", str(error), todo, code="invite") from None


def accept(path: Path, folder: Path, rules: RunRules, me: PeerId, now_unix_s: float) -> None:
    """Keep the invite of a file in the node's folder, if it can let ``me`` in. Raises `UserError` with the reason."""
    file = read_invite(path)
    ticket, standing = ticket_of(file, me), standing_in(folder, rules)
    why = refusal(rules.at(standing.round + 1), standing, me, ticket, now_unix_s)
    if why is not None:
        raise UserError("invite", f"{path}: {why}", "ask the operator for another one", code="invite")
    write_invite(kept_in(folder), file)


def own_ticket(folder: Path, me: PeerId) -> Ticket | None:
    """What the node of this folder presents; None if it has no invite. Raises `UserError` for one that is damaged."""
    path = kept_in(folder)
    return ticket_of(read_invite(path), me) if path.exists() else None


@dataclass
class Invitation:
    """A running node's invite, if it has one."""

    me: PeerId
    ticket: Ticket | None
    _why: str | None = None
    """Said last: why it does not let us in."""

    @classmethod
    def of(cls, folder: Path, me: PeerId) -> Invitation:
        """Raises `UserError` for one that is damaged, or for another peer."""
        return cls(me, own_ticket(folder, me))

    def look(self, telemetry: Telemetry, rules: Genesis, standing: Standing, now_unix_s: float) -> None:
        """Say why the invite does not let us in, as soon as the run has told us so much; once per reason."""
        why = None if self.ticket is None else refusal(rules, standing, self.me, self.ticket, now_unix_s)
        if why == self._why:
            return
        self._why = why
        if why is None:
            telemetry.clear_alert("invite")
        else:
            telemetry.alert("invite", why, fix="Ask the operator for another invite.", is_error=True)
