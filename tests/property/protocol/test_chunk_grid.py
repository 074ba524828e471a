"""The chunk grid covers every element and byte exactly once, for any codec, and commitments bind their leaves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.kernels.codec import codec
from atoll.protocol.chunks import ChunkGrid, Contribution, commitment, covers, span_chunks, span_digest, span_range
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Span

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


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(0, 4), st.binary(min_size=32, max_size=32)
)
def test_a_commitment_binds_every_leaf_their_order_and_their_number(leaves, index, other):
    root = commitment(leaves)
    assert commitment([*leaves, other]) != root
    if index < len(leaves) and leaves[index] != other:
        assert commitment([*leaves[:index], other, *leaves[index + 1 :]]) != root
    if leaves != leaves[::-1]:
        assert commitment(leaves[::-1]) != root


def test_a_contribution_knows_its_digests():
    grid = ChunkGrid(600, 256, codec("float32"))
    encoded = bytearray(range(256)) * 10
    contribution = Contribution.of(grid, encoded[: grid.total_encoded], round_number=3, tokens=7)
    assert contribution.commitment == commitment(contribution.leaves)
    assert contribution.leaves[2].hex() == span_digest(encoded[grid.encoded_range(2)])
    with pytest.raises(ValueError, match="instead of"):
        Contribution.of(grid, encoded, round_number=3, tokens=7)
