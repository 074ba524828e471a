"""The state hash: leaves are those of the concatenation, and the root binds everything."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from blake3 import blake3

from atoll.kernels.hash_tree import LEAF_BYTES, leaf_digest, leaf_digests, root

BYTES = np.random.default_rng(0).integers(0, 256, 2 * LEAF_BYTES + 77, np.uint8)
WHOLE = BYTES.tobytes()
EXPECTED = [blake3(WHOLE[i : i + LEAF_BYTES]).digest() for i in range(0, len(WHOLE), LEAF_BYTES)]


@pytest.mark.parametrize("cuts", [[], [1], [LEAF_BYTES], [LEAF_BYTES - 1, LEAF_BYTES + 1], [5, 5, 2 * LEAF_BYTES]])
def test_leaves_are_those_of_the_concatenation(cuts):
    assert leaf_digests(np.split(BYTES, cuts)) == EXPECTED


def test_float_arrays_memoryviews_and_maps_hash_by_their_bytes():
    floats = np.arange(1000, dtype=np.float32)
    mapped = mmap.mmap(-1, 4000)
    mapped.write(floats.tobytes())
    digest = blake3(floats.tobytes()).digest()
    for buffer in (floats, memoryview(floats), mapped, bytearray(floats), floats.reshape(10, 100)):
        assert leaf_digests([buffer]) == [digest] == [leaf_digest(buffer)]


def test_no_bytes_have_no_leaves_but_a_root():
    assert leaf_digests([]) == leaf_digests([b"", np.empty(0, np.float32)]) == []
    assert len(root([], b"")) == 64


def test_the_root_is_fixed():
    assert (
        root(EXPECTED[:1], b"round 1")
        == blake3(
            (1).to_bytes(8, "little") + (7).to_bytes(8, "little") + b"round 1" + EXPECTED[0],
            derive_key_context="atoll 2026 state root v1",
        ).hexdigest()
    )


def test_the_root_binds_leaves_their_order_their_number_and_the_context():
    a, b = EXPECTED[:2]
    roots = [
        root(*arguments) for arguments in ([[a, b], b""], [[b, a], b""], [[a], b""], [[a], b"x"], [[a], b], [[], a])
    ]
    assert len(set(roots)) == len(roots)


def test_a_leaf_cannot_pass_for_a_root():
    content = (1).to_bytes(8, "little") + (0).to_bytes(8, "little") + EXPECTED[0]
    assert leaf_digest(content).hex() != root(EXPECTED[:1], b"")


def test_something_that_is_no_digest_is_refused():
    with pytest.raises(ValueError, match="32 bytes, not 3"):
        root([b"abc"], b"")
