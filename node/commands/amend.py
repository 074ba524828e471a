"""``atoll run amend``: an operator changes the rules of a running run, one subcommand per kind of change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ...protocol.identity import Identity, PeerId
from ..errors import UserError
from .options import AsJson, Config, Folder, SpecFile, command_app, print_json, settings_for

if TYPE_CHECKING:
    from ...protocol.changes import Change
    from ..signing import Signed, Signing

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
ToRound = Annotated[int, typer.Option("--to-round", min=0, help="Round whose state the run goes on from.")]
NewRoster = Annotated[
    list[str] | None,
    typer.Option("--roster", help="A voter of the next round, repeatable.", show_default="those that the round named"),
]


@app.callback()
def _amend() -> None:
    """Change the rules of a run from a named round on. You sign; a node of yours spreads it to all others.

    What is signed is kept in SPEC.amendments, beside the spec: give it to others together with the spec.
    """


def _signs(work: Callable[..., Signed]) -> Callable[..., None]:
    """Makes a command's function of ``work``: the spec and the options that all amendments share make its `Signing`."""

    def command(
        spec: SpecFile,
        folder: Folder = None,
        node: NodeFolder = None,
        config: Config = None,
        as_json: AsJson = False,
        **own: Any,
    ) -> None:
        from ..signing import Signing

        settings = settings_for(folder, config)
        identity = Identity.load_or_create(settings.identity_path)
        _say(work(Signing(spec, identity, node or settings.folder), **own), spec, as_json=as_json)

    command.__name__, command.__doc__ = work.__name__, work.__doc__
    _show_options(command, work)
    return command


def _show_options(command: Callable[..., None], work: Callable[..., Signed]) -> None:
    """Typer reads a command's options from its signature: those of ``work`` come after the spec."""
    hints = get_type_hints(work, localns={"Signing": object, "Signed": object}, include_extras=True)
    _, *own = (each.replace(annotation=hints[each.name]) for each in inspect.signature(work).parameters.values())
    spec, *shared, _ = inspect.signature(command, eval_str=True).parameters.values()
    command.__signature__ = inspect.Signature([spec, *own, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {}  # what the signature says


@app.command("learning-rate")
@_signs
def learning_rate(
    signing: Signing,
    inner: Annotated[float | None, typer.Option("--inner", help="Of the inner optimizer.", show_default=False)] = None,
    outer: Annotated[float | None, typer.Option("--outer", help="Of the outer step.", show_default=False)] = None,
    from_round: FromRound = None,
) -> Signed:
    """Another learning rate, on every node at exactly the same round."""
    if inner is None and outer is None:
        raise UserError("no learning rate", "", "give --inner, --outer or both", code="usage")
    return signing.sign(_made("LearningRate", inner=inner, outer=outer), from_round)


@app.command()
@_signs
def timing(
    signing: Signing,
    settings: Annotated[list[str], typer.Option("--set", help="name=seconds, of [timing]; repeatable.")],
    from_round: FromRound = None,
) -> Signed:
    """Other time limits."""
    return signing.sign(_made("Timing", values=_numbers(settings)), from_round)


@app.command()
@_signs
def limits(
    signing: Signing,
    settings: Annotated[list[str], typer.Option("--set", help="name=number, of [limits]; repeatable.")],
    from_round: FromRound = None,
) -> Signed:
    """Other bounds on what a peer may be or declare."""
    values = {name: int(value) for name, value in _numbers(settings).items()}
    return signing.sign(_made("Limits", values=values), from_round)


@app.command()
@_signs
def seeds(
    signing: Signing,
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS…", help="/ip4/…/tcp/…/p2p/… of each seed.")],
    from_round: FromRound = None,
) -> Signed:
    """Other addresses to bootstrap from, in place of all former ones; nodes use them from their next start on."""
    return signing.sign(_made("Seeds", seeds=tuple(addresses)), from_round)


@app.command()
@_signs
def pause(signing: Signing, from_round: FromRound = None) -> Signed:
    """Hold no round from this one on; nodes stay connected and say why they wait."""
    return signing.sign(_made("Pause"), from_round)


@app.command()
@_signs
def resume(signing: Signing, from_round: FromRound = None) -> Signed:
    """Go on after a pause, by default with the round that was paused."""
    return signing.sign(_made("Resume"), from_round or signing.paused_round)


@app.command()
@_signs
def finish(signing: Signing, from_round: FromRound = None) -> Signed:
    """End the run with this round; every node keeps the last weights."""
    return signing.sign(_made("Finish"), from_round)


@app.command()
@_signs
def ban(signing: Signing, peers: PeerIds, from_round: FromRound = None) -> Signed:
    """Let peers in no more, and leave them out of the next roster."""
    return signing.sign(_made("Ban", peers=_peers(peers)), from_round)


@app.command()
@_signs
def allow(signing: Signing, peers: PeerIds, from_round: FromRound = None) -> Signed:
    """Let peers join a listed run; lifts a ban."""
    return signing.sign(_made("Allow", peers=_peers(peers)), from_round)


@app.command()
@_signs
def keys(
    signing: Signing,
    operators: PeerIds,
    threshold: Annotated[int, typer.Option("--threshold", min=1, help="Signatures that an amendment needs.")] = 1,
    from_round: FromRound = None,
) -> Signed:
    """Other operators, in place of all former ones: they sign every amendment after this one."""
    return signing.sign(_made("Keys", operators=_peers(operators), threshold=threshold), from_round)


@app.command()
@_signs
def upgrade(
    signing: Signing,
    protocol_version: Annotated[int, typer.Argument(min=2, help="Protocol that a node must speak.")],
    from_round: FromRound = None,
) -> Signed:
    """Go on with another protocol: a node that does not speak it stops before the round, its state untouched."""
    return signing.sign(_made("Upgrade", protocol_version=protocol_version), from_round)


@app.command()
@_signs
def rollback(signing: Signing, to_round: ToRound, roster: NewRoster = None) -> Signed:
    """Go on from an earlier round, in a new lineage: what was committed later is forgotten by all."""
    return signing.fork(to_round, _peers(roster) if roster else None, is_reset=False)


@app.command()
@_signs
def reset(signing: Signing, to_round: ToRound, roster: NewRoster = None) -> Signed:
    """Go on with other voters, after a quorum was lost for good."""
    return signing.fork(to_round, _peers(roster) if roster else None, is_reset=True)


@app.command("sign")
@_signs
def sign_last(signing: Signing) -> Signed:
    """Add your signature to the last amendment in SPEC.amendments, where a run needs those of several operators."""
    return signing.cosign()


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


def _say(signed: Signed, spec: Path, *, as_json: bool) -> None:
    from ...protocol.changes import in_words
    from ..amendment_store import companion

    amendment, path = signed.amendment, companion(spec)
    if as_json:
        print_json({"file": str(path), "complete": signed.is_complete, **amendment.model_dump(mode="json")})
        return
    print(f"Amendment {amendment.number}, from round {amendment.from_round}: {in_words(amendment.change)}")
    if signed.is_complete:
        print(f"Signed; in {path}. The node in {signed.folder} spreads it, now or when it starts.")
    else:
        so_far = f"{len(amendment.signatures)} of {signed.num_needed} signatures"
        print(f"{so_far}; send {path} to another operator: atoll run amend sign SPEC")
