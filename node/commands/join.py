"""``atoll join``: take part in a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import EXIT_USAGE, UserError
from ..figures import bytes_text
from .options import AsJson, Config, Folder, SpecFile, command_app, settings_for

if TYPE_CHECKING:
    from ..run_spec import RunSpec
    from ..settings import NodeSettings

app = command_app()


def summary_lines(spec: RunSpec) -> list[str]:
    """What joining means, before anything is started. Traffic: at most twice the encoded update a
    round, and what audits cost on average."""
    from ...kernels.codec import codec

    genesis, model = spec.genesis, spec.training.model
    num_parameters = spec.layout.num_elements
    encoded_bytes = codec(genesis.exchange.codec).nbytes(num_parameters)
    traffic_bytes = (2 + genesis.trust.audited_share + 4 * genesis.trust.spot_checks) * encoded_bytes
    last = genesis.stop.num_rounds
    return [
        f"run      {genesis.name} ({genesis.run_id[:8]}…), signed by …{spec.signer[-5:]}",
        f"model    {num_parameters:,} parameters, {model.num_layers} layers; data {spec.training.data.source}",
        f"rounds   {f'ends after {last}' if last else 'open-ended'}, {spec.training.inner.num_steps} inner steps each",
        f"traffic  up to {bytes_text(traffic_bytes)} sent a round, as much received",
        "privacy  the run’s peers see your IP address and the name of your node; your data stay where they are",
    ]


def _confirm(spec: RunSpec) -> None:
    print("\n".join(summary_lines(spec)), file=sys.stderr)
    if not sys.stdin.isatty():
        raise UserError("nobody can answer", "no terminal", "add --yes", exit_code=EXIT_USAGE)
    typer.confirm("Join this run?", default=True, abort=True, err=True)


def _accept(invite: Path, settings: NodeSettings, run: RunSpec) -> None:
    """Keep an invite in the node's folder, after everything that can be known of it here has been checked."""
    import time

    from ...protocol.identity import Identity
    from ..amendment_store import AmendmentStore
    from ..invitation import accept

    rules = max((run.rules, AmendmentStore(settings.folder).load(run.genesis)), key=lambda r: len(r.amendments))
    me = Identity.load_or_create(settings.identity_path).peer_id
    accept(invite, settings.folder, rules, me, time.time())


@app.command()
def join(
    spec: SpecFile,
    folder: Folder = None,
    invite: Annotated[
        Path | None, typer.Option("--invite", help="File with your invite; the node keeps a copy.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name that others see.", show_default=False)] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.", show_default="all")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port for other peers.", show_default="a free one")] = None,
    direct_port: Annotated[
        str | None, typer.Option("--direct-port", help="TCP port for bulk data; off: libp2p only.", show_default="auto")
    ] = None,
    announce: Annotated[
        list[str] | None, typer.Option("--announce", help="Address that others reach this node at, repeatable.")
    ] = None,
    quic: Annotated[
        bool | None, typer.Option("--quic/--no-quic", help="Listen on QUIC too.", show_default="no")
    ] = None,
    behind_router: Annotated[
        bool | None,
        typer.Option("--behind-router/--not-behind-router", help="Go through relays.", show_default="measured"),
    ] = None,
    seed: Annotated[list[str] | None, typer.Option("--seed", help="Further address to try, repeatable.")] = None,
    max_upload: Annotated[float | None, typer.Option("--max-upload", help="Mbit/s.", show_default="no cap")] = None,
    max_download: Annotated[float | None, typer.Option("--max-download", help="Mbit/s.", show_default="no cap")] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads.", show_default="all")] = None,
    dashboard_host: Annotated[str | None, typer.Option("--dashboard-host", show_default="localhost")] = None,
    dashboard_port: Annotated[int | None, typer.Option("--dashboard-port", show_default="8790 or a free one")] = None,
    dashboard_token_file: Annotated[Path | None, typer.Option("--dashboard-token-file", show_default=False)] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take part in a run: checks its signature, says what it means, asks, and trains until stopped."""
    flags: dict[str, Any] = {
        "name": name,
        "listen_host": host,
        "listen_port": port,
        "direct_port": direct_port,
        "announce": announce,
        "quic": quic,
        "behind_router": behind_router,
        "seeds": seed,
        "max_upload_mbit_s": max_upload,
        "max_download_mbit_s": max_download,
        "device": device,
        "num_threads": threads,
        "dashboard_host": dashboard_host,
        "dashboard_port": dashboard_port,
        "dashboard_token_file": dashboard_token_file,
        "log_level": log_level,
    }
    settings = settings_for(folder, config, **flags)
    from ..run_spec import load_run_spec

    run = load_run_spec(spec)
    if invite is not None:
        _accept(invite, settings, run)
    if not yes:
        _confirm(run)
    from ..daemon import run_node

    raise typer.Exit(run_node(settings, spec, json_lines=as_json))
