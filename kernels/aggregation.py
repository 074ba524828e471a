"""What an owner makes of a chunk's contributions: the weighted mean, or a robust rule instead of it.

Every rule is a pure function of the encoded contributions and their weights, so that anybody can recompute a chunk, and
gives the same bits on every machine: float32 arithmetic element by element in the order written here, decisions in
float64 from `Codec.dot`, which is exact or of a defined order. A rule is one function and one line in `RULES`.

`agreement` and `centred_clip` bound what a minority can do; no rule can when fewer than `MIN_MEMBERS` members weigh
something, and then all of them are the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import NamedTuple, TypeAlias

import numpy as np

from .arguments import require_weights
from .codec import Codec, Encoded, Float32Array
from .codec import codec as codec_of

MIN_MEMBERS = 5
"""Of four, two attackers are half; of five, they are a minority."""
AGREEMENT = 0.5
"""A member whose median cosine with the others is below this share of what is usual in the chunk is left out of it."""
SIGNIFICANT = 4.0
"""Cosines of unrelated vectors of n elements have a standard deviation of 1/√n. A usual score below so many of them is
no direction to judge by; from there on, half of it is at least four deviations of a median of four cosines away."""
TRIMMED_SHARE = 0.2
"""Share of the members whose values `trimmed_mean` leaves out at either end."""
CENTRED_STEPS = 3
"""Iterations of `centred_clip`; its authors use one with a good start, which the median of the members is not."""


class LeftOut(NamedTuple):
    """A contribution that a rule took no notice of in a chunk."""

    contribution: int
    value: float
    limit: float


Verdict: TypeAlias = tuple[LeftOut, ...]
Rule: TypeAlias = "Callable[[Codec, Sequence[Encoded], Sequence[float], Float32Array], Verdict]"


def aggregate(
    rule: str, codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array
) -> Verdict:
    """Write the aggregate of valid encoded contributions into ``out`` (num_elements,).

    ``weights`` are of the mean: not negative, their sum at most one; what a member's clip takes away is not given to
    others. Contributions that weigh nothing have no influence at all. Returns who was left out, and why. Raises
    ValueError for an unknown rule.
    """
    if rule not in RULES:
        raise ValueError(f"unknown aggregation {rule!r}: known are {', '.join(RULES)}")
    weighty = [i for i, weight in enumerate(weights) if weight > 0]
    if rule == "mean" or len(weighty) < MIN_MEMBERS:
        return _mean(codec, datas, weights, out)
    result = RULES[rule](codec, [datas[i] for i in weighty], [weights[i] for i in weighty], out)
    return tuple(LeftOut(weighty[i], value, limit) for i, value, limit in result)


def _mean(codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> Verdict:
    codec.accumulate_many(datas, weights, out)
    return ()


def _agreement(codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> Verdict:
    """The mean over the members that pull where the others do.

    A member's score is the (low) median of its cosines with each other member: a minority can lift it for its own
    kind but not above what the majority gives. Who scores below `AGREEMENT` times the median score is left out and
    its weight goes to the rest in proportion. Without a direction in common (`SIGNIFICANT`) nobody is.
    """
    scores = scores_of(cosines(codec, datas, out.size))
    usual = median_low(scores)
    limit = AGREEMENT * usual
    if usual <= SIGNIFICANT / math.sqrt(out.size):
        return _mean(codec, datas, weights, out)
    left_out = tuple(LeftOut(i, score, limit) for i, score in enumerate(scores) if score < limit)
    kept = [i for i, score in enumerate(scores) if score >= limit]
    factor = math.fsum(weights) / math.fsum(weights[i] for i in kept)
    codec.accumulate_many([datas[i] for i in kept], [weights[i] * factor for i in kept], out)
    return left_out


def cosines(codec: Codec, datas: Sequence[Encoded], num_elements: int) -> list[list[float]]:
    """Cosine of every two contributions; 0 where one of them is all zeros."""
    norms = [math.sqrt(codec.squared_norm(data, num_elements)) for data in datas]
    table = [[1.0] * len(datas) for _ in datas]
    for i, data in enumerate(datas):
        for j in range(i):
            scale = norms[i] * norms[j]
            cosine = codec.dot(data, datas[j], num_elements) / scale if scale > 0 else 0.0
            table[i][j] = table[j][i] = cosine
    return table


def scores_of(table: Sequence[Sequence[float]]) -> list[float]:
    """Per contribution, the low median of its cosines with the others."""
    return [median_low([cosine for j, cosine in enumerate(row) if j != i]) for i, row in enumerate(table)]


def _trimmed_mean(codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> Verdict:
    """Per element, the plain mean of `_weighted` values without the `TRIMMED_SHARE` at either end (Yin et al. 2018).

    Summed from +0 in ascending order, then divided once, all in float32.
    """
    values_MN = np.stack(_weighted(codec, datas, weights, out.size))
    values_MN.sort(axis=0)
    num_trimmed = int(TRIMMED_SHARE * len(datas))
    total_N = np.zeros(out.size, np.float32)
    for value_N in values_MN[num_trimmed : len(datas) - num_trimmed]:
        total_N += value_N
    total_N /= np.float32(len(datas) - 2 * num_trimmed)
    out[...] = total_N.reshape(out.shape)
    return ()


def _centred_clip(codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> Verdict:
    """Iterated mean of differences to a centre, each cut to the median of their norms (Karimireddy et al. 2021).

        v ← v + Σ (1 / n) · min(1, τ / ‖y − v‖) · (y − v)        over the `_weighted` values y in order

    v starts at the element-wise low median; τ is the low median of the norms, which are float64 sums in lanes.
    """
    values_MN = _weighted(codec, datas, weights, out.size)
    centre_N = np.sort(np.stack(values_MN), axis=0)[(len(values_MN) - 1) // 2]
    for _ in range(CENTRED_STEPS):
        differences_MN = [value_N - centre_N for value_N in values_MN]
        norms = [_norm(difference_N) for difference_N in differences_MN]
        radius, step_N = median_low(norms), np.zeros(out.size, np.float32)
        for difference_N, norm in zip(differences_MN, norms, strict=True):
            step_N += np.float32(min(1.0, radius / norm if norm > 0 else 1.0) / len(norms)) * difference_N
        centre_N += step_N
    out[...] = centre_N.reshape(out.shape)
    return ()


def _weighted(
    codec: Codec, datas: Sequence[Encoded], weights: Sequence[float], num_elements: int
) -> list[Float32Array]:
    """Decoded values times float32(number of contributions × weight): their plain mean is the weighted one."""
    factors = require_weights([weight * len(datas) for weight in weights], len(datas))
    return [factor * _decoded(codec, data, num_elements) for factor, data in zip(factors, datas, strict=True)]


def _norm(values_N: Float32Array) -> float:
    return math.sqrt(codec_of("float32").squared_norm(values_N.astype("<f4", copy=False).view(np.uint8), values_N.size))


def _decoded(codec: Codec, data: Encoded, num_elements: int) -> Float32Array:
    values = np.empty(num_elements, np.float32)
    codec.decode(data, values)
    return values


RULES: dict[str, Rule] = {
    "mean": _mean,
    "agreement": _agreement,
    "trimmed_mean": _trimmed_mean,
    "centred_clip": _centred_clip,
}
