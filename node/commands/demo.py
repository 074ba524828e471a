"""``atoll demo``: a swarm of real nodes on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AsJson, command_app

app = command_app()

_NUM_JSON_ROUNDS = 10


@app.command()
def demo(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="How many nodes.")] = 3,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="How many rounds.", show_default="until Ctrl-C; --json: 10")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a swarm on this machine and watch it train the built-in text; Ctrl-C ends all of it.

    With --json: no screen, one JSON line per committed round; exit code 0 only if all committed with equal hashes.
    """
    from ..demo import run_demo

    raise typer.Exit(run_demo(nodes, rounds or (_NUM_JSON_ROUNDS if as_json else 0), json_lines=as_json))
