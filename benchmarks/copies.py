"""How alike honest contributions are, and how much noise makes a copy pass: why `trust.copy_cosine` is what it is.

Honest peers train as in `attacks.py`, by several recipes. Of every round and the four before it, and of each span that
is large enough to be judged, it is measured how much each member has of its own beside its own past, that of others,
past means and the other members, as a share of what is usual (`protocol/likeness.py`, `admission.copies`).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
import torch
from _attacked_swarm import Setting, Swarm
from _attackers import Vector, noise_of
from _figures import report

from atoll.protocol.admission import Earlier, Present, copies
from atoll.protocol.exchange.copies import SpanSamples
from atoll.protocol.likeness import own_shares_among, own_shares_beside, units
from atoll.protocol.recent import NUM_ROUNDS
from atoll.protocol.record import Member, Plan
from atoll.protocol.spec import TrustConfig
from atoll.training.config import TrainingConfig

LIMIT = 1 - TrustConfig().copy_cosine ** 2
NOISES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
CHUNKS_PER_SPAN = 2
"""16,384 elements: the smallest span that is judged."""


@dataclass(frozen=True)
class Case(Setting):
    """A recipe."""

    name: str = "demo's recipe"
    inner: dict[str, object] = field(default_factory=dict[str, object])
    """Changes of the inner method."""

    def training(self, seed: int) -> TrainingConfig:
        config = super().training(seed)
        return config.model_copy(update={"inner": config.inner.model_copy(update=self.inner)})


CASES = (
    Case(),
    Case(name="first rounds of one step", num_steps=1, num_rounds=8),
    Case(name="one step of one sample", num_steps=1, batch_size=1, num_rounds=12),
    Case(name="rounds of 50 steps", num_steps=50, num_rounds=4),
    Case(name="learning rate / 100", num_rounds=4, inner={"lr": 4e-5}),
    Case(name="learning rate × 4", num_rounds=6, inner={"lr": 1.6e-2}),
    Case(name="momentum 0.99", num_rounds=6, inner={"betas": (0.99, 0.95)}),
    Case(name="SGD", num_rounds=5, inner={"optimizer": "sgd", "lr": 0.3}),
    Case(name="SGD, speeds 1:2:4:6", num_rounds=4, speeds=(1, 2, 4, 6), inner={"optimizer": "sgd", "lr": 0.3}),
    Case(name="speeds 1:2:4:6", num_rounds=6, speeds=(1, 2, 4, 6)),
    Case(name="four peers", num_peers=4, num_rounds=8),
    Case(name="to the end of a cosine schedule", num_rounds=40, inner={"schedule": "cosine", "total_steps": 400}),
)


@dataclass
class Observed(Swarm):
    """An honest swarm whose contributions are kept, sampled as an owner samples them."""

    rounds: list[tuple[Plan, list[Vector]]] = field(default_factory=list[tuple[Plan, list[Vector]]])
    """Per round the plan, and per chunk (num_members + 1, num_samples): the members', then their mean."""

    def _fit(self, plan: Plan, encoded: Sequence[memoryview], samples: SpanSamples) -> list[int]:
        sampled: list[Vector] = []
        for chunk in range(self.grid.num_chunks):
            part = self.grid.encoded_range(chunk)
            rows = np.stack([self.recent.sampler.sample(chunk, each[part]) for each in encoded])
            sampled.append(np.vstack([rows, rows.mean(axis=0)]))
        self.rounds.append((plan, sampled))
        return list(range(len(encoded)))

    def spans(self) -> Iterator[range]:
        """Small ones, and the whole vector."""
        for first in range(0, self.grid.num_chunks - CHUNKS_PER_SPAN, CHUNKS_PER_SPAN):
            yield range(first, first + CHUNKS_PER_SPAN)
        yield range(self.grid.num_chunks)


