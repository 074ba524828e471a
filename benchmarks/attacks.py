"""What poisoned contributions cost: real training of ten peers in one process, attacked and not, defended and not.

Prints a JSON line per cell: the final validation loss against that of the clean run of the same seed and without any
defence. Everything between training and the outer step is the code that nodes run: encoding, commitments, admission,
weights, aggregation, outer step. `python benchmarks/attacks.py --help` for the choices; `make attacks` for the table.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from _figures import report
from numpy.typing import NDArray

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec
from atoll.protocol import admission
from atoll.protocol.aggregation import reduce_chunk
from atoll.protocol.chunks import Contribution
from atoll.protocol.identity import Identity
from atoll.protocol.record import Member, Plan, Span
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.weights import weights
from atoll.training.config import DataConfig, InnerConfig, ModelConfig, TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.model import cross_entropy
from atoll.training.outer import OuterConfig, apply_mean

Vector = NDArray[np.float32]
NO_DEFENCE = TrustConfig(clip_factor=0, aggregation="mean", max_share=1.0)
PEERS = [Identity.from_seed(bytes([1 + i]) * 32).peer_id for i in range(32)]
UNTRAINED = math.log(256)
"""Loss of knowing nothing: what a run that is lost counts as."""
BEGIN, END = "<!-- attacks: begin, written by `make attacks` -->", "<!-- attacks: end -->"
ADAPTIVE = ("alie", "inner_product", "camouflage")


@dataclass(frozen=True)
class Setting:
    """How large an experiment is."""

    num_peers: int = 10
    num_rounds: int = 12
    num_steps: int = 10
    batch_size: int = 8
    speeds: tuple[int, ...] = (1,)
    """Inner steps of the peers, in turn, in multiples of ``num_steps``."""

    def training(self, seed: int) -> TrainingConfig:
        """The demo's recipe with shorter rounds."""
        return TrainingConfig(
            model=ModelConfig(init_seed=seed, dim=32, hidden_dim=96, sequence_length=32),
            data=DataConfig(seed=seed),
            inner=InnerConfig(num_steps=self.num_steps, batch_size=self.batch_size, max_steps=6 * self.num_steps),
            outer=OuterConfig(momentum_warmup_rounds=10),
        )

    def steps_of(self, peer: int) -> int:
        return self.num_steps * self.speeds[peer % len(self.speeds)]


@dataclass
class Round:
    """What an attacker that sees everything can see, and its own honest work."""

    honest: list[Vector]
    own: Vector
    previous: Vector | None
    """The last committed mean."""
    random: np.random.Generator
    shared: np.random.Generator
    """Equal for all attackers of a round."""

    @property
    def mean(self) -> Vector:
        return np.mean(np.stack(self.honest), axis=0).astype(np.float32)

    @property
    def norm(self) -> float:
        return float(np.median([np.linalg.norm(each) for each in self.honest]))


def _noise(round_: Round) -> Vector:
    noise = round_.random.standard_normal(round_.own.size).astype(np.float32)
    return noise * np.float32(round_.norm / np.linalg.norm(noise))


def _colluding_noise(round_: Round) -> Vector:
    noise = round_.shared.standard_normal(round_.own.size).astype(np.float32)
    return noise * np.float32(2 * round_.norm / np.linalg.norm(noise))


def _nan(round_: Round) -> Vector:
    return np.full_like(round_.own, np.nan)


def _camouflage(round_: Round) -> Vector:
    """Three quarters of an honest member's agreement, and for the rest noise, as long as the clip lets it be."""
    mean, noise = round_.mean, _colluding_noise(round_)
    cosine = 0.75 * float(np.linalg.norm(mean)) / round_.norm
    useful = mean * (2 * round_.norm * cosine / float(np.linalg.norm(mean)))
    return (useful + noise * (1 - cosine**2) ** 0.5).astype(np.float32)


