"""Merkle sum trees: every range can be proven, and nothing else."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.commitments import Leaf, Root, Tree, proof_length, verify

NORMS = st.floats(0, 1e30, allow_nan=False) | st.just(0.0)
DIGESTS = st.binary(min_size=32, max_size=32)
LEAVES = st.lists(st.builds(Leaf, DIGESTS, NORMS), min_size=1, max_size=40, unique_by=lambda leaf: leaf.digest)


@st.composite
def ranges(draw):
    """Leaves, and a range of them."""
    leaves = draw(LEAVES)
    first = draw(st.integers(0, len(leaves) - 1))
    return leaves, first, draw(st.integers(1, len(leaves) - first))


@given(ranges())
def test_every_range_of_leaves_can_be_proven_with_a_proof_of_known_length(case):
    leaves, first, count = case
    tree = Tree(leaves)
    proof = tree.proof(first, count)
    assert (
        len(proof) == proof_length(len(leaves), first, count) <= 2 * math.ceil(math.log2(len(leaves)) if leaves else 0)
    )
    assert verify(tree.root, len(leaves), first, leaves[first : first + count], proof)


@given(ranges(), st.data())
def test_a_range_that_differs_in_anything_is_refused(case, data):
    leaves, first, count = case
    tree = Tree(leaves)
    shown, proof = leaves[first : first + count], tree.proof(first, count)
    changed = data.draw(st.integers(0, count - 1))
    larger = dataclasses.replace(shown[changed], squared_norm=shown[changed].squared_norm * 2 + 1)
    other = dataclasses.replace(shown[changed], digest=bytes(b ^ 1 for b in shown[changed].digest))
    for lie in (larger, other):
        assert not verify(tree.root, len(leaves), first, [*shown[:changed], lie, *shown[changed + 1 :]], proof)
    assert not verify(tree.root, len(leaves) + 1, first, shown, proof)
    assert not verify(tree.root, len(leaves), first + 1, shown, proof)
    assert not verify(tree.root, len(leaves), first, shown[1:], proof)
    assert not verify(tree.root, len(leaves), first, shown, [*proof, shown[0]])
    assert not verify(Root(tree.root.digest, tree.root.squared_norm + 1e31), len(leaves), first, shown, proof)


@given(ranges(), st.data())
def test_norms_cannot_be_moved_between_a_range_and_its_proof(case, data):
    leaves, first, count = case
    tree = Tree(leaves)
    proof = list(tree.proof(first, count))
    if not proof:
        return
    at = data.draw(st.integers(0, len(proof) - 1))
    hidden = proof[at].squared_norm
    proof[at] = dataclasses.replace(proof[at], squared_norm=hidden / 2)
    shown = [dataclasses.replace(leaves[first], squared_norm=leaves[first].squared_norm + hidden / 2)]
    moved = verify(tree.root, len(leaves), first, [*shown, *leaves[first + 1 : first + count]], proof)
    assert moved == (hidden / 2 == hidden and shown[0] == leaves[first])


@given(LEAVES)
def test_the_norm_of_the_root_is_the_sum_of_the_leaves(leaves):
    total = math.fsum(leaf.squared_norm for leaf in leaves)
    assert Tree(leaves).root.squared_norm == pytest.approx(total, rel=1e-14)


@given(LEAVES)
def test_leaves_read_back_from_the_wire(leaves):
    assert list(Leaf.decode_all(b"".join(leaf.encode() for leaf in leaves))) == leaves


@pytest.mark.parametrize("norm", [-1.0, -0.0, math.nan, math.inf, -math.inf])
def test_a_norm_that_is_none_is_refused(norm):
    with pytest.raises(ValueError, match="squared norm"):
        Leaf(bytes(32), norm)


def test_norms_without_a_finite_sum_are_refused_and_verify_to_nothing():
    huge = Leaf(bytes(32), 1.7e308)
    with pytest.raises(ValueError, match="squared norm"):
        Tree([huge, huge])
    assert not verify(Root("0" * 64, 1.0), 2, 0, [huge, huge], [])


def test_an_inner_node_cannot_pass_for_a_leaf_nor_a_short_tree_for_a_long_one():
    leaves = [Leaf(bytes([i]) * 32, float(i)) for i in range(4)]
    tree = Tree(leaves)
    left, right = tree.proof(2, 2)[0], tree.proof(0, 2)[0]
    assert Tree([left, right]).root != tree.root
    assert not verify(tree.root, 2, 0, [left, right], [])


def test_a_range_outside_the_tree_has_no_proof():
    tree = Tree([Leaf(bytes(32), 0.0)] * 3)
    for first, count in ((-1, 1), (0, 0), (0, 4), (3, 1)):
        with pytest.raises(ValueError, match="not in a tree"):
            tree.proof(first, count)
        with pytest.raises(ValueError, match="not in a tree"):
            proof_length(3, first, count)


def test_the_root_is_part_of_the_protocol():
    """Fixed forever: another value here means that nodes of two versions cannot agree."""
    tree = Tree([Leaf(bytes([i]) * 32, i / 2) for i in range(5)])
    assert tree.root == Root("2fb0624e0970734b50655a3d60a11d8d158608ada6aac56af4e57e96b09f9775", 5.0)