def joined(sampled: Sequence[Vector], span: range) -> Vector:
    return np.concatenate([sampled[chunk] for chunk in span], axis=1)


def present_of(members: Sequence[Member], rows: Vector) -> Present:
    return Present(members, rows, [0] * len(members))


def of_usual(shares: Sequence[float]) -> list[float]:
    """Each share by the low median of the others."""
    others = ([share for j, share in enumerate(shares) if j != i] for i in range(len(shares)))
    return [share / median_low(rest) for share, rest in zip(shares, others, strict=True)]


def kinds(present: Present, past: Vector) -> dict[str, list[float]]:
    """Per kind of likeness to an earlier round, each member's share of its own."""
    shares = own_shares_beside(units(present.samples), units(past), present.work)
    count = len(present.members)
    others = [min(float(shares[i, j]) for j in range(count) if j != i) for i in range(count)]
    return {"own": [float(shares[i, i]) for i in range(count)], "other": others, "mean": shares[:, count].tolist()}


def least_shares(swarm: Observed) -> dict[str, float]:
    """Kind of likeness -> the least share of its own of any honest member, as a part of the usual one."""
    least: dict[str, float] = defaultdict(lambda: 1.0)
    for number, (plan, sampled) in enumerate(swarm.rounds):
        for span in swarm.spans():
            present = present_of(plan.members, joined(sampled, span)[:-1])
            among = own_shares_among(units(present.samples), present.work).min(axis=1).tolist()
            least["same round"] = min(least["same round"], *of_usual(among))
            for _, past in swarm.rounds[max(0, number - NUM_ROUNDS) : number]:
                for kind, shares in kinds(present, joined(past, span)).items():
                    least[kind] = min(least[kind], *of_usual(shares))
    return least


def greatest_cosine(swarm: Observed) -> float:
    """Of two honest contributions to one round or to consecutive ones, over the whole vector."""
    span, greatest = range(swarm.grid.num_chunks), -1.0
    rows = [units(joined(sampled, span)[:-1]) for _, sampled in swarm.rounds]
    for before, now in zip([None, *rows], rows, strict=False):
        among = now @ now.T - 2 * np.eye(len(now))
        greatest = max(greatest, float(among.max()), float((now @ before.T).max()) if before is not None else -1.0)
    return greatest


def recognised(swarm: Observed, noise: float) -> float:
    """Share of the rounds in which a member's resent contribution, or another's, is told from honest work."""
    span, seen, random = range(swarm.grid.num_chunks), [], np.random.default_rng(0)
    for number in range(1, len(swarm.rounds)):
        (_, past), (plan, now) = swarm.rounds[number - 1 : number + 1]
        before = joined(past, span)
        for original in (1, 2):
            rows = joined(now, span)[:-1].copy()
            row = before[original]
            rows[1] = row + noise_of(random, row.size, noise * float(np.linalg.norm(row)))
            authors = (*(member.peer for member in plan.members), None)
            earlier = Earlier(number, authors, before, rows)
            seen.append(1 in copies(present_of(plan.members, rows), [earlier], TrustConfig().copy_cosine))
    return float(np.mean(seen))


def show(case: Case, swarm: Observed) -> None:
    """Train and report."""
    loss, least = swarm.run(), least_shares(swarm)
    report(
        "copies.least_own_share",
        min(least.values()),
        "of the usual share",
        reference=LIMIT,
        case=case.name,
        peers=case.num_peers,
        by_kind={kind: round(share, 3) for kind, share in least.items()},
        greatest_cosine=round(greatest_cosine(swarm), 4),
        recognised_by_noise={str(noise): round(recognised(swarm, noise), 2) for noise in NOISES},
        final_loss=round(loss, 3),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in CASES])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for case in CASES:
        if not options.cases or case.name in options.cases:
            show(case, Observed(case, TrustConfig(copy_cosine=0.0), None, 0, options.seed))


if __name__ == "__main__":
    main(sys.argv[1:])
