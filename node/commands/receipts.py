"""``atoll receipts``: what this node can prove to have given, and the check of what another one claims."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from ..figures import count_text, short_id
from .options import AsJson, Config, Folder, SpecFile, command_app, print_json, settings_for

if TYPE_CHECKING:
    from ...protocol.receipts import Given, Receipt

app = command_app()

Unsigned = Annotated[
    bool, typer.Option("--allow-lone", help="Accept receipts that nobody else has countersigned (a lone node's).")
]


@app.callback()
def _receipts() -> None:
    """Signed proofs of contribution."""


def _summary(given: Given) -> str:
    signers = ", ".join(f"…{short_id(peer)}" for peer in sorted(given.countersigners)) or "nobody"
    rounds = f"rounds {given.first_round} to {given.last_round}"
    return (
        f"…{short_id(given.peer)}: {given.num_receipts} receipts, {rounds}, {count_text(given.tokens)} tokens, "
        f"countersigned by {signers}"
    )


def _own(spec: Path, folder: Path | None, config: Path | None) -> tuple[str, list[Receipt]]:
    from ..journal import Journal
    from ..receipts import read_receipts
    from ..run_spec import load_run_spec

    settings, run_id = settings_for(folder, config), load_run_spec(spec).genesis.run_id
    if not settings.journal_path.exists():
        raise UserError("no receipts", str(settings.folder), "join a run first, or give the node's --folder")
    journal = Journal(settings.journal_path)
    try:
        return run_id, read_receipts(journal, run_id)
    finally:
        journal.close()


@app.command("list")
def list_receipts(spec: SpecFile, folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show what this node can prove to have given to a run."""
    from ...protocol.receipts import InvalidReceipt, check_chain

    run_id, receipts = _own(spec, folder, config)
    if as_json:
        for receipt in receipts:
            print_json(receipt.model_dump(mode="json"))
        return
    if not receipts:
        print("no receipts yet: one is written for every round that this node's contribution counted in")
        return
    try:
        print(_summary(check_chain(run_id, receipts)))
    except InvalidReceipt as error:
        raise UserError("receipts do not hold", str(error), "keep the journal; export what is before it") from None


@app.command()
def export(
    spec: SpecFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written; one receipt a line.", show_default=False)],
    folder: Folder = None,
    config: Config = None,
) -> None:
    """Write this node's receipts of a run to a file that anybody can verify."""
    _, receipts = _own(spec, folder, config)
    file.write_text("".join(receipt.canonical().decode() + "\n" for receipt in receipts))
    print(f"{len(receipts)} receipts in {file}", file=sys.stderr)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Exported receipts.", show_default=False)],
    spec: SpecFile,
    allow_lone: Unsigned = False,
    as_json: AsJson = False,
) -> None:
    """Check a file of receipts: signatures, order, countersignatures. Needs the run spec and no network."""
    from ...protocol.receipts import MAX_RECEIPT_BYTES, InvalidReceipt, check_chain, parse
    from ..run_spec import load_run_spec

    run_id = load_run_spec(spec).genesis.run_id
    try:
        with file.open(encoding="utf-8") as text:
            lines = iter(lambda: text.readline(MAX_RECEIPT_BYTES + 1), "")
            given = check_chain(run_id, (parse(line) for line in lines))
    except (InvalidReceipt, UnicodeDecodeError) as error:
        raise UserError("receipts do not hold", f"{file}: {error}", "ask for the file that the node exports") from None
    if given.num_lone and not allow_lone:
        what = f"{given.num_lone} of {given.num_receipts} receipts are countersigned by nobody"
        raise UserError(what, str(file), "they are the node's own word; accept them with --allow-lone")
    if as_json:
        print_json({**asdict(given), "countersigners": sorted(given.countersigners)})
    else:
        print(_summary(given))
