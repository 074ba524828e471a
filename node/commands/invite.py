"""``atoll run invite``: an operator lets somebody join who is not listed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...protocol.identity import Identity, PeerId
from ..errors import UserError
from .options import AsJson, Config, Folder, SpecFile, print_json, settings_for

if TYPE_CHECKING:
    from ...protocol.invites import InviteFile
    from ...protocol.spec import Genesis

_DAY_S = 86_400.0
_DEFAULT_DAYS = 7.0


def invite(
    spec: SpecFile,
    owner: Annotated[str, typer.Option("--owner", help="Whose peers they are: a name for the operator.")],
    out: Annotated[Path, typer.Option("--out", help="File to write and to hand over.")],
    peer: Annotated[
        str | None, typer.Option("--peer", help="The only peer that may use it.", show_default="whoever has the file")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="It holds for so many rounds from now.", show_default=False)
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", min=0, help="It holds for so long.", show_default="7, unless --rounds")
    ] = None,
    folder: Folder = None,
    node: Annotated[
        Path | None,
        typer.Option("--node", help="Folder of a node that knows the round.", show_default="the folder of your key"),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Sign an invite: a file by which somebody who is not listed may join, once, until it expires."""
    from ...protocol.amendments import RunRules
    from ..amendment_store import AmendmentStore
    from ..invitation import standing_in, write_invite
    from ..run_spec import load_run_spec

    if out.exists():
        raise UserError("file exists", str(out), "choose another name", code="exists")
    settings = settings_for(folder, config)
    identity, place = Identity.load_or_create(settings.identity_path), node or settings.folder
    run = load_run_spec(spec)
    known: RunRules = max((run.rules, AmendmentStore(place).load(run.genesis)), key=lambda r: len(r.amendments))
    last_round = standing_in(place, known).round
    rules = known.at(last_round + 1)
    _check_may_invite(rules, identity.peer_id, spec)
    days = _DEFAULT_DAYS if rounds is None and days is None else days
    until_round = None if rounds is None else last_round + rounds
    until_unix_s = None if days is None else time.time() + days * _DAY_S
    file = _signed(identity, rules, owner, peer, until_round, until_unix_s)
    write_invite(out, file)
    _say(out, file, as_json=as_json)


def _check_may_invite(rules: Genesis, me: PeerId, spec: Path) -> None:
    if rules.membership.mode != "invite":
        todo = f'membership.mode is "{rules.membership.mode}"; a run with mode = "invite" takes them'
        raise UserError("this run takes no invites", str(spec), todo, code="no_invites")
    if me not in rules.operators and me not in rules.membership.inviters:
        todo = "sign with the --folder of an operator's key"
        raise UserError("you may not invite", f"{me} is neither an operator nor an inviter", todo, code="not_operator")


def _signed(
    identity: Identity,
    rules: Genesis,
    owner: str,
    peer: str | None,
    until_round: int | None,
    until_unix_s: float | None,
) -> InviteFile:
    import secrets

    from pydantic import ValidationError

    from ...protocol.identity import public_key_of
    from ...protocol.invites import InviteFile, make

    secret = secrets.token_bytes(32)
    try:
        if peer is not None:
            public_key_of(peer)
        signed = make(
            identity,
            run_id=rules.run_id,
            owner=owner,
            bearer=Identity.from_seed(secret).peer_id if peer is None else PeerId(peer),
            until_round=until_round,
            until_unix_s=until_unix_s,
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"--{where}", fault["msg"], "correct it and try again", code="usage") from None
    except ValueError as error:
        raise UserError("--peer", str(error), "copy it from: atoll identity show", code="usage") from None
    return InviteFile(invite=signed, secret=secret.hex() if peer is None else None)


def _say(path: Path, file: InviteFile, *, as_json: bool) -> None:
    invite = file.invite
    if as_json:
        print_json({"file": str(path), **invite.model_dump(mode="json")})
        return
    whom = f"…{invite.bearer[-5:]} only" if file.secret is None else "whoever holds the file, once: send it in private"
    parts = [] if invite.until_round is None else [f"until round {invite.until_round}"]
    if invite.until_unix_s is not None:
        parts.append(time.strftime("until %Y-%m-%d %H:%M UTC", time.gmtime(invite.until_unix_s)))
    print(f"Invite for {invite.owner}, {' and '.join(parts)}; for {whom}.")
    print(f"Wrote {path}. To use it: atoll join SPEC --invite {path}")
