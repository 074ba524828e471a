"""The table of attacks in docs/security.md: what each costs under each defence, mean and range over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _attacked_swarm import Setting
from _attackers import ADAPTIVE

BEGIN, END = "<!-- attacks: begin, written by `make attacks` -->", "<!-- attacks: end -->"
COLUMNS = {"off": "all off", "default": "default", "trimmed mean": "trimmed mean", "centred clip": "centred clip"}
RUINED = 1.0
"""A cost from which on its digits tell nothing: the loss has at least doubled."""


@dataclass
class Row:
    """An attack (None: an honest run) by a share of the members."""

    attack: str | None
    share: float
    speeds: tuple[int, ...]
    costs: dict[str, Sequence[float]]
    """Defence -> relative cost per seed."""

    @property
    def name(self) -> str:
        name = (self.attack or "none, all honest").replace("_", " ")
        name += " (adaptive)" if self.attack in ADAPTIVE else ""
        return name + (f", speeds {':'.join(map(str, self.speeds))}" if len(self.speeds) > 1 else "")


def entry(costs: Sequence[float], num_seeds: int) -> str:
    """Mean and range in percent; how many seeds, if there are fewer than ``num_seeds``."""
    if not costs:
        return ""
    if min(costs) >= RUINED:
        return "lost"
    mean = sum(costs) / len(costs)
    spread = f"{100 * min(costs):+.2f} … {100 * max(costs):+.2f}" if len(costs) > 1 else "one seed"
    missing = f", {len(costs)} seeds" if 1 < len(costs) < num_seeds else ""
    return f"{100 * mean:+.2f} ({spread}{missing})"


def markdown(rows: Sequence[Row], setting: Setting, num_seeds: int) -> str:
    """A line per attack and share, a column per defence."""
    lines = [
        f"{setting.num_peers} peers, {setting.num_rounds} rounds of {setting.num_steps} inner steps, "
        f"{num_seeds} seeds. Cost in percent: final validation loss over that of the clean run of the same seed "
        "without defences, less one; mean and range. Lost: the loss at least doubled.",
        "",
        f"| attack | malicious | {' | '.join(COLUMNS.values())} |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for row in rows:
        entries = " | ".join(entry(row.costs.get(defence, ()), num_seeds) for defence in COLUMNS)
        lines.append(f"| {row.name} | {row.share:.0%} | {entries} |")
    return "\n".join(lines) + "\n"


def write_table(path: Path, rows: Sequence[Row], setting: Setting, num_seeds: int) -> None:
    """Replace what is between the markers in ``path``."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{markdown(rows, setting, num_seeds)}{END}{after}")
