"""How well recomputed inner steps tell honest contributions from others: cosine, ratio of norms, continuity.

Four peers train the demo's recipe; one of them is recomputed from its anchor, its lease and the int8 copy of its
optimizer's state, as a spot check does (`protocol/spot_checks.py`), with arithmetic as other hardware might have it.
Then the checker's outcome is held against what a peer that cheats would send. A checker sees its own span, a quarter of
the vector: each quarter counts by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from _figures import report
from numpy.typing import NDArray

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.training.config import InnerConfig, TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.inner_state import InnerState, continuity
from atoll.training.model import cross_entropy
from atoll.training.outer import apply_mean
from atoll.training.recompute import recompute

Vector = NDArray[np.float32]
Moments = dict[str, Vector]
NUM_PEERS = 4
INT8 = codec("int8")
BEGIN, END = "<!-- spot checks: begin, written by benchmarks/spot_checks.py -->", "<!-- spot checks: end -->"


class OtherOrder(InnerLoop):
    """Sums over the batch from the other end."""

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        return super()._backward(tokens[::-1].copy())


class Halves(InnerLoop):
    """Matrix products in bfloat16, as GPUs do them."""

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        with torch.autocast("cpu", torch.bfloat16):
            return _loss(self, tokens, lambda targets: targets)


class FlippedLabels(InnerLoop):
    """Trains on targets 255 − y."""

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        return _loss(self, tokens, lambda targets: 255 - targets)


def _loss(loop: InnerLoop, tokens: NDArray[np.uint8], change: Callable[[torch.Tensor], torch.Tensor]) -> float:
    batch = torch.from_numpy(tokens).to(torch.long)
    loop._gradient.zero_()
    loss = cross_entropy(loop._model(batch[:, :-1]), change(batch[:, 1:]))
    loss.backward()
    return loss.item()


def rounded(values: Vector) -> Vector:
    """As it arrives: encoded and decoded."""
    grid = ChunkGrid(values.size, 65_536, INT8)
    out, back = np.empty(grid.total_encoded, np.uint8), np.empty_like(values)
    grid.encode(np.ascontiguousarray(values, np.float32), out)
    grid.decode(out, back)
    return back


CODES: dict[str, Callable[[Moments], Moments]] = {
    "float32": lambda t: t,
    "int8 of m and v": lambda t: {"exp_avg": rounded(t["exp_avg"]), "exp_avg_sq": rounded(t["exp_avg_sq"])},
    "int8 of m and √v": lambda t: {
        "exp_avg": rounded(t["exp_avg"]),
        "exp_avg_sq": rounded(np.sqrt(t["exp_avg_sq"])) ** 2,
    },
    "int8 of m and ⁴√v": lambda t: {
        "exp_avg": rounded(t["exp_avg"]),
        "exp_avg_sq": rounded(t["exp_avg_sq"] ** np.float32(0.25)) ** 4,
    },
}
"""Name of a copy's code -> the moments that come out of it. The last one, m/√v and ⁴√v, is `InnerState`'s own."""


@dataclass
class Measures:
    """Of one kind of contribution, over rounds and quarters."""

    cosines: list[float] = field(default_factory=list[float])
    ratios: list[float] = field(default_factory=list[float])
    continuities: list[float] = field(default_factory=list[float])

    def add(self, sent: Vector, recomputed: Vector) -> None:
        for x, y in zip(np.array_split(sent, NUM_PEERS), np.array_split(recomputed, NUM_PEERS), strict=True):
            a, b = x.astype(np.float64), y.astype(np.float64)
            norms = float(np.linalg.norm(a)), float(np.linalg.norm(b))
            self.cosines.append(float(a @ b) / (norms[0] * norms[1]))
            self.ratios.append(norms[0] / norms[1])


class Swarm:
    """Peers that train and average; the first one is examined."""

    def __init__(self, num_steps: int) -> None:
        self.config = TrainingConfig(inner=InnerConfig(num_steps=num_steps))
        self.data = TextData.load(self.config.data, self.config.model.sequence_length)
        self.loops = [InnerLoop(self.config, self.data) for _ in range(NUM_PEERS)]
        self.anchor = initial_state(self.config.model)
        self.momentum = np.zeros_like(self.anchor)
        self.previous: list[Vector] = []
        self.measures: dict[str, Measures] = {}

    @property
    def num_steps(self) -> int:
        return self.config.inner.num_steps

    def lease(self, number: int, peer: int) -> Lease:
        count = self.config.inner.lease_samples
        return Lease(((number - 1) * NUM_PEERS + peer) * count, count)

    def note(self, name: str, sent: Vector, recomputed: Vector, goes_on: float | None = None) -> None:
        measures = self.measures.setdefault(name, Measures())
        measures.add(sent, recomputed)
        if goes_on is not None:
            measures.continuities.append(goes_on)

    def round(self, number: int) -> None:
        starts = [InnerState(loop.num_steps_done, 0, loop.optimizer_tensors()) for loop in self.loops]
        trained = [self._again(number, peer, loop, starts[peer]) for peer, loop in enumerate(self.loops)]
        sent = [rounded(np.asarray(delta)) for delta, _ in trained]
        ends = [end for _, end in trained]
        self._examine(number, starts[0], sent, ends)
        mean = np.mean(sent, axis=0).astype(np.float32)
        grid = ChunkGrid(self.anchor.size, 65_536, INT8)
        out = np.empty(grid.total_encoded, np.uint8)
        grid.encode(mean, out)
        apply_mean(self.anchor, self.momentum, out, grid, self.config.outer.at(number))
        self.previous = [sent[0], mean]

    def _again(
        self, number: int, peer: int, loop: InnerLoop, state: InnerState, num_steps: int | None = None
    ) -> tuple[Vector, bytes]:
        """The steps of a lease, and the copy of where the optimizer ended, under the claimed number of steps."""
        wanted = self.num_steps if num_steps is None else num_steps
        steps = recompute(loop, self.anchor, self.lease(number, peer), wanted, state)
        end = InnerState(state.num_steps_done + self.num_steps, 0, steps.end.moments)
        return np.asarray(steps.delta), end.encode()

    def _copy(self, state: InnerState) -> InnerState:
        return InnerState.decode(state.encode(), self.anchor.size, self.config.inner)

    def _examine(self, number: int, start: InnerState, sent: list[Vector], ends: list[bytes]) -> None:
        fresh = lambda: InnerLoop(self.config, self.data)  # noqa: E731
        copy, size = self._copy(start), self.anchor.size
        for name, code in CODES.items() if start.moments else ():
            state = InnerState(start.num_steps_done, 0, code(start.moments))
            self.note(f"copy: {name}", sent[0], rounded(self._again(number, 0, fresh(), state)[0]))
        checked, end = self._again(number, 0, fresh(), copy)
        checked = rounded(checked)
        self.note("honest, the same machine", sent[0], checked, continuity(end, ends[0], size))
        for name, delta, other_end in self._other_machines(number, copy):
            self.note(name, sent[0], rounded(delta), continuity(other_end, ends[0], size))
        for name, delta, other_end in self._cheats(number, start, sent, ends):
            goes_on = None if other_end is None else continuity(end, other_end, size)
            self.note(name, rounded(delta), checked, goes_on)

    def _other_machines(self, number: int, copy: InnerState) -> Iterator[tuple[str, Vector, bytes]]:
        for name, kind in (("sums in another order", OtherOrder), ("matrices in bfloat16", Halves)):
            yield f"honest, {name}", *self._again(number, 0, kind(self.config, self.data), copy)
        torch.set_num_threads(2)
        yield "honest, two threads", *self._again(number, 0, InnerLoop(self.config, self.data), copy)
        torch.set_num_threads(1)

    def _cheats(
        self, number: int, start: InnerState, sent: list[Vector], ends: list[bytes]
    ) -> Iterator[tuple[str, Vector, bytes | None]]:
        fresh = lambda: InnerLoop(self.config, self.data)  # noqa: E731
        unchanged = InnerState(start.num_steps_done + self.num_steps, 0, start.moments).encode()
        if self.previous:
            yield "its own of the round before", self.previous[0], unchanged
            yield "the mean of the round before", self.previous[1], unchanged
            yield "steps with another optimizer state", *self._again(number, 0, fresh(), InnerState(10_000))
        yield "another member's of this round", sent[1], ends[1]
        yield "mean of the other members'", np.mean(sent[1:], axis=0), ends[1]
        for share in (0.5, 0.75, 0.9):
            delta, end = self._again(number, 0, fresh(), start, round(share * self.num_steps))
            scale = np.float32(np.linalg.norm(sent[0]) / np.linalg.norm(delta))
            yield f"{share:.0%} of the steps, scaled up", delta * scale, end
        yield "samples of another lease", *self._again(number + 50, 2, fresh(), start)
        yield "false labels", *self._again(number, 0, FlippedLabels(self.config, self.data), start)
        yield "flipped sign", -sent[0], ends[0]
        noise = np.random.default_rng(number).standard_normal(sent[0].size).astype(np.float32)
        yield "noise", noise * np.float32(np.linalg.norm(sent[0]) / np.linalg.norm(noise)), unchanged


def measure(num_steps: int, num_rounds: int) -> dict[str, Measures]:
    """All kinds of contributions over some rounds."""
    swarm = Swarm(num_steps)
    for number in range(1, num_rounds + 1):
        swarm.round(number)
    for name, found in swarm.measures.items():
        is_cheat = not name.startswith(("honest", "copy"))
        report(
            "spot_checks.cosine",
            (max if is_cheat else min)(found.cosines),
            "",
            case=name,
            num_steps=num_steps,
            cosines=[round(min(found.cosines), 4), round(max(found.cosines), 4)],
            norm_ratios=[round(min(found.ratios), 4), round(max(found.ratios), 4)],
            continuities=[round(f(found.continuities), 4) for f in (min, max)] if found.continuities else [],
        )
    return swarm.measures


def _range(values: Sequence[float]) -> str:
    low, high = (f"{f(values):.3f}" for f in (min, max)) if values else ("", "")
    return low if low == high else f"{low} … {high}"


def markdown(by_steps: dict[int, dict[str, Measures]], num_rounds: int) -> str:
    """A line for each kind of contribution."""
    first = next(iter(by_steps))
    head = "".join(f" cosine, H = {steps} |" for steps in by_steps)
    tail = "".join(f" goes on, H = {steps} |" for steps in by_steps)
    lines = [
        f"The demo's recipe, {NUM_PEERS} peers, {num_rounds} rounds of H inner steps; lowest and highest of all rounds "
        "and quarters.",
        "",
        f"| what was sent |{head} ratio of norms, H = {first} |{tail}",
        "|---|" + "---|" * (2 * len(by_steps) + 1),
    ]
    for name, found in by_steps[first].items():
        cosines = "".join(f" {_range(measures[name].cosines)} |" for measures in by_steps.values())
        goes_on = "".join(f" {_range(measures[name].continuities)} |" for measures in by_steps.values())
        lines.append(f"| {name} |{cosines} {_range(found.ratios)} |{goes_on}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[50], help="H, one run each")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--document", type=Path, help="Markdown file whose table is written anew")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    by_steps = {steps: measure(steps, options.rounds) for steps in options.steps}
    if options.document is not None:
        before, _, rest = options.document.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        table = markdown(by_steps, options.rounds)
        options.document.write_text(f"{before}{BEGIN}\n{table}{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
