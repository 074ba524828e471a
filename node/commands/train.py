"""``atoll train``: the same training on this machine alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .options import AsJson, SpecFile, command_app, print_json

app = command_app()

_DEFAULT_NUM_ROUNDS = 10


def _report_lines(as_json: bool) -> Any:
    """Prints each evaluation and warning as it comes; steps are not printed."""

    def report(value: Any) -> None:
        if value.kind == "evaluation":
            loss = value.validation_loss if math.isfinite(value.validation_loss) else None
            line = {"event": "round", "round": value.round, "validation_loss": loss}
            print_json(line) if as_json else print(f"round {value.round:>4}  validation loss {loss}", flush=True)
        elif value.kind == "warned":
            typer.echo(f"atoll: warning: {value.text}", err=True)

    return report


@app.command()
def train(
    spec: SpecFile,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep checkpoints here and resume from them.", show_default=False)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds in all.", show_default="those of the spec, or 10")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a run on this machine alone: the same model, data, steps and outer method, without a swarm."""
    from ..run_spec import validate_file

    genesis, config, _ = validate_file(spec)
    num_rounds = rounds or genesis.stop.num_rounds or _DEFAULT_NUM_ROUNDS
    from ...training.alone import train_alone

    try:
        train_alone(
            config,
            folder,
            num_rounds,
            codec=genesis.exchange.codec,
            chunk_elements=genesis.exchange.chunk_elements,
            on_report=_report_lines(as_json),
            num_threads=threads,
            device=device,
        )
    except ValueError as error:
        where, _, todo = str(error).partition("; ")
        raise UserError("cannot train", where, todo or "correct the run spec", code="train") from None
