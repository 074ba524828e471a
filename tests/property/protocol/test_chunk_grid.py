"""The chunk grid covers every element and byte exactly once, for any codec, and commitments bind their leaves."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.kernels.codec import codec
from atoll.protocol.chunks import (
    ChunkGrid,
    Contribution,
    covers,
    leaf_of,
    span_chunks,
    span_digest,
    span_range,
    tree_of,
)
from atoll.protocol.commitments import Tree
from atoll.protocol.identity import Identity
from atoll.protocol.record import Span

OWNER = Identity.from_seed(bytes(32)).peer_id
digests = st.binary(min_size=32, max_size=32)
codec_names = st.sampled_from(["int8", "float32"])


@given(codec_names, st.integers(1, 3000), st.integers(1, 700))
def test_chunks_cover_elements_and_bytes_exactly_once(name, num_elements, chunk_elements):
    grid = ChunkGrid(num_elements, chunk_elements, codec(name))
    elements = [grid.elements(chunk) for chunk in range(grid.num_chunks)]
    encoded = [grid.encoded_range(chunk) for chunk in range(grid.num_chunks)]
    assert [i for part in elements for i in range(num_elements)[part]] == list(range(num_elements))
    assert [i for part in encoded for i in range(grid.total_encoded)[part]] == list(range(grid.total_encoded))
    assert all(part.stop - part.start == grid.encoded_bytes(chunk) for chunk, part in enumerate(encoded))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_spans_tile_the_encoded_vector(lengths):
    grid = ChunkGrid(sum(lengths) * 256 - 5, 256, codec("int8"))
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    spans = [Span(first_chunk=a, num_chunks=n, owner=OWNER) for a, n in zip(starts, lengths, strict=True)]
    assert covers(grid, spans)
    assert not covers(grid, spans[1:])
    assert not covers(grid, [*spans, spans[-1]])
    ends = [span_range(grid, span) for span in spans]
    assert ends[0].start == 0
    assert ends[-1].stop == grid.total_encoded
    assert all(left.stop == right.start for left, right in pairwise(ends))


def test_a_span_outside_the_grid_is_refused():
    grid = ChunkGrid(1000, 256, codec("int8"))
    with pytest.raises(ValueError, match="leaves the grid"):
        span_chunks(grid, Span(first_chunk=3, num_chunks=2, owner=OWNER))
    with pytest.raises(IndexError):
        grid.elements(4)


@pytest.mark.parametrize(("num_elements", "chunk_elements"), [(0, 256), (5, 0)])
def test_an_empty_grid_is_refused(num_elements, chunk_elements):
    with pytest.raises(ValueError, match="empty"):
        ChunkGrid(num_elements, chunk_elements, codec("int8"))


def test_a_contribution_knows_its_leaves():
    grid = ChunkGrid(600, 256, codec("float32"))
    encoded = bytearray(np.linspace(-2, 2, 600, dtype=np.float32).tobytes())
    contribution = Contribution.of(grid, encoded, round_number=3, tokens=7)
    assert (contribution.commitment, contribution.squared_norm) == astuple(Tree(contribution.leaves).root)
    assert contribution.leaves[2] == leaf_of(grid, 2, encoded[grid.encoded_range(2)])
    assert contribution.squared_norm == pytest.approx(float(np.square(np.linspace(-2, 2, 600)).sum()), rel=1e-6)
    with pytest.raises(ValueError, match="instead of"):
        Contribution.of(grid, encoded + b"x", round_number=3, tokens=7)


def test_a_spans_digest_is_the_root_over_its_own_chunks():
    grid = ChunkGrid(600, 256, codec("float32"))
    encoded = np.linspace(-2, 2, 600, dtype=np.float32).tobytes()
    leaves = Contribution.of(grid, encoded, round_number=3, tokens=7).leaves
    span = Span(first_chunk=1, num_chunks=2, owner=OWNER)
    assert span_digest(grid, span, encoded[span_range(grid, span)]) == Tree(leaves[1:]).root.digest


def test_bytes_that_no_encoder_writes_have_no_tree():
    grid = ChunkGrid(600, 256, codec("float32"))
    with pytest.raises(ValueError, match="squared norm"):
        tree_of(grid, np.full(600, np.nan, np.float32).tobytes())
