"""Signatures inside messages: an owner's under a span result, a leader's under what it proposes. Pure.

The first makes a wrong or a second result provable; the second shows, with a promise, that what an acceptor says it has
voted for was really proposed.
"""

from __future__ import annotations

from functools import lru_cache

from .identity import Identity, PeerId, verify
from .parsing import canonical_json
from .record import SpanResult

DOMAIN = b"atoll/result/1\0"
PROPOSAL_DOMAIN = b"atoll/proposal/1\0"


def signed(identity: Identity, result: SpanResult) -> SpanResult:
    """``result`` with this identity's signature. Ed25519 is deterministic: the same result gets the same one."""
    return result.model_copy(update={"signature": identity.sign(_statement(result)).hex()})


def is_signed(result: SpanResult, owner: PeerId) -> bool:
    """Whether ``owner`` has signed exactly this. The plan's id inside binds run, lineage, round and attempt."""
    return _verified(owner, result.signature, _statement(result))


@lru_cache(maxsize=4096)
def _verified(owner: PeerId, signature: str, statement: bytes) -> bool:
    return verify(owner, bytes.fromhex(signature), statement)


def says_the_same(first: SpanResult, second: SpanResult) -> bool:
    """Whether two results differ in nothing but their signatures."""
    return _statement(first) == _statement(second)


def _statement(result: SpanResult) -> bytes:
    return DOMAIN + canonical_json(result.model_dump(mode="json", exclude={"signature"}))


def seal_of(identity: Identity, ballot: int, record: str) -> str:
    """`Proposal.seal` for the record with this content id."""
    return identity.sign(_proposal(ballot, record)).hex()


def is_sealed(seal: str, leader: PeerId, ballot: int, record: str) -> bool:
    """Whether ``leader`` has proposed the record at this ballot."""
    return _verified(leader, seal, _proposal(ballot, record))


def _proposal(ballot: int, record: str) -> bytes:
    return PROPOSAL_DOMAIN + canonical_json({"ballot": ballot, "record": record})