ATTACKS: dict[str, Callable[[Round], Vector]] = {
    "sign_flip": lambda r: -r.own,
    "times_1000": lambda r: r.own * np.float32(1000),
    "flipped_times_1000": lambda r: r.own * np.float32(-1000),
    "nan": _nan,
    "noise": _noise,
    "colluding_noise": _colluding_noise,
    "label_flip": lambda r: r.own,
    "zeros": lambda r: np.zeros_like(r.own),
    "stale": lambda r: r.own if r.previous is None else r.previous,
    "copycat": lambda r: r.honest[0],
    "alie": lambda r: (r.mean - np.std(np.stack(r.honest), axis=0)).astype(np.float32),
    "inner_product": lambda r: -np.float32(0.5) * r.mean,
    "camouflage": _camouflage,
    "weight_inflation": lambda r: -r.own,
}
"""Name -> what a malicious peer sends; `label_flip` trains on false targets, `weight_inflation` claims tokens too."""


class FlippedLoop(InnerLoop):
    """Trains on targets 255 − y."""

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        batch = torch.from_numpy(tokens).to(torch.long)
        self._gradient.zero_()
        loss = cross_entropy(self._model(batch[:, :-1]), 255 - batch[:, 1:])
        loss.backward()
        return loss.item()


@cache
def text(seed: int, sequence_length: int) -> TextData:
    return TextData.load(DataConfig(seed=seed), sequence_length)


@dataclass
class Swarm:
    """Ten peers, some of them malicious, that train together."""

    setting: Setting
    trust: TrustConfig
    attack: str | None
    num_malicious: int
    seed: int
    num_refused: dict[str, float] = field(default_factory=dict[str, float])
    """Rule -> malicious contributions (or shares of their chunks) that it kept out."""

    def __post_init__(self) -> None:
        self.config = self.setting.training(self.seed)
        self.data = text(self.seed, self.config.model.sequence_length)
        flips = [self.attack == "label_flip" and self._is_malicious(peer) for peer in self.peers]
        self.loops = [(FlippedLoop if each else InnerLoop)(self.config, self.data) for each in flips]
        self.anchor = initial_state(self.config.model)
        self.momentum = np.zeros_like(self.anchor)
        self.grid = ChunkGrid(self.anchor.size, 8192, codec("int8"))
        self.previous: Vector | None = None
        self.num_honest_left_out = 0

    @property
    def peers(self) -> range:
        return range(self.setting.num_peers)

    def _is_malicious(self, peer: int) -> bool:
        # Spread over the plan: neither all first nor all last.
        return self.attack is not None and (peer * self.num_malicious) % self.setting.num_peers < self.num_malicious

    def run(self) -> float:
        """Final validation loss, nats per byte. Raises `NonFiniteError` when the run is lost."""
        for number in range(1, self.setting.num_rounds + 1):
            self._round(number)
            if not np.isfinite(self.anchor).all():
                raise NonFiniteError("the weights are not finite any more")
        return self.loops[0].evaluate(self.anchor).loss

    def _round(self, number: int) -> None:
        trained = [self._train(number, peer) for peer in self.peers]
        honest = [delta for peer, delta in zip(self.peers, trained, strict=True) if not self._is_malicious(peer)]
        offered = [self._offer(number, peer, delta, honest) for peer, delta in zip(self.peers, trained, strict=True)]
        present = [(peer, contribution) for peer, contribution in enumerate(offered) if contribution is not None]
        mean = self._reduce(number, present)
        apply_mean(self.anchor, self.momentum, mean, self.grid, self.config.outer.at(number))
        self.previous = np.empty_like(self.anchor)
        self.grid.decode(mean, self.previous)

    def _train(self, number: int, peer: int) -> Vector:
        inner, loop = self.config.inner, self.loops[peer]
        lease = Lease(((number - 1) * self.setting.num_peers + peer) * inner.lease_samples, inner.lease_samples)
        loop.load(self.anchor)
        for step in range(self.setting.steps_of(peer)):
            indices = lease.batch(step, inner.batch_size)
            assert indices is not None
            loop.step(self.data.batch(indices))
        return np.asarray(loop.pseudo_gradient(self.anchor))

    def _offer(self, number: int, peer: int, own: Vector, honest: Sequence[Vector]) -> Contribution | None:
        if self._is_malicious(peer) and self.attack is not None:
            seeds = [self.seed, number]
            random, shared = np.random.default_rng([*seeds, peer]), np.random.default_rng(seeds)
            own = ATTACKS[self.attack](Round(list(honest), own, self.previous, random, shared)).astype(np.float32)
        encoded = self._encode(own)
        if not self._is_valid(encoded):
            if self.trust == NO_DEFENCE:
                raise NonFiniteError("a mean with a NaN")
            self._count("invalid encoding", 1)
            return None
        tokens = self.setting.steps_of(peer) * self.setting.batch_size * self.config.model.sequence_length
        if self._is_malicious(peer) and self.attack == "weight_inflation":
            tokens = 2**40
        return Contribution.of(self.grid, encoded.data, round_number=number, tokens=tokens)

    def _encode(self, values: Vector) -> NDArray[np.uint8]:
        encoded = np.empty(self.grid.total_encoded, np.uint8)
        if np.isfinite(values).all():
            self.grid.encode(values, encoded)
        else:
            encoded[:] = 0xFF  # no encoder writes a NaN: its scales are NaN, too
        return encoded

    def _is_valid(self, encoded: NDArray[np.uint8]) -> bool:
        try:
            for chunk in range(self.grid.num_chunks):
                self.grid.codec.check(encoded[self.grid.encoded_range(chunk)], self.grid.chunk_length(chunk))
        except InvalidEncoding:
            return False
        return True

    def _reduce(self, number: int, present: Sequence[tuple[int, Contribution]]) -> NDArray[np.uint8]:
        plan = self._plan(number, present)
        refused = admission.refusals(plan.members) if self.trust != NO_DEFENCE else {}
        for refusal in refused.values():
            self._count(refusal.rule, 1)
        included = [i not in refused for i in range(len(present))]
        each = weights(plan, included, self.trust, LimitsConfig(max_tokens_per_round=2**40))
        members = [i for i, is_in in enumerate(included) if is_in]
        mean = np.empty(self.grid.total_encoded, np.uint8)
        for chunk in range(self.grid.num_chunks):
            part = self.grid.encoded_range(chunk)
            datas = [present[i][1].encoded[part] for i in members]
            reduced = reduce_chunk(self.grid, chunk, datas, [each[i] for i in members], self.trust.aggregation)
            mean[part] = reduced.encoded
            for left_out in reduced.left_out:
                self._count("disagreement", 1 / self.grid.num_chunks, present[members[left_out.contribution]][0])
        return mean

    def _count(self, rule: str, share: float, peer: int | None = None) -> None:
        if peer is not None and not self._is_malicious(peer):
            self.num_honest_left_out += 1
        else:
            self.num_refused[rule] = self.num_refused.get(rule, 0) + share

    def _plan(self, number: int, present: Sequence[tuple[int, Contribution]]) -> Plan:
        peers = tuple(PEERS[peer] for peer, _ in present)
        return Plan(
            lineage=0,
            fragment=0,
            round=number,
            ballot=0,
            leader=peers[0],
            parent="0" * 64,
            parent_state="0" * 64,
            members=tuple(
                Member(peer=PEERS[peer], tokens=c.tokens, commitment=c.commitment, squared_norm=c.squared_norm)
                for peer, c in present
            ),
            spans=(Span(first_chunk=0, num_chunks=self.grid.num_chunks, owner=peers[0]),),
            roster=peers,
            next_roster=peers,
            data_cursor=0,
            rules="0" * 64,
            attempt_timeout_s=60.0,
        )


