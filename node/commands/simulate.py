"""``atoll simulate``: a run spec over a trace of peers and links, to choose settings before anybody trains."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, SpecFile, command_app, print_json

if TYPE_CHECKING:
    from ...protocol.simulator.aggregate import Topology
    from ...protocol.simulator.report import Report, RoundRow
    from ...protocol.simulator.scenario import Workload
    from ...protocol.simulator.steps import StepRuleName
    from ...protocol.spec import Genesis

app = command_app()

SILENT_S = 2.0
"""A run shorter than this shows no progress."""
TOPOLOGIES = ("flat", "two_tier", "gossip")
_PEERS_OF_THE_SPEC = re.compile(r"^(operators|roster|allowed|seeds) = \[[^\]]*\]", re.MULTILINE)


@app.command()
def simulate(
    spec: SpecFile,
    peers: Annotated[int, typer.Option("--peers", min=1, max=100_000, help="Number of peers.")] = 8,
    trace: Annotated[str, typer.Option("--trace", help="Peers, links and faults: a name, or a TOML file.")] = "homes",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed replays the same run.")] = 0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100_000, help="Rounds to commit.")] = 10,
    topology: Annotated[str, typer.Option("--topology", help="flat, two_tier or gossip.")] = "flat",
    group_size: Annotated[int, typer.Option("--group-size", min=2, max=1024, help="Peers of a two_tier group.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Play a run over a trace: the real decisions, virtual time, no training."""
    from ...protocol.simulator.aggregate import simulate_many
    from ...protocol.simulator.scenario import Scenario
    from ...protocol.simulator.traces import Trace
    from ..errors import EXIT_USAGE, UserError

    if topology not in TOPOLOGIES:
        todo = f"choose one of: {', '.join(TOPOLOGIES)}"
        raise UserError("unknown topology", topology, todo, code="usage", exit_code=EXIT_USAGE)
    genesis, workload, steps = _read(spec)
    chosen = Trace.load(trace)
    head = {"spec": str(spec), "trace": trace, "seed": seed}
    if topology != "flat":
        kind: Topology = "gossip" if topology == "gossip" else "two_tier"
        many = simulate_many(
            genesis,
            workload,
            chosen,
            topology=kind,
            num_peers=peers,
            num_rounds=rounds,
            group_size=group_size,
            seed=seed,
        )
        figures = {**head, **many.as_json()}
        print_json(figures) if as_json else print(_plain(figures))
        return
    scenario = Scenario(genesis, workload, chosen, num_peers=peers, seed=seed, steps=steps, on_round=_progress(rounds))
    report = scenario.run(rounds)
    if as_json:
        print_json({**head, **report.as_json()})
    else:
        print(_table(f"{genesis.name} over {trace}: {peers} peers, seed {seed}", report, rounds))


def _read(spec: Path) -> tuple[Genesis, Workload, StepRuleName]:
    """A spec, signed or not, whose own peers do not matter here. Raises `SpecError`."""
    from ...protocol.simulator.nodes import people
    from ...protocol.simulator.scenario import Workload
    from ...protocol.spec_text import read_text
    from ...training.flat import FlatLayout
    from ..run_spec import parse_unsigned

    (stand_in,) = people(1)
    empty = {"operators": f'["{stand_in}"]', "roster": f'["{stand_in}"]', "allowed": "[]", "seeds": "[]"}
    text = _PEERS_OF_THE_SPEC.sub(lambda found: f"{found[1]} = {empty[found[1]]}", read_text(spec))
    genesis, training = parse_unsigned(text, str(spec))
    inner = training.inner
    workload = Workload(
        num_parameters=FlatLayout.of(training.model).num_elements,
        num_steps=inner.num_steps,
        max_steps=inner.lease_steps,
        tokens_per_step=inner.batch_size * training.model.sequence_length,
        samples_per_step=inner.batch_size,
    )
    return genesis, workload, "budget" if inner.adaptive_steps else "fixed"


def _progress(num_rounds: int) -> Callable[[RoundRow], None]:
    """Says on standard error how far it is, once it takes longer than a moment."""
    shown_s = time.monotonic() + SILENT_S - 1.0

    def show(row: RoundRow) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= 1.0:
            shown_s = time.monotonic()
            print(f"round {row.round} of {num_rounds}", file=sys.stderr, flush=True)

    return show


def _table(title: str, report: Report, wanted: int) -> str:
    slowest_s = max((row.duration_s for row in report.rounds), default=0.0)
    lines = [
        title,
        f"commit rate     {report.commit_rate:7.1%}   {len(report.rounds)} of {wanted} rounds committed, "
        f"{report.num_aborted} given up",
        f"utilisation     {report.utilisation:7.1%}   of the time is spent on inner steps",
        f"throughput      {report.throughput:7.1%}   of what the peers could train without any exchange",
        f"round time      {report.round_s:6.1f} s   median; {slowest_s:.1f} s the slowest",
        f"sent            {_bytes(report.sent_bytes_per_peer_and_round):>8}   per peer and round; "
        f"{_bytes(report.largest_sent_bytes)} at most; {report.messages_per_peer_and_round:.0f} messages",
        *_exclusions(report),
        *(f"refused         {count:8}   messages by the rule {rule}" for rule, count in report.rejected.items()),
    ]
    return "\n".join(lines)


def _exclusions(report: Report) -> list[str]:
    found = sorted(report.exclusions().items(), key=lambda item: -sum(item[1].values()))
    lines = [f"left out        …{peer[-7:]}   {_reasons(reasons)}" for peer, reasons in found[:10]]
    return [*lines, f"                and {len(found) - 10} more (--json lists them)"] if len(found) > 10 else lines


def _reasons(reasons: dict[str, int]) -> str:
    return "; ".join(f"{count} × {why}" for why, count in reasons.items())


def _bytes(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def _plain(figures: dict[str, Any]) -> str:
    return "\n".join(f"{name.replace('_', ' '):<32}{_short(value)}" for name, value in figures.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
