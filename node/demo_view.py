"""What `atoll demo` shows people: on a terminal one live screen, elsewhere a line per fact as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .demo import DemoSwarm, RoundReport, collect_rounds
from .figures import bytes_text

_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_SPARKS = 40
_MAX_NODES = 8
_MAX_ROUNDS = 12
_NUM_FRAME_LINES = 8
"""Lines of the screen that are neither nodes nor rounds."""
_NODE_STARTS = "Starting this node."


def sparkline(values: list[float]) -> str:
    """One character per value, lowest to highest; of many values evenly chosen ones, first and last included."""
    if not values:
        return ""
    if len(values) > _MAX_SPARKS:
        values = [values[round(i * (len(values) - 1) / (_MAX_SPARKS - 1))] for i in range(_MAX_SPARKS)]
    low, high = min(values), max(values)
    return "".join(_SPARKS[int((value - low) / ((high - low) or 1.0) * (len(_SPARKS) - 1))] for value in values)


def num_nodes_text(num_nodes: int) -> str:
    return f"{num_nodes} node{'' if num_nodes == 1 else 's'}"


def say_start(num_nodes: int) -> None:
    """At once, since the first import takes seconds."""
    Console(highlight=False).print(
        f"Starting {num_nodes_text(num_nodes)} on this machine. Ctrl-C ends all of it.", soft_wrap=True
    )


def say_end(num_nodes: int) -> None:
    """After an interrupted demo, once everything has ended."""
    print(f"{num_nodes_text(num_nodes).capitalize()} ended; nothing is left running, their folders are removed.")


@dataclass
class _View:
    """What is known of the swarm; updated by events, rendered by rich."""

    console: Console
    names: list[str]
    num_rounds: int
    links: dict[str, str] = field(default_factory=dict[str, str])
    sentences: dict[str, str] = field(default_factory=dict[str, str])
    num_committed: int = 0
    num_different: int = 0
    """Rounds after which the nodes' state hashes differed."""
    losses: list[float] = field(default_factory=list[float])
    reports: deque[RoundReport] = field(default_factory=lambda: deque[RoundReport](maxlen=_MAX_ROUNDS))

    def observe(self, name: str, event: dict[str, Any]) -> None:
        """What a node says of itself."""
        match event.get("event"):
            case "dashboard":
                self.links[name] = event["url"]
            case "state":
                self.sentences[name] = event["sentence"]
            case _:
                pass

    def add(self, report: RoundReport) -> None:
        """A round that all nodes have applied."""
        self.reports.append(report)
        self.num_committed += 1
        self.num_different += not report.hashes_equal
        if report.validation_loss is not None:
            self.losses.append(report.validation_loss)

    def __rich__(self) -> Group:
        return Group(self._head(), "", self._nodes(), "", self._rounds(), self._foot())

    def _head(self) -> Text:
        link = self.links.get(self.names[0])
        if link is None:
            return Text("dashboard  its link appears here", style="dim")
        return Text.assemble(("dashboard  ", "bold"), (link, "bold cyan"))

    def _nodes(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("node", "now", "its dashboard"):
            table.add_column(title, no_wrap=True, overflow="ellipsis" if title == "now" else "fold")
        for name in self.names[:_MAX_NODES]:
            sentence = self.sentences.get(name, _NODE_STARTS)
            table.add_row(Text(name), Text(sentence), Text(self.links.get(name, ""), style="cyan"))
        if len(self.names) > _MAX_NODES:
            table.add_row("", Text(f"and {len(self.names) - _MAX_NODES} more", style="dim"), "")
        return table

    def _rounds(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("round", "validation loss", "seconds", "sent per node", "peers", "state hash"):
            table.add_column(title, justify="left" if title == "state hash" else "right", no_wrap=True)
        num_rows = max(3, self.console.height - min(len(self.names), _MAX_NODES) - _NUM_FRAME_LINES)
        for report in list(self.reports)[-num_rows:]:
            table.add_row(*_cells(report))
        return table

    def _foot(self) -> Text:
        end = f" of {self.num_rounds}" if self.num_rounds else ""
        done = f"{self.num_committed}{end} round{'' if self.num_committed == 1 else 's'} committed"
        fall = f"; validation loss {self.losses[0]:.3f} → {self.losses[-1]:.3f} nats/byte" if self.losses else ""
        return Text(f"{done}{fall}  {sparkline(self.losses)}", style="dim")

    def summary(self) -> str:
        """The last line of a demo that came to its end."""
        hashes = f"DIFFERENT after {self.num_different}" if self.num_different else "equal after each"
        return f"{self.num_committed} rounds committed, state hashes {hashes}."


def _cells(report: RoundReport) -> Iterable[str]:
    line = report.line()
    loss = line["validation_loss"]
    state_hash = next(iter(line["state_hash"].values()))
    return (
        str(line["round"]),
        "–" if loss is None else f"{loss:.3f}",
        f"{line['seconds']:.1f}",
        bytes_text(max(line["bytes_sent"].values())),
        str(len(line["participants"])),
        f"{state_hash[:4]}…{state_hash[-4:]} {'on all nodes' if line['hashes_equal'] else 'DIFFERENT'}",
    )


async def watch(swarm: DemoSwarm, num_rounds: int) -> int:
    """Show the swarm until its rounds are done, or until Ctrl-C where ``num_rounds`` is 0."""
    console = Console(highlight=False)
    view = _View(console, [node.name for node in swarm.nodes], num_rounds)
    try:
        await (_watch_screen if console.is_terminal else _watch_lines)(swarm, view)
    except asyncio.CancelledError:
        console.print(f"Ending {num_nodes_text(len(view.names))}.")
        raise
    console.print(view.summary())
    return 1 if view.num_different else 0


async def _watch_screen(swarm: DemoSwarm, view: _View) -> None:
    with Live(view, console=view.console, refresh_per_second=4):
        async for report in collect_rounds(swarm, view.num_rounds, view.observe):
            view.add(report)


async def _watch_lines(swarm: DemoSwarm, view: _View) -> None:
    """For a pipe or a file: nothing that overwrites itself."""

    def observe(name: str, event: dict[str, Any]) -> None:
        if event.get("event") == "dashboard":
            print(f"{name}: dashboard {event['url']}", flush=True)

    async for report in collect_rounds(swarm, view.num_rounds, observe):
        view.add(report)
        number, loss, seconds, sent, peers, state_hash = _cells(report)
        said = f"validation loss {loss}, {seconds} s, {sent} sent per node, {peers} peers, state {state_hash}"
        print(f"round {number}: {said}", flush=True)
