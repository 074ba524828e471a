"""A mean of means, weighted by tokens, is the flat mean: exactly without a codec, within its error with one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.protocol.aggregation import reduce_chunk
from atoll.protocol.chunks import ChunkGrid
from atoll.protocol.identity import Identity
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.weights import clip_factors, weights

from .conftest import D, digest, plan_of

MANY = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 11)]

NUM_ELEMENTS = 4096


def encoded(grid: ChunkGrid, values: np.ndarray) -> np.ndarray:
    out = np.empty(grid.encoded_bytes(0), np.uint8)
    grid.codec.encode(values.astype(np.float32), out)
    return out


def decoded(grid: ChunkGrid, data: np.ndarray) -> np.ndarray:
    out = np.empty(NUM_ELEMENTS, np.float32)
    grid.codec.decode(data, out)
    return out


@pytest.mark.parametrize(("codec_name", "error"), [("float32", 1e-6), ("int8", 0.012)])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 3, 8), (6, 6), (12,)])
def test_two_tiers_give_the_flat_weighted_mean(sizes: tuple[int, ...], codec_name: str, error: float) -> None:
    random, grid = np.random.default_rng(7), ChunkGrid(NUM_ELEMENTS, NUM_ELEMENTS, codec(codec_name))
    common = random.standard_normal(NUM_ELEMENTS)
    values = [common + random.standard_normal(NUM_ELEMENTS) for _ in range(sum(sizes))]
    tokens = random.integers(50, 150, sum(sizes)).astype(float)
    flat = np.average(values, axis=0, weights=tokens)
    edges = np.cumsum([0, *sizes])
    means, weights = [], []
    for first, stop in pairwise(edges):
        shares = tokens[first:stop] / tokens[first:stop].sum()
        means.append(reduce_chunk(grid, 0, [encoded(grid, v).data for v in values[first:stop]], list(shares)).encoded)
        weights.append(tokens[first:stop].sum())
    whole = reduce_chunk(grid, 0, [mean.data for mean in means], list(np.array(weights) / tokens.sum())).encoded
    assert np.linalg.norm(decoded(grid, whole) - flat) / np.linalg.norm(flat) < error


@pytest.mark.parametrize("agreement", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("others", [2, 4, 16])
def test_a_delegate_with_a_small_group_is_clipped_little_although_its_mean_is_noisier(others: int, agreement: float):
    """Norms of means of n contributions that agree by a cosine of c are as the root of c + (1 − c)/n."""
    norms = [np.sqrt(agreement + (1 - agreement) / size) for size in (1, *[others] * 8)]
    factor, *usual = clip_factors(norms, [100.0, *[100.0 * others] * 8], 2.0)
    assert usual == [1.0] * 8
    assert factor >= 0.79


def test_a_delegate_that_claims_a_group_weighs_four_median_groups_at_most() -> None:
    """Whatever it claims, and although a member of the roster may weigh as much as all its seats together."""
    tokens = [10**9, *[400] * 9]
    plan = plan_of(
        [(peer, count, digest(i)) for i, (peer, count) in enumerate(zip(MANY, tokens, strict=True))], [(1, D)]
    )
    shares = weights(plan, [True] * 10, TrustConfig(), LimitsConfig())
    assert shares[0] == pytest.approx(4 / 13)
    assert sum(shares) == pytest.approx(1)
