"""NoLoCo's outer step (2506.10911, equations 2 and 3), as gossip runs take it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.kernels.noloco_step import PairTerms, Partner, noloco_step
from atoll.training.outer import OuterConfig, OuterSettings, largest_consensus
from atoll.training.pairs import PairParts, apply_pair

NOLOCO = OuterConfig(optimizer="noloco", lr=0.7, momentum=0.5)


def grids(num_elements: int) -> tuple[ChunkGrid, ChunkGrid]:
    grid = ChunkGrid(num_elements, 64, codec("float32"))
    return grid, grid


def encoded(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint8)


def equations(phi: list[float], delta: list[float], theta: list[float], alpha: float, beta: float, gamma: float):
    """Equations 2 and 3 of the paper in its own letters, in float64, for a group of any size; Δ = θ − φ."""
    n = len(phi)
    mean_step, mean_phi = sum(t - p for t, p in zip(theta, phi, strict=True)) / n, sum(phi) / n
    new = [alpha * d + beta * mean_step - gamma * (p - mean_phi) for d, p in zip(delta, phi, strict=True)]
    return [p + d for p, d in zip(phi, new, strict=True)], new


@given(
    values=st.lists(st.floats(-4, 4, width=32), min_size=6, max_size=6),
    alpha=st.floats(0, 0.9),
    beta=st.floats(0.1, 1),
    gamma=st.floats(0.1, 1.5),
)
def test_a_pairs_step_is_that_of_the_papers_equations(values: list[float], alpha: float, beta: float, gamma: float):
    phi, delta, theta = values[:2], values[2:4], values[4:]
    wanted_phi, wanted_delta = equations(phi, delta, theta, alpha, beta, gamma)
    for me, other in ((0, 1), (1, 0)):
        weights, momentum = np.float32([phi[me]]), np.float32([delta[me]])
        partner = PairParts(encoded(np.array([phi[other] - theta[other]])), encoded(np.array([phi[other]])))
        settings = OuterSettings(beta, alpha, gamma)
        apply_pair(weights, momentum, encoded(np.array([phi[me] - theta[me]])), partner, grids(1), settings)
        assert weights[0] == pytest.approx(wanted_phi[me], abs=1e-5)
        assert momentum[0] == pytest.approx(wanted_delta[me], abs=1e-5)


@given(values=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3))
def test_without_a_partner_it_is_the_step_of_a_group_of_one(values: list[float]):
    (phi,), (delta,) = equations(values[:1], values[1:2], values[2:], 0.5, 0.7, 0.7)
    weights, momentum = np.float32(values[:1]), np.float32(values[1:2])
    apply_pair(weights, momentum, encoded(np.array([values[0] - values[2]])), None, grids(1), NOLOCO.at(9))
    assert weights[0] == pytest.approx(phi, abs=1e-5)
    assert momentum[0] == pytest.approx(delta, abs=1e-5)


def test_a_partner_on_probation_is_worth_no_more_than_none():
    generator = np.random.default_rng(0)
    mine = generator.normal(size=(3, 200)).astype(np.float32)
    theirs = generator.normal(size=(2, 200)).astype(np.float32)
    results = []
    for partner in (None, PairParts(encoded(theirs[0]), encoded(theirs[1]), delta_factor=0, pull_factor=0)):
        weights, momentum = mine[0].copy(), mine[1].copy()
        apply_pair(weights, momentum, encoded(mine[2]), partner, grids(200), NOLOCO.at(3))
        results.append(weights.tobytes() + momentum.tobytes())
    assert results[0] == results[1]


@given(seed=st.integers(0, 100), scale=st.floats(1, 1e6))
def test_what_a_partner_can_do_is_bounded_by_what_is_used_of_it(seed: int, scale: float):
    """A partner's vectors, cut to norms 1, move us by at most β/2 + γ/2, whatever they are."""
    generator = np.random.default_rng(seed)
    phi, delta, bad_delta, bad_phi = generator.normal(size=(4, 300)).astype(np.float32)
    bad_delta, bad_phi = np.float32(scale) * bad_delta, phi + np.float32(scale) * bad_phi
    cuts = 1 / np.linalg.norm(bad_delta), 1 / np.linalg.norm(bad_phi - phi)
    moved = phi.copy()
    partner = PairParts(encoded(bad_delta), encoded(bad_phi), *map(float, cuts))
    apply_pair(moved, np.zeros_like(phi), encoded(delta), partner, grids(300), NOLOCO.at(1))
    own = phi - np.float32(0.35) * delta
    assert np.linalg.norm(moved.astype(np.float64) - own) <= 0.35 + 0.35 + 1e-3


