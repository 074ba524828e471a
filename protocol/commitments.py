"""What a peer commits to before it reveals a byte: a Merkle sum tree over the chunks of an encoded vector.

Each leaf is a chunk's digest with the squared norm of its decoded values. A node binds the digests *and the squared
norms* of its two children, so that whoever checks its own leaves against the root also knows that they are honestly
part of the root's squared norm: a member cannot state a small norm and send a large vector without one of the owners
(each verifies all leaves of its spans) finding the lie. Sum trees: Wilcox 2014, "Proving your Bitcoin reserves".

    leaf   BLAKE3(domain · digest · norm)                        norm: squared norm as float64, little endian
    node   BLAKE3(domain · left hash · left norm · right hash · right norm), its norm left + right in float64
    root   BLAKE3(domain · number of leaves (8 bytes) · hash · norm) of the top node

Levels are paired from the left; a last node without partner rises as it is. The norm of the root is therefore a sum in
tree order, which every machine computes to the same bits. No I/O, no knowledge of what the chunks hold.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

DIGEST_BYTES = 32
MAX_LEAVES = 2**32
_LEAF_DOMAIN, _NODE_DOMAIN, _ROOT_DOMAIN = b"atoll/leaf/1\0", b"atoll/node/1\0", b"atoll/root/1\0"
_ENTRY = struct.Struct("<32sd")
ENTRY_BYTES = _ENTRY.size
"""Wire size of a `Leaf`."""


@dataclass(frozen=True)
class Leaf:
    """A chunk's digest with its squared norm, or, in proofs, a subtree's hash with its sum.

    Raises ValueError for a digest that has not 32 bytes and a squared norm that is negative or not finite.
    """

    digest: bytes
    squared_norm: float

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_BYTES:
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(self.digest)}")
        # copysign: −0.0 would be a second encoding of zero.
        if not math.isfinite(self.squared_norm) or math.copysign(1.0, self.squared_norm) < 0:
            raise ValueError(f"a squared norm is finite and not negative, not {self.squared_norm}")

    def encode(self) -> bytes:
        """32 bytes of digest, then the squared norm as a little-endian float64."""
        return _ENTRY.pack(self.digest, self.squared_norm)

    @classmethod
    def decode_all(cls, data: bytes | memoryview) -> tuple[Leaf, ...]:
        """Leaves from their concatenated wire form. Raises ValueError for anything `encode` does not write."""
        if len(data) % ENTRY_BYTES:
            raise ValueError(f"{len(data)} bytes are no whole number of leaves of {ENTRY_BYTES}")
        return tuple(cls(digest, norm) for digest, norm in _ENTRY.iter_unpack(data))


@dataclass(frozen=True)
class Root:
    """What is committed to."""

    digest: str
    """Hexadecimal."""
    squared_norm: float


class Tree:
    """All levels over ``leaves``. Raises ValueError without leaves, or if their norms have no finite sum."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        if not leaves:
            raise ValueError("a tree needs a leaf")
        self.leaves = tuple(leaves)
        self._levels = [tuple(_hashed(leaf) for leaf in self.leaves)]
        while len(self._levels[-1]) > 1:
            self._levels.append(tuple(_paired(self._levels[-1])))

    @property
    def root(self) -> Root:
        return _root(len(self.leaves), self._levels[-1][0])

    def proof(self, first: int, count: int) -> tuple[Leaf, ...]:
        """What `verify` needs beside leaves ``first … first + count − 1``: about 2·log₂(number of leaves) nodes.

        From the lowest level up, left neighbour before right. Raises ValueError for a range outside the tree.
        """
        if not _is_range(len(self.leaves), first, count):
            raise ValueError(f"leaves {first}..{first + count - 1} are not in a tree of {len(self.leaves)}")
        neighbours: list[Leaf] = []
        for level in self._levels[:-1]:
            left, right = _neighbours(len(level), first, count)
            neighbours += [level[first - 1]] if left else []
            neighbours += [level[first + count]] if right else []
            first, count = _above(len(level), first, count)
        return tuple(neighbours)


