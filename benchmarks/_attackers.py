"""What malicious members of a swarm send: one function per attack, of everything that an attacker could know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.training.inner_loop import InnerLoop
from atoll.training.model import cross_entropy

Vector = NDArray[np.float32]
RESENT_SCALE, RESENT_NOISE = np.float32(1.1), 0.02
"""What a free-rider changes of a contribution that it sends again."""


@dataclass
class Round:
    """What an attacker that sees everything can see, and its own honest work."""

    honest: list[Vector]
    own: Vector
    mean: Vector
    """Of the honest."""
    previous_mean: Vector | None
    """The last committed one."""
    previous_honest: list[Vector]
    """The last round's, which owners and auditors have seen; none in round 1."""
    first_own: Vector | None
    """What this attacker worked out in the first round; none in round 1."""
    rank: int
    """Which of the attackers this is."""
    accomplice: Vector
    """Honest work of the first of the attackers."""
    random: np.random.Generator
    shared: np.random.Generator
    """Equal for all attackers of a round."""

    @cached_property
    def norm(self) -> float:
        """The usual one of a contribution."""
        return float(np.median([np.linalg.norm(each) for each in self.honest]))


def noise_of(random: np.random.Generator, size: int, norm: float) -> Vector:
    """A random direction of a given length."""
    noise = random.standard_normal(size).astype(np.float32)
    return noise * np.float32(norm / np.linalg.norm(noise))


def resent(round_: Round, original: Vector | None, noise: float = RESENT_NOISE) -> Vector:
    """``original`` scaled and with a little noise, which makes it another commitment; honest work without one."""
    if original is None:
        return round_.own
    norm = float(np.linalg.norm(original))
    return RESENT_SCALE * original + noise_of(round_.random, original.size, noise * norm)


def _colluding_noise(round_: Round) -> Vector:
    return noise_of(round_.shared, round_.own.size, 2 * round_.norm)


def _camouflage(round_: Round) -> Vector:
    """Three quarters of an honest member's agreement, and for the rest noise, as long as the clip lets it be."""
    mean, noise = round_.mean, _colluding_noise(round_)
    cosine = 0.75 * float(np.linalg.norm(mean)) / round_.norm
    useful = mean * (2 * round_.norm * cosine / float(np.linalg.norm(mean)))
    return (useful + noise * (1 - cosine**2) ** 0.5).astype(np.float32)


def _of_another(round_: Round) -> Vector | None:
    """Another member's contribution to the last round, of a different one for each attacker."""
    known = round_.previous_honest
    return known[round_.rank % len(known)] if known else None


ATTACKS: dict[str, Callable[[Round], Vector]] = {
    "sign_flip": lambda r: -r.own,
    "times_1000": lambda r: r.own * np.float32(1000),
    "flipped_times_1000": lambda r: r.own * np.float32(-1000),
    "nan": lambda r: np.full_like(r.own, np.nan),
    "noise": lambda r: noise_of(r.random, r.own.size, r.norm),
    "colluding_noise": _colluding_noise,
    "label_flip": lambda r: r.own,
    "weight_inflation": lambda r: -r.own,
    "zeros": lambda r: np.zeros_like(r.own),
    "copycat": lambda r: r.honest[0],
    "near_copies": lambda r: resent(r, r.accomplice) if r.rank else r.own,
    "stale_mean": lambda r: resent(r, r.previous_mean, 0.0),
    "stale_own": lambda r: resent(r, r.first_own),
    "stale_other": lambda r: resent(r, _of_another(r)),
    "stale_other_noisy": lambda r: resent(r, _of_another(r), 0.5),
    "alie": lambda r: (r.mean - np.std(np.stack(r.honest), axis=0)).astype(np.float32),
    "inner_product": lambda r: -np.float32(0.5) * r.mean,
    "camouflage": _camouflage,
}
"""Name -> what a malicious peer sends; `label_flip` trains on false targets, `weight_inflation` claims tokens too."""

ADAPTIVE = ("stale_other_noisy", "alie", "inner_product", "camouflage")
"""Made to pass what stands against them, or with knowledge that commitments hide."""


class FlippedLoop(InnerLoop):
    """Trains on targets 255 − y."""

    def _backward(self, tokens: NDArray[np.uint8]) -> float:
        batch = torch.from_numpy(tokens).to(torch.long)
        self._gradient.zero_()
        loss = cross_entropy(self._model(batch[:, :-1]), 255 - batch[:, 1:])
        loss.backward()
        return loss.item()
