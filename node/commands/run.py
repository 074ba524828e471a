"""``atoll run``: an operator makes, checks and signs a run spec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ...protocol.identity import Identity
from ...protocol.spec import Genesis
from ...protocol.spec_text import read_text
from ...training.config import TrainingConfig
from ...training.flat import FlatLayout
from ..errors import UserError
from . import amend
from .invite import invite
from .options import AsJson, Config, Folder, SpecFile, command_app, print_json, settings_for

app = command_app()
app.add_typer(amend.app, name="amend")
app.command("invite")(invite)


@app.callback()
def _run() -> None:
    """Make, check and sign run specs."""


@app.command()
def new(
    spec: SpecFile,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run.", show_default="the file's name")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="Last round; 0 is open-ended.")] = 0,
    roster: Annotated[
        list[str] | None,
        typer.Option("--roster", help="A first voter, repeatable.", show_default="your own"),
    ] = None,
    seed: Annotated[
        list[str] | None, typer.Option("--seed", help="Address to bootstrap from, repeatable.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, repeatable.", show_default=False)
    ] = None,
    folder: Folder = None,
    config: Config = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the spec of a new run, with comments, to be edited and signed."""
    from ..run_spec import new_run_text

    if spec.exists() and not force:
        raise UserError("file exists", str(spec), "choose another name, or replace it with --force", code="exists")
    peers = roster or [Identity.load_or_create(settings_for(folder, config).identity_path).peer_id]
    text = new_run_text(
        name=name or spec.stem, roster=peers, num_rounds=rounds, seeds=seed or [], settings=settings or []
    )
    _replace(spec, text)
    if as_json:
        print_json({"file": str(spec), "roster": peers})
    else:
        print(f"Wrote {spec}. Edit it, then: atoll run sign {spec}")


@app.command()
def sign(spec: SpecFile, folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """Sign a spec with your node's key, in place; comments are kept."""
    from ..run_spec import load_run_spec, sign_text

    identity = Identity.load_or_create(settings_for(folder, config).identity_path)
    _replace(spec, sign_text(read_text(spec), identity, str(spec)))
    run_id = load_run_spec(spec).genesis.run_id
    if as_json:
        print_json({"file": str(spec), "run_id": run_id, "signer": identity.peer_id})
    else:
        print(f"Signed by …{identity.peer_id[-5:]}. Run id: {run_id}")


@app.command()
def validate(spec: SpecFile, as_json: AsJson = False) -> None:
    """Check a spec as every node will: one line per mistake."""
    from ..run_spec import validate_file

    genesis, training, is_signed = validate_file(spec)
    summary = run_summary(genesis, training) | ({} if is_signed else {"run_id": None})
    if as_json:
        print_json({"file": str(spec), "valid": True, "signed": is_signed, **summary})
        return
    remedy = "" if is_signed else f", but not signed yet: atoll run sign {spec}"
    print(f"{spec} is valid{remedy}")
    print("\n".join(f"{key.replace('_', ' '):<14}{value or 'known when signed'}" for key, value in summary.items()))


@app.command()
def amendments(spec: SpecFile, folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the changes of a run's rules: those beside the spec, and those that this folder's node has learnt."""
    from ...protocol.changes import in_words
    from ..amendment_store import AmendmentStore
    from ..run_spec import load_run_spec

    run = load_run_spec(spec)
    known = AmendmentStore(settings_for(folder, config).folder).load(run.genesis).amendments
    found = known if len(known) > len(run.amendments) else run.amendments
    if as_json:
        print_json({"run_id": run.genesis.run_id, "amendments": [a.model_dump(mode="json") for a in found]})
        return
    for amendment in found:
        signers = ", ".join(f"…{signature.operator[-5:]}" for signature in amendment.signatures)
        what = in_words(amendment.change)
        print(f"{amendment.number:>4}  from round {amendment.from_round:<8}{what}  (signed by {signers})")
    if not found:
        print("none: the run goes by its spec")


def run_summary(genesis: Genesis, training: TrainingConfig) -> dict[str, Any]:
    """What a run is, in a few values for people."""
    model, inner, outer = training.model, training.inner, training.outer
    num_parameters = FlatLayout.of(model).num_elements
    return {
        "name": genesis.name,
        "run_id": genesis.run_id,
        "model": f"{num_parameters:,} parameters, {model.num_layers} layers",
        "data": training.data.source,
        "inner": f"{inner.optimizer}, {inner.num_steps} steps of {inner.batch_size} × {model.sequence_length} tokens",
        "outer": f"{outer.optimizer} {outer.lr:g}, momentum {outer.momentum:g}",
        "codec": genesis.exchange.codec,
        "rounds": genesis.stop.num_rounds or "open-ended",
        "first_roster": len(genesis.membership.roster),
    }


def _replace(path: Path, text: str) -> None:
    """Write all or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