@dataclass(frozen=True)
class Cell:
    """One entry of the table, averaged over seeds."""

    attack: str | None
    share: float
    trust: TrustConfig
    setting: Setting = Setting()

    def measure(self, seeds: Sequence[int]) -> tuple[float, Swarm]:
        """Mean final loss, and the last seed's swarm."""
        swarms = [
            Swarm(self.setting, self.trust, self.attack, math.ceil(self.share * self.setting.num_peers), seed)
            for seed in seeds
        ]
        try:
            return float(np.mean([swarm.run() for swarm in swarms])), swarms[-1]
        except NonFiniteError:
            return UNTRAINED, swarms[-1]


@cache
def clean_loss(setting: Setting, seeds: tuple[int, ...]) -> float:
    return Cell(None, 0.0, NO_DEFENCE, setting).measure(seeds)[0]


def show(cell: Cell, seeds: tuple[int, ...]) -> float:
    """Measure, report and return the relative cost in loss."""
    loss, swarm = cell.measure(seeds)
    clean = clean_loss(cell.setting, seeds)
    report(
        "attacks.final_loss",
        loss,
        "nats/byte",
        reference=clean,
        repeats=len(seeds),
        attack=cell.attack or "none",
        malicious_share=cell.share,
        defence=defence_of(cell.trust),
        cost_percent=round(100 * (loss / clean - 1), 2),
        adaptive=cell.attack in ADAPTIVE,
        refused={rule: round(count, 1) for rule, count in swarm.num_refused.items()},
        honest_chunks_left_out=swarm.num_honest_left_out,
        speeds=cell.setting.speeds,
    )
    return loss / clean - 1


