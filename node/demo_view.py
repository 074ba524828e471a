"""The live terminal view of `atoll demo`: a table of rounds, one line per node, and the dashboard links."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .demo import DemoSwarm, RoundReport, collect_rounds

_SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """One character per value, lowest to highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return "".join(_SPARKS[int((value - low) / ((high - low) or 1.0) * (len(_SPARKS) - 1))] for value in values)


@dataclass
class _View:
    """What the screen shows; updated by events, rendered by rich."""

    num_rounds: int
    links: dict[str, str] = field(default_factory=dict[str, str])
    sentences: dict[str, str] = field(default_factory=dict[str, str])
    reports: list[RoundReport] = field(default_factory=list[RoundReport])

    def observe(self, name: str, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "dashboard":
                self.links[name] = event["url"]
            case "state":
                self.sentences[name] = event["sentence"]
            case _:
                pass

    def __rich__(self) -> Group:
        return Group(self._nodes(), self._rounds(), self._foot())

    def _nodes(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("node", "now", "dashboard"):
            table.add_column(title, no_wrap=title != "now")
        for name in sorted(set(self.links) | set(self.sentences)):
            table.add_row(Text(name), Text(self.sentences.get(name, "")), Text(self.links.get(name, ""), style="cyan"))
        return table

    def _rounds(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("round", "validation loss", "seconds", "sent per node", "peers", "state hash"):
            table.add_column(title, justify="right")
        for report in self.reports[-12:]:
            line = report.line()
            loss = line["validation_loss"]
            state_hash = next(iter(line["state_hash"].values()))
            sent = max(line["bytes_sent"].values())
            table.add_row(
                str(line["round"]),
                "–" if loss is None else f"{loss:.3f}",
                f"{line['seconds']:.1f}",
                f"{sent / 1e3:.0f} kB",
                str(len(line["participants"])),
                f"{state_hash[:4]}…{state_hash[-4:]} {'equal' if line['hashes_equal'] else 'DIFFERENT'}",
            )
        return table

    def _foot(self) -> Text:
        losses = [loss for report in self.reports if (loss := report.line()["validation_loss"]) is not None]
        done = f"{len(self.reports)} of {self.num_rounds} rounds committed"
        return Text(f"{done}  {sparkline(losses)}  Ctrl-C ends every node.", style="dim")


async def watch(swarm: DemoSwarm, num_rounds: int) -> int:
    """Show the swarm until its rounds are done, and, on a terminal, go on serving the dashboards until Ctrl-C."""
    view = _View(num_rounds)
    console = Console()
    with Live(view, console=console, refresh_per_second=4):
        async for report in collect_rounds(swarm, num_rounds, view.observe):
            view.reports.append(report)
    all_equal = all(report.hashes_equal for report in view.reports)
    console.print(f"{len(view.reports)} rounds committed, state hashes {'equal' if all_equal else 'DIFFERENT'}.")
    if sys.stdout.isatty():
        console.print("The dashboards stay up. Ctrl-C ends every node.")
        await asyncio.Event().wait()
    return 0 if all_equal else 1
