"""Whether a delegate contributes what its group has reduced: each follower can tell for the span that it owned. Pure.

The delegate's commitment is a root over the chunks of the group's mean. With its result a delegate shows, per span, the
neighbours that lead from the span's chunks to that root; the owner of the span has the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..commitments import Leaf, Root, Tree, verify
from ..messages import GroupResult
from ..record import Plan


def proofs_of(tree: Tree, plan: Plan) -> tuple[str, ...]:
    """Per span of ``plan`` the proof of its chunks in the mean's ``tree``, hexadecimal."""
    spans = ((span.first_chunk, span.num_chunks) for span in plan.spans)
    return tuple(b"".join(leaf.encode() for leaf in tree.proof(*span)).hex() for span in spans)


def is_faithful(result: GroupResult, span: int, leaves: Sequence[Leaf], num_chunks: int) -> bool:
    """Whether ``leaves``, the chunks of the mean of ``span``, are part of what the delegate has committed to."""
    root = Root(result.commitment, result.squared_norm)
    try:
        proof = Leaf.decode_all(bytes.fromhex(result.proofs[span]))
    except (ValueError, IndexError):
        return False
    return verify(root, num_chunks, result.record.plan.spans[span].first_chunk, leaves, proof)