def defence_of(trust: TrustConfig) -> str:
    if trust == NO_DEFENCE:
        return "off"
    return "default" if trust == TrustConfig() else f"{trust.aggregation}, clip {trust.clip_factor}"


def table(trust: TrustConfig, setting: Setting) -> list[Cell]:
    """Every attack at 20 %, three at 10 and 30 % too, and honest runs, with equal and with unequal speeds."""
    unequal = Setting(**{**vars(setting), "speeds": (1, 2, 4, 6), "num_rounds": 6})
    cells = [Cell(None, 0.0, trust, setting), Cell(None, 0.0, trust, unequal)]
    for attack in ATTACKS:
        shares = (0.1, 0.2, 0.3) if attack in ("sign_flip", "noise", "label_flip") else (0.2,)
        cells += [Cell(attack, share, each, setting) for share in shares for each in (NO_DEFENCE, trust)]
    return cells


def markdown(rows: Sequence[tuple[Cell, float]], setting: Setting, num_seeds: int) -> str:
    """The table of costs: a line per attack and share, without and with the defences."""
    costs: dict[tuple[str, float, tuple[int, ...]], dict[str, float]] = {}
    for cell, cost in rows:
        key = (cell.attack or "none, all honest", cell.share, cell.setting.speeds)
        costs.setdefault(key, {})["off" if cell.trust == NO_DEFENCE else "on"] = cost
    lines = [
        f"{setting.num_peers} peers, {setting.num_rounds} rounds of {setting.num_steps} inner steps, "
        f"seeds: {num_seeds}. "
        "Cost: final validation loss over that of the clean run without defences, less one.",
        "",
        "| attack | malicious | defences off | on, by default |",
        "|---|---|---|---|",
    ]
    for (attack, share, speeds), cost in costs.items():
        name = f"{attack} (adaptive)" if attack in ADAPTIVE else attack
        name += f", speeds {':'.join(map(str, speeds))}" if len(speeds) > 1 else ""
        off, on = (f"{100 * cost[each]:+.2f} %" if each in cost else "" for each in ("off", "on"))
        lines.append(f"| {name.replace('_', ' ')} | {share:.0%} | {off} | {on} |")
    return "\n".join(lines) + "\n"


def write_table(path: Path, rows: Sequence[tuple[Cell, float]], setting: Setting, num_seeds: int) -> None:
    """Replace what is between the markers in ``path``."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{markdown(rows, setting, num_seeds)}{END}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="*", choices=["none", *ATTACKS], help="only these (default: the table)")
    parser.add_argument("--aggregation", default=TrustConfig().aggregation)
    parser.add_argument("--clip", type=float, default=TrustConfig().clip_factor)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=Setting().num_rounds)
    parser.add_argument("--steps", type=int, default=Setting().num_steps)
    parser.add_argument("--speeds", type=int, nargs="+", default=[1])
    parser.add_argument("--document", type=Path, help="Markdown file whose table of attacks is written anew")
    parser.add_argument("--off", action="store_true", help="with --attacks: without defences")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    trust = TrustConfig.model_validate({"aggregation": options.aggregation, "clip_factor": options.clip})
    setting = Setting(num_rounds=options.rounds, num_steps=options.steps, speeds=tuple(options.speeds))
    chosen = NO_DEFENCE if options.off else trust
    names = [None if name == "none" else name for name in options.attacks or []]
    cells = [Cell(name, options.share if name else 0.0, chosen, setting) for name in names]
    rows = [(cell, show(cell, tuple(range(options.seeds)))) for cell in cells or table(trust, setting)]
    if options.document is not None:
        write_table(options.document, rows, setting, options.seeds)


if __name__ == "__main__":
    main(sys.argv[1:])
