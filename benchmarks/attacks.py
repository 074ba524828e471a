"""What poisoned contributions cost: real training of ten peers in one process, attacked and not, defended and not.

Prints a JSON line per cell and seed: the final validation loss against that of the clean run of the same seed without
any defence. `python benchmarks/attacks.py --help` for the choices; `make attacks` for the table of docs/security.md.
With ``--results`` finished cells are kept in a file, and skipped when the same is asked for again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from _attack_table import Row, write_table
from _attacked_swarm import NO_DEFENCE, Setting, Swarm
from _attackers import ADAPTIVE, ATTACKS
from _figures import report

from atoll.kernels.codec import NonFiniteError
from atoll.protocol.spec import TrustConfig

UNTRAINED = math.log(256)
"""Loss of knowing nothing: what a run that is lost counts as."""
THREE_SHARES = ("sign_flip", "noise", "label_flip")
UNDER_EVERY_RULE = (
    None, "sign_flip", "flipped_times_1000", "noise", "colluding_noise", "label_flip", "alie", "inner_product",
    "camouflage",
)  # fmt: skip
DEFENCES = {
    "off": NO_DEFENCE,
    "default": TrustConfig(),
    "trimmed mean": TrustConfig(aggregation="trimmed_mean"),
    "centred clip": TrustConfig(aggregation="centred_clip"),
}


@dataclass(frozen=True)
class Cell:
    """One entry of the table."""

    attack: str | None
    share: float
    trust: TrustConfig
    setting: Setting = field(default_factory=Setting)

    def swarm(self, seed: int) -> Swarm:
        num_malicious = math.ceil(self.share * self.setting.num_peers)
        return Swarm(self.setting, self.trust, self.attack, num_malicious, seed)

    def key(self, seed: int) -> str:
        """Everything that the figure follows from, but the code."""
        what = {"attack": self.attack, "share": self.share, "trust": self.trust.model_dump(), "seed": seed}
        return json.dumps(what | asdict(self.setting), sort_keys=True)

    @property
    def clean(self) -> Cell:
        """What it is compared with."""
        return Cell(None, 0.0, NO_DEFENCE, self.setting)

    @property
    def defence(self) -> str:
        named = {trust: name for name, trust in DEFENCES.items()}
        return named.get(self.trust, f"{self.trust.aggregation}, clip {self.trust.clip_factor}")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended with one seed."""

    loss: float
    refused: Mapping[str, float]
    honest_left_out: int

    @classmethod
    def of(cls, swarm: Swarm) -> Outcome:
        try:
            loss = swarm.run()
        except NonFiniteError:
            loss = UNTRAINED
        return cls(
            loss, {rule: round(count, 1) for rule, count in swarm.num_refused.items()}, swarm.num_honest_left_out
        )


@dataclass
class Results:
    """Outcomes by `Cell.key`, in memory and, line by line, in a file, whose last line on a cell counts."""

    path: Path | None = None
    known: dict[str, Outcome] = field(default_factory=dict[str, Outcome])

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                entry = json.loads(line)
                key = entry.pop("key")
                self.known[key] = Outcome(**entry)

    def forget(self, attacks: Iterable[str]) -> None:
        """Measure these again."""
        unwanted = set(attacks)
        self.known = {key: each for key, each in self.known.items() if json.loads(key)["attack"] not in unwanted}

    def has(self, cell: Cell, seed: int) -> bool:
        """Whether the cost of a cell needs no measuring."""
        return {cell.key(seed), cell.clean.key(seed)} <= self.known.keys()

    def of(self, cell: Cell, seed: int) -> Outcome:
        """Measured now, if it is not known."""
        key = cell.key(seed)
        if key not in self.known:
            self.known[key] = outcome = Outcome.of(cell.swarm(seed))
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps({"key": key} | asdict(outcome)) + "\n")
        return self.known[key]

    def cost(self, cell: Cell, seed: int) -> float:
        """Report a cell and return what it costs: loss over that of the clean run of the same seed, less one."""
        outcome, clean = self.of(cell, seed), self.of(cell.clean, seed).loss
        report(
            "attacks.final_loss",
            outcome.loss,
            "nats/byte",
            reference=clean,
            seed=seed,
            attack=cell.attack or "none",
            malicious_share=cell.share,
            defence=cell.defence,
            cost_percent=round(100 * (outcome.loss / clean - 1), 2),
            adaptive=cell.attack in ADAPTIVE,
            refused=outcome.refused,
            honest_left_out=outcome.honest_left_out,
            speeds=cell.setting.speeds,
        )
        return outcome.loss / clean - 1