def proof_length(num_leaves: int, first: int, count: int) -> int:
    """Number of nodes in `Tree.proof`; ValueError for a range outside the tree. Lengths never come from a frame."""
    if not _is_range(num_leaves, first, count):
        raise ValueError(f"leaves {first}..{first + count - 1} are not in a tree of {num_leaves}")
    length = 0
    while num_leaves > 1:
        length += sum(_neighbours(num_leaves, first, count))
        first, count = _above(num_leaves, first, count)
        num_leaves = (num_leaves + 1) // 2
    return length


def narrow(num_leaves: int, first: int, leaves: Sequence[Leaf], proof: Sequence[Leaf], leaf: int) -> tuple[Leaf, ...]:
    """Proof of one ``leaf`` (its index in the tree), out of a valid proof of the range of ``leaves`` that it is in."""
    rest, single = iter(proof), list[Leaf]()
    nodes, size = [_hashed(each) for each in leaves], num_leaves
    while size > 1:
        left, right = _neighbours(size, first, len(nodes))
        nodes = [*([next(rest)] if left else []), *nodes, *([next(rest)] if right else [])]
        sibling = leaf ^ 1
        if sibling < size:
            single.append(nodes[sibling - first + left])
        first, leaf, size, nodes = first // 2, leaf // 2, (size + 1) // 2, _paired(nodes)
    return tuple(single)


def verify(root: Root, num_leaves: int, first: int, leaves: Sequence[Leaf], proof: Sequence[Leaf]) -> bool:
    """Whether ``leaves`` are leaves ``first …`` of the tree of ``num_leaves`` with this root. Never raises on a lie."""
    if not _is_range(num_leaves, first, len(leaves)) or len(proof) != proof_length(num_leaves, first, len(leaves)):
        return False
    rest = iter(proof)
    nodes, size = [_hashed(leaf) for leaf in leaves], num_leaves
    try:
        while size > 1:
            left, right = _neighbours(size, first, len(nodes))
            first, _ = _above(size, first, len(nodes))
            nodes = [*([next(rest)] if left else []), *nodes, *([next(rest)] if right else [])]
            nodes, size = _paired(nodes), (size + 1) // 2
        return _root(num_leaves, nodes[0]) == root
    except ValueError:  # norms whose sum is not finite
        return False


def _is_range(num_leaves: int, first: int, count: int) -> bool:
    return num_leaves <= MAX_LEAVES and first >= 0 and 0 < count <= num_leaves - first


def _neighbours(size: int, first: int, count: int) -> tuple[bool, bool]:
    """Whether a range of a level lacks a partner at its left and right end."""
    end = first + count
    return first % 2 == 1, end % 2 == 1 and end < size


def _above(size: int, first: int, count: int) -> tuple[int, int]:
    """The range of parents of a range of a level."""
    return first // 2, (min(first + count + 1, size + 1)) // 2 - first // 2


def _paired(level: Sequence[Leaf]) -> list[Leaf]:
    pairs = [_parent(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return [*pairs, level[-1]] if len(level) % 2 else pairs


def _hashed(leaf: Leaf) -> Leaf:
    return Leaf(blake3(_LEAF_DOMAIN + leaf.encode()).digest(), leaf.squared_norm)


def _parent(left: Leaf, right: Leaf) -> Leaf:
    digest = blake3(_NODE_DOMAIN + left.encode() + right.encode()).digest()
    return Leaf(digest, left.squared_norm + right.squared_norm)


def _root(num_leaves: int, top: Leaf) -> Root:
    data = _ROOT_DOMAIN + num_leaves.to_bytes(8, "little") + top.encode()
    return Root(blake3(data).hexdigest(), top.squared_norm)
