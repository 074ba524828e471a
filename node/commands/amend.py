"""``atoll run amend``: an operator changes the rules of a running run, one subcommand per kind of change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...protocol.identity import Identity, PeerId
from ..errors import UserError
from .options import AsJson, Config, Folder, SpecFile, command_app, print_json, settings_for

if TYPE_CHECKING:
    from ...protocol.amendments import Amendment, RunRules
    from ...protocol.changes import Change

app = command_app()

FromRound = Annotated[
    int | None,
    typer.Option("--from-round", min=1, help="First round that it holds for.", show_default="two after the last here"),
]
NodeFolder = Annotated[
    Path | None,
    typer.Option("--node", help="Folder of a node that spreads it.", show_default="the folder of your key"),
]
PeerIds = Annotated[list[str], typer.Argument(metavar="PEER…", help="Peer ids (atoll identity show).")]


@app.callback()
def _amend() -> None:
    """Change the rules of a run from a named round on. You sign; a node of yours spreads it to all others.

    What is signed is kept in SPEC.amendments, beside the spec: give it to others together with the spec.
    """


@app.command("learning-rate")
def learning_rate(
    spec: SpecFile,
    inner: Annotated[float | None, typer.Option("--inner", help="Of the inner optimizer.", show_default=False)] = None,
    outer: Annotated[float | None, typer.Option("--outer", help="Of the outer step.", show_default=False)] = None,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Another learning rate, on every node at exactly the same round."""
    if inner is None and outer is None:
        raise UserError("no learning rate", "", "give --inner, --outer or both", code="usage")
    _Signing(spec, folder, node, config, as_json).sign(_made("LearningRate", inner=inner, outer=outer), from_round)


@app.command()
def timing(
    spec: SpecFile,
    settings: Annotated[list[str], typer.Option("--set", help="name=seconds, of [timing]; repeatable.")],
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Other time limits."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Timing", values=_numbers(settings)), from_round)


