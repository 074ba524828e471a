"""Laws of data order, layouts, grids, merging and schedules, for any values."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.chunk_grid import ChunkGrid, normalised_weights
from atoll.kernels.codec import codec
from atoll.training.config import InnerConfig, ModelConfig
from atoll.training.data import Lease, permuted
from atoll.training.flat import FlatLayout
from atoll.training.optimizer import learning_rate
from atoll.training.outer import OuterConfig
from atoll.training.session import Carry, merge

keys = st.integers(0, 2**64 - 1)
tokens = st.integers(1, 10**9)


@given(st.integers(1, 300), keys)
def test_a_permutation_maps_a_range_onto_itself(size, key):
    assert sorted(permuted(i, size, key) for i in range(size)) == list(range(size))


@given(st.integers(2, 2**40), keys, st.data())
def test_a_permutation_stays_inside_and_never_collides(size, key, data):
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    images = permuted(first, size, key), permuted(second, size, key)
    assert all(0 <= image < size for image in images)
    assert (images[0] == images[1]) == (first == second)


@given(st.integers(0, 10**12), st.integers(0, 500), st.integers(1, 40))
def test_the_batches_of_a_lease_are_disjoint_and_inside_it(first, count, batch_size):
    lease, seen = Lease(first, count), []
    for step in range(count // batch_size):
        seen += lease.batch(step, batch_size) or ()
    assert seen == list(range(first, first + count // batch_size * batch_size))
    assert lease.batch(count // batch_size, batch_size) is None


models = st.builds(
    lambda heads, group, half, layers, hidden, tied: ModelConfig(
        dim=heads * group * 2 * half,
        num_layers=layers,
        num_heads=heads * group,
        num_kv_heads=heads,
        hidden_dim=hidden,
        vocab_size=7,
        tie_embeddings=tied,
    ),
    *(st.integers(1, 3) for _ in range(3)),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
)


@given(models)
def test_parameters_lie_end_to_end(model):
    ranges = [p.range for p in FlatLayout.of(model).parameters]
    assert ranges[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(ranges))


@settings(max_examples=30)
@given(models, st.data())
def test_any_shard_of_the_initial_state_has_the_bits_of_the_whole(model, data):
    layout = FlatLayout.of(model)
    whole = np.empty(layout.num_elements, np.float32)
    layout.fill_initial(whole, seed=5)
    start = data.draw(st.integers(0, layout.num_elements - 1))
    stop = data.draw(st.integers(start + 1, layout.num_elements))
    part = np.empty(stop - start, np.float32)
    layout.fill_initial(part, 5, start)
    assert part.tobytes() == whole[start:stop].tobytes()


@given(st.integers(1, 5000), st.integers(1, 700), st.sampled_from(["int8", "float32"]))
def test_a_grid_covers_vector_and_encoding_exactly(num_elements, chunk_elements, name):
    grid = ChunkGrid(num_elements, chunk_elements, codec(name))
    elements = [grid.elements(c) for c in range(grid.num_chunks)]
    encoded = [grid.encoded_range(c) for c in range(grid.num_chunks)]
    for ranges, length in ((elements, num_elements), (encoded, grid.total_encoded)):
        assert (ranges[0].start, ranges[-1].stop) == (0, length)
        assert all(a.stop == b.start and a.start < a.stop for a, b in pairwise(ranges))


@given(st.lists(tokens, min_size=1, max_size=64))
def test_weights_are_proportional_to_tokens_and_sum_to_one(counts):
    weights = normalised_weights(counts)
    assert math.isclose(sum(weights), 1, rel_tol=1e-5)
    assert all(weight == np.float32(weight) for weight in weights)
    assert math.isclose(weights[0] * sum(counts), counts[0], rel_tol=1e-6)


@given(tokens, tokens, st.floats(-100, 100), st.floats(-100, 100))
def test_a_merged_carry_is_the_weighted_mean_with_the_summed_weight(own, carried, own_value, carried_value):
    delta = np.full(3, own_value, np.float32)
    total = merge(delta, own, Carry(np.full(3, carried_value, np.float32), carried))
    assert total == own + carried
    expected = (own * own_value + carried * carried_value) / total
    assert np.allclose(delta, expected, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 1000), st.integers(0, 200), st.floats(0, 0.99))
def test_outer_momentum_never_falls_and_never_exceeds_its_value(round_, warmup, momentum):
    outer = OuterConfig(momentum=momentum, momentum_warmup_rounds=warmup)
    assert 0 <= outer.at(round_).beta <= outer.at(round_ + 1).beta <= momentum


@given(st.integers(0, 500), st.sampled_from(["constant", "wsd", "cosine", "linear"]), st.integers(0, 50))
def test_learning_rates_stay_between_zero_and_the_configured_one(step, schedule, warmup):
    config = InnerConfig(lr=0.3, schedule=schedule, warmup_steps=warmup, total_steps=200, decay_steps=40)
    assert 0 <= learning_rate(config, step) <= 0.3