def table(setting: Setting) -> Iterator[Cell]:
    """Honest runs, with equal and with unequal speeds, and every attack at 20 %, three at 10 and 30 % too, without and
    with the defences; some also under the other rules of aggregation."""
    unequal = Setting(**{**vars(setting), "speeds": (1, 2, 4, 6), "num_rounds": setting.num_rounds // 2})
    for trust in list(DEFENCES.values())[1:]:
        yield from (Cell(None, 0.0, trust, each) for each in (setting, unequal))
    for attack in ATTACKS:
        for share in (0.1, 0.2, 0.3) if attack in THREE_SHARES else (0.2,):
            wanted = 4 if attack in UNDER_EVERY_RULE and share == 0.2 else 2
            yield from (Cell(attack, share, trust, setting) for trust in list(DEFENCES.values())[:wanted])


def rows_of(costs: Mapping[Cell, Sequence[float]]) -> list[Row]:
    """Cells that differ only in the defence, side by side."""
    rows: dict[tuple[Any, ...], Row] = {}
    for cell, each in costs.items():
        key = (cell.attack, cell.share, cell.setting)
        row = rows.setdefault(key, Row(cell.attack, cell.share, cell.setting.speeds, {}))
        row.costs[cell.defence] = each
    return list(rows.values())


def measure(
    cells: Iterable[Cell], seeds: Sequence[int], results: Results, *, finished_only: bool
) -> dict[Cell, list[float]]:
    """Cost per cell and seed; the default against nothing first, so that a table can be read early.

    ``finished_only``: only of what is known, perhaps of fewer seeds.
    """
    costs: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for cell in sorted(costs, key=lambda cell: cell.defence not in ("off", "default")):
        wanted = (seed for seed in seeds if not finished_only or results.has(cell, seed))
        costs[cell] += [results.cost(cell, seed) for seed in wanted]
    return costs


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="*", choices=["none", *ATTACKS], help="only these (default: the table)")
    parser.add_argument("--defence", choices=DEFENCES, default="default", help="with --attacks: under this one")
    parser.add_argument("--clip", type=float, help="with --attacks: another clip than the default")
    parser.add_argument("--share", type=float, default=0.2, help="with --attacks: of malicious peers")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=Setting().num_rounds)
    parser.add_argument("--steps", type=int, default=Setting().num_steps)
    parser.add_argument("--speeds", type=int, nargs="+", default=[1])
    parser.add_argument("--results", type=Path, help="file of finished cells, which are not measured again")
    parser.add_argument("--finished", action="store_true", help="only what is in the results, nothing is measured")
    parser.add_argument("--again", nargs="*", choices=list(ATTACKS), default=[], help="measure these again")
    parser.add_argument("--document", type=Path, help="Markdown file whose table of attacks is written anew")
    return parser


def chosen(options: argparse.Namespace, setting: Setting) -> list[Cell]:
    """The cells that the command line asks for."""
    if not options.attacks:
        return list(table(setting))
    trust = DEFENCES[options.defence]
    if options.clip is not None:
        trust = trust.model_copy(update={"clip_factor": options.clip})
    names = [None if name == "none" else name for name in options.attacks]
    return [Cell(name, options.share if name else 0.0, trust, setting) for name in names]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    setting = Setting(num_rounds=options.rounds, num_steps=options.steps, speeds=tuple(options.speeds))
    results = Results(options.results)
    results.forget(options.again)
    costs = measure(chosen(options, setting), range(options.seeds), results, finished_only=options.finished)
    if options.document is not None:
        write_table(options.document, rows_of(costs), setting, options.seeds)


if __name__ == "__main__":
    main(sys.argv[1:])