def test_the_step_has_the_same_bits_however_it_is_cut():
    generator = np.random.default_rng(1)
    phi, momentum, delta, other, far = generator.normal(size=(5, 100_000)).astype(np.float32)
    terms = PairTerms(0.5, 0.35, 0.3, 0.2)
    whole, cut = phi.copy(), phi.copy()
    whole_momentum, cut_momentum = momentum.copy(), momentum.copy()
    noloco_step(whole, whole_momentum, delta, Partner(other, far), terms)
    for start in range(0, 100_000, 7_001):
        part = slice(start, start + 7_001)
        noloco_step(cut[part], cut_momentum[part], delta[part], Partner(other[part], far[part]), terms)
    assert whole.tobytes() == cut.tobytes()
    assert whole_momentum.tobytes() == cut_momentum.tobytes()


def test_wrong_arrays_are_refused_before_anything_is_written():
    phi = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="partner's weights"):
        noloco_step(phi, phi.copy(), phi.copy(), Partner(phi.copy(), np.ones(3, np.float32)), PairTerms(0, 1, 1, 1))
    with pytest.raises(ValueError, match="finite"):
        noloco_step(phi, phi.copy(), phi.copy(), None, PairTerms(0, float("nan")))
    assert (phi == 1).all()


# --- replicas stay together -------------------------------------------------------------------------------------------


def spread_after(settings: OuterSettings, num_peers: int, num_rounds: int, noise: float) -> float:
    """Variance between replicas that train on independent noise and meet in random pairs, over that of the noise."""
    generator = np.random.default_rng(2)
    size = 64
    weights = np.zeros((num_peers, size), np.float32)
    momentum = np.zeros_like(weights)
    if noise == 0:
        weights += generator.normal(size=weights.shape).astype(np.float32)
    for _ in range(num_rounds):
        deltas = (noise * generator.normal(size=weights.shape)).astype(np.float32)
        before, order = weights.copy(), generator.permutation(num_peers)
        for a, b in zip(order[::2], order[1::2], strict=True):
            for me, other in ((a, b), (b, a)):
                partner = PairParts(encoded(deltas[other]), encoded(before[other]))
                apply_pair(weights[me], momentum[me], encoded(deltas[me]), partner, grids(size), settings)
    return float(weights.var(axis=0).mean())


def test_the_spread_of_replicas_settles_where_the_recursion_says():
    """E[u²] of α = 0.5, β = γ = 0.7 under unit noise: solved from the recursion in `largest_consensus`."""
    alpha, beta, gamma = 0.5, 0.7, 0.7
    v = np.array([gamma**2 / 2, -alpha * gamma, alpha**2])  # E[v'²] of (E[u²], E[uv], E[v²])
    uv = np.array([-gamma / 2, alpha, 0]) + v
    u = np.array([1 - gamma, 2 * alpha, 0]) + v
    noise = beta**2 / 2  # of the mean of two
    settled = np.linalg.solve(np.eye(3) - np.stack([u, uv, v]), np.full(3, noise))[0]
    measured = spread_after(OuterSettings(beta, alpha, gamma), num_peers=200, num_rounds=25, noise=1.0)
    assert measured == pytest.approx(settled, rel=0.08)


def test_replicas_converge_below_the_largest_consensus_and_part_above_it():
    limit = largest_consensus(0.5)
    assert limit == 1.5
    assert spread_after(OuterSettings(0.7, 0.5, 0.9 * limit), 32, 60, noise=0) < 0.1
    assert spread_after(OuterSettings(0.7, 0.5, 1.2 * limit), 32, 60, noise=0) > 10


def test_a_consensus_that_drives_replicas_apart_is_no_configuration():
    with pytest.raises(ValidationError, match="drives replicas apart"):
        OuterConfig(optimizer="noloco", lr=0.7, momentum=0.9)
    with pytest.raises(ValidationError, match="belongs to optimizer 'noloco'"):
        OuterConfig(consensus=0.5)
    assert NOLOCO.at(5) == OuterSettings(0.7, 0.5, 0.7)