@app.command()
def limits(
    spec: SpecFile,
    settings: Annotated[list[str], typer.Option("--set", help="name=number, of [limits]; repeatable.")],
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Other bounds on what a peer may be or declare."""
    values = {name: int(value) for name, value in _numbers(settings).items()}
    _Signing(spec, folder, node, config, as_json).sign(_made("Limits", values=values), from_round)


@app.command()
def seeds(
    spec: SpecFile,
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS…", help="/ip4/…/tcp/…/p2p/… of each seed.")],
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Other addresses to bootstrap from, in place of all former ones; nodes use them from their next start on."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Seeds", seeds=tuple(addresses)), from_round)


@app.command()
def pause(
    spec: SpecFile,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Hold no round from this one on; nodes stay connected and say why they wait."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Pause"), from_round)


@app.command()
def resume(
    spec: SpecFile,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Go on after a pause, by default with the round that was paused."""
    signing = _Signing(spec, folder, node, config, as_json)
    signing.sign(_made("Resume"), from_round or signing.paused_round)


@app.command()
def finish(
    spec: SpecFile,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """End the run with this round; every node keeps the last weights."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Finish"), from_round)


@app.command()
def ban(
    spec: SpecFile,
    peers: PeerIds,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Let peers in no more, and leave them out of the next roster."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Ban", peers=_peers(peers)), from_round)


@app.command()
def allow(
    spec: SpecFile,
    peers: PeerIds,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Let peers join a listed run; lifts a ban."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Allow", peers=_peers(peers)), from_round)


@app.command()
def keys(
    spec: SpecFile,
    operators: PeerIds,
    threshold: Annotated[int, typer.Option("--threshold", min=1, help="Signatures that an amendment needs.")] = 1,
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Other operators, in place of all former ones: they sign every amendment after this one."""
    change = _made("Keys", operators=_peers(operators), threshold=threshold)
    _Signing(spec, folder, node, config, as_json).sign(change, from_round)


@app.command()
def upgrade(
    spec: SpecFile,
    protocol_version: Annotated[int, typer.Argument(min=2, help="Protocol that a node must speak.")],
    from_round: FromRound = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Go on with another protocol: a node that does not speak it stops before the round, its state untouched."""
    _Signing(spec, folder, node, config, as_json).sign(_made("Upgrade", protocol_version=protocol_version), from_round)


ToRound = Annotated[int, typer.Option("--to-round", min=0, help="Round whose state the run goes on from.")]
NewRoster = Annotated[
    list[str] | None,
    typer.Option("--roster", help="A voter of the next round, repeatable.", show_default="those that the round named"),
]


@app.command()
def rollback(
    spec: SpecFile,
    to_round: ToRound,
    roster: NewRoster = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Go on from an earlier round, in a new lineage: what was committed later is forgotten by all."""
    _Signing(spec, folder, node, config, as_json).fork(to_round, roster, is_reset=False)


@app.command()
def reset(
    spec: SpecFile,
    to_round: ToRound,
    roster: NewRoster = None,
    folder: Folder = None,
    node: NodeFolder = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Go on with other voters, after a quorum was lost for good."""
    _Signing(spec, folder, node, config, as_json).fork(to_round, roster, is_reset=True)


@app.command("sign")
def sign_last(
    spec: SpecFile, folder: Folder = None, node: NodeFolder = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Add your signature to the last amendment in SPEC.amendments, where a run needs those of several operators."""
    _Signing(spec, folder, node, config, as_json).cosign()


# --- how --------------------------------------------------------------------------------------------------------------


def _made(kind: str, **values: object) -> Change:
    """A change of one kind (a class of `protocol.changes`). Raises `UserError` for values that it cannot have."""
    from pydantic import ValidationError

    from ...protocol import changes

    try:
        return getattr(changes, kind)(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or kind.lower()
        raise UserError(where, fault["msg"], "correct it and try again", code="usage") from None


def _peers(texts: list[str]) -> tuple[PeerId, ...]:
    from ...protocol.identity import public_key_of

    for text in texts:
        try:
            public_key_of(text)
        except ValueError as error:
            raise UserError("peer id", str(error), "copy it from: atoll identity show", code="usage") from None
    return tuple(map(PeerId, texts))


def _numbers(settings: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            values[name.strip()] = float(text)
        except ValueError:
            raise UserError("not name=number", setting, "for example --set ready_grace_s=20", code="usage") from None
    return values


class _Signing:
    """One operator at work on one run: what is known of it here, and where a new amendment goes."""

    def __init__(self, spec: Path, folder: Path | None, node: Path | None, config: Path | None, as_json: bool) -> None:
        from ..amendment_store import AmendmentStore, read_companion
        from ..run_spec import load_run_spec

        self._spec, self._as_json = spec, as_json
        settings = settings_for(folder, config)
        self._identity, self._folder = Identity.load_or_create(settings.identity_path), node or settings.folder
        self._store = AmendmentStore(self._folder)
        run = load_run_spec(spec)
        beside, own = run.rules, self._store.load(run.genesis)
        self._rules = own if len(own.amendments) > len(beside.amendments) else beside
        whole = read_companion(spec)
        self._partial = next(iter(whole[len(self._rules.amendments) :]), None)

    @property
    def _next_round(self) -> int:
        """The round that this folder's node works on; 1 if there is none."""
        return len(self._chain()) + 1

    @property
    def paused_round(self) -> int | None:
        """Where the last pause begins."""
        return next((a.from_round for a in reversed(self._rules.amendments) if a.change.kind == "pause"), None)

    def _chain(self) -> list[object]:
        path = self._folder / "chain.jsonl"
        return list(path.read_bytes().splitlines()) if path.exists() else []

    def sign(self, change: Change, from_round: int | None) -> None:
        """Sign an amendment with ``change``, keep it beside the spec and give it to this folder's node."""
        from ...protocol.changes import Resume

        number = from_round or self._next_round + 1
        amendment = self._rules.next(change, number)
        is_late = number < self._next_round and not isinstance(change, Resume)
        if is_late:
            todo = f"choose a later one: this folder's node works on round {self._next_round}"
            raise UserError("round is past", str(number), todo, code="round_past")
        self._finish(amendment.signed(self._identity))

    def fork(self, to_round: int, roster: list[str] | None, *, is_reset: bool) -> None:
        """Sign a new lineage from a round that this folder's node has."""
        from ..lineage_start import change_for

        peers = _peers(roster) if roster else None
        change = change_for(self._folder, self._rules, to_round, peers, is_reset=is_reset)
        self._finish(self._rules.next(change, to_round + 1).signed(self._identity))

    def cosign(self) -> None:
        if self._partial is None:
            todo = "nothing waits for a signature in the file beside the spec"
            raise UserError("no amendment to sign", str(self._spec), todo, code="nothing_to_sign")
        self._finish(self._partial.signed(self._identity))

    def _finish(self, amendment: Amendment) -> None:
        from ...protocol.amendments import InvalidAmendment
        from ..amendment_store import companion, write_companion

        rules: RunRules | None = None
        try:
            if not self._rules.is_partial(amendment):
                self._rules.check_new(amendment, amendment.from_round, self._roster())
                rules = self._rules.extended([amendment])
        except InvalidAmendment as error:
            raise UserError("amendment", str(error), "correct it and sign again", code="amendment") from None
        write_companion(self._spec, [*self._rules.amendments, amendment])
        if rules is not None:
            self._store.submit(rules.amendments)
        self._say(amendment, companion(self._spec), is_complete=rules is not None)

    def _roster(self) -> tuple[PeerId, ...]:
        """Who votes on the next round, as far as this folder knows."""
        from ..chain import Chain

        path = self._folder / "chain.jsonl"
        last = Chain(path).last if path.exists() else None
        return self._rules.standing(last).roster

    def _say(self, amendment: Amendment, path: Path, *, is_complete: bool) -> None:
        from ...protocol.changes import in_words

        num_signed, needed = len(amendment.signatures), self._rules.threshold
        if self._as_json:
            print_json({"file": str(path), "complete": is_complete, **amendment.model_dump(mode="json")})
            return
        print(f"Amendment {amendment.number}, from round {amendment.from_round}: {in_words(amendment.change)}")
        if is_complete:
            print(f"Signed; in {path}. The node in {self._folder} spreads it, now or when it starts.")
        else:
            print(f"{num_signed} of {needed} signatures; send {path} to another operator: atoll run amend sign SPEC")
