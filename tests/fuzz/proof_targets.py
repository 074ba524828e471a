"""Parsers of what is shown to others as a proof: receipts, and leaves of commitments."""

from __future__ import annotations

from atoll.protocol import commitments, invites, receipts
from atoll.protocol.doorkeeper import Doorkeeper
from atoll.protocol.envelope import DOMAIN, SIGNATURE_BYTES, seal
from atoll.protocol.messages import Attest, Heartbeat
from atoll.protocol.quotas import STRANGER_MESSAGE_BYTES
from atoll.protocol.spec import Genesis, MembershipConfig
from atoll.protocol.standing import Standing
from atoll.protocol.transport import RemoteProtocolError

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


_SEED = bytes([7]) * 32
_BEARER = invites.Identity.from_seed(_SEED)
_GENESIS = Genesis(
    name="invited",
    protocol_version=1,
    initial_state=ex.ZERO,
    operators=(ex.ME.peer_id,),
    model={},
    membership=MembershipConfig(roster=(ex.ME.peer_id,), mode="invite"),
)
_INVITE = invites.make(ex.ME, run_id=_GENESIS.run_id, owner="anna", bearer=_BEARER.peer_id, until_round=9)
_GUEST = invites.Identity.from_seed(bytes([8]) * 32)


def _stranger_says(signed: bytes) -> None:
    """A stranger signs whatever it likes and shows it at the gate."""
    doorkeeper = Doorkeeper(_GENESIS, lambda: Standing.of_genesis(_GENESIS), lambda: 1e9)
    doorkeeper.receive(_GUEST.peer_id, _GUEST.sign(DOMAIN + signed) + signed)


def _shown() -> bytes:
    header = ex.HEADER.model_copy(update={"run_id": _GENESIS.run_id, "sender": _GUEST.peer_id})
    ticket = invites.claim(_INVITE, _BEARER, _GUEST.peer_id)
    body = Heartbeat(round=0, state_hash=ex.ZERO, phase="syncing", ticket=ticket)
    return seal(_GUEST, header, body)[SIGNATURE_BYTES:]


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
        "an invite's file",
        lambda data: invites.InviteFile.parse(data).ticket(_GUEST.peer_id),
        [invites.InviteFile(invite=_INVITE, secret=_SEED.hex()).canonical()],
        (
            *(f"protocol/invites.py:{name}" for name in ("InviteFile.parse", "InviteFile.ticket")),
            "node/invitation.py:read_invite",
        ),
        refusals=(invites.InviteRefused,),
        max_bytes=2 * invites.MAX_FILE_BYTES,
    ),
    Target(
        "an invite shown by a stranger",
        _stranger_says,
        [_shown()],
        ("protocol/doorkeeper.py:Doorkeeper.receive", "protocol/invites.py:_holds"),
        refusals=(RemoteProtocolError,),
        max_bytes=STRANGER_MESSAGE_BYTES,
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
