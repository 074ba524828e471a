"""Parsers of what is shown to others as a proof: receipts, and leaves of commitments."""

from __future__ import annotations

from atoll.protocol import commitments, receipts
from atoll.protocol.envelope import seal
from atoll.protocol.messages import Attest

from . import examples as ex
from .harness import Target

_ATTEST = Attest(
    round=1,
    record=ex.RECORD.content_id(),
    state_hash=ex.ZERO,
    receipts=receipts.statements_root(ex.RUN, ex.COMMIT),
)


def _receipt() -> bytes:
    receipt = receipts.Receipt.make(ex.ME, ex.RUN, ex.COMMIT, [seal(ex.ME, ex.HEADER, _ATTEST)], receipts.FIRST)
    assert receipt is not None
    return receipt.canonical()


PARTS = ("parse", "Receipt.check", "Receipt._check_attest", "Receipt._leads_to")

PROOF_TARGETS = (
    Target(
        "a receipt",
        lambda data: receipts.check_chain(ex.RUN, [receipts.parse(data.decode("utf-8", "replace"))]),
        [_receipt()],
        tuple(f"protocol/receipts.py:{name}" for name in PARTS),
        refusals=(receipts.InvalidReceipt,),
        max_bytes=receipts.MAX_RECEIPT_BYTES,
    ),
    Target(
        "leaves of a commitment",
        commitments.Leaf.decode_all,
        [commitments.Leaf(bytes(32), 1.5).encode() * 3],
        ("protocol/commitments.py:Leaf.decode_all",),
        refusals=(ValueError,),
        max_bytes=64 << 10,
    ),
)
