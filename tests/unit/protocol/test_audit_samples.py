"""How many chunks a member audits: as many as the run allows, for no more traffic than it allows."""

from __future__ import annotations

import random

import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.protocol.audit import sample_size
from atoll.protocol.spec import TrustConfig

CHUNK = 65_536
SMALL, LARGE = (ChunkGrid(elements, CHUNK, codec("int8")) for elements in (139_584, 10_000_000))


def test_a_model_of_many_chunks_is_audited_as_often_as_the_run_says():
    assert {sample_size(TrustConfig(), LARGE, 4, random.Random(seed)) for seed in range(50)} == {8}
    assert sample_size(TrustConfig(audited_chunks=3), LARGE, 4) == 3
    assert sample_size(TrustConfig(audited_chunks=0), LARGE, 4) == 0


@pytest.mark.parametrize("num_members", [2, 3, 8, 64])
def test_a_model_of_few_chunks_is_audited_in_some_rounds_and_costs_its_share_on_average(num_members):
    generator = random.Random(7)
    sizes = [sample_size(TrustConfig(), SMALL, num_members, generator) for _ in range(20_000)]
    assert set(sizes) == {0, 1}
    cost = sum(sizes) / len(sizes) * num_members * SMALL.encoded_bytes(0)
    assert cost == pytest.approx(0.25 * SMALL.total_encoded, rel=0.15)
