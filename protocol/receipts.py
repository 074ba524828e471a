"""Receipts: signed, hash-chained, countersigned proofs that a contribution is part of a committed round.

Everybody who applies a commit can compute one `Statement` per contribution that counted. The statements of a round are
the leaves of a tree whose root every member signs with its `Attest`. A receipt is one's own statement, its path to that
root, the attests of others, and the hash of the receipt before, signed: whoever has it can prove what it has given
without asking anybody, and whoever gets it needs only the run id to check it. A countersigner vouches for the round as
it applied it; that its signature is worth something (that it was a member, say) is for the reader to judge.

Pure: nothing here performs I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from .commitments import ENTRY_BYTES, Leaf, Root, Tree, verify
from .envelope import Envelope, InvalidMessage
from .identity import Identity, PeerId
from .identity import verify as verify_signature
from .messages import Attest, Commit
from .parsing import parse as parse_json
from .values import Count, Digest, Frozen, Peer, Round

DOMAIN = b"atoll/receipt/1\0"
FIRST = "0" * 64
"""`Receipt.previous` of a node's first receipt."""
MAX_RECEIPT_BYTES = 1 << 20
_NODE = f"^[0-9a-f]{{{2 * ENTRY_BYTES}}}$"


class InvalidReceipt(ValueError):
    """A receipt that proves nothing, with the reason."""


class Statement(Frozen):
    """What a round's record says of one contribution."""

    run_id: Digest
    lineage: Count
    round: Round
    record: Digest
    peer: Peer
    tokens: Count
    num_spans: Annotated[int, Field(ge=1)]
    num_included: Annotated[int, Field(ge=1)]
    """Spans of the mean that include the contribution."""


def statements(run_id: str, commit: Commit) -> tuple[Statement, ...]:
    """One per member whose contribution is in at least one span, in plan order."""
    plan, results = commit.record.plan, commit.record.results
    record_id = commit.record.content_id()
    counted = ((member, sum(result.included[index] for result in results)) for index, member in enumerate(plan.members))
    return tuple(
        Statement(
            run_id=run_id,
            lineage=plan.lineage,
            round=plan.round,
            record=record_id,
            peer=member.peer,
            tokens=member.tokens,
            num_spans=len(results),
            num_included=num_included,
        )
        for member, num_included in counted
        if num_included
    )


def statements_root(run_id: str, commit: Commit) -> Digest:
    """What an `Attest` signs beside the state hash."""
    return _tree(statements(run_id, commit)).root.digest


def _tree(said: Sequence[Statement]) -> Tree:
    return Tree([_leaf(statement) for statement in said])


def _leaf(statement: Statement) -> Leaf:
    return Leaf(bytes.fromhex(statement.content_id()), 0.0)


class Receipt(Frozen):
    """Proof of one contribution. `make` signs one, `check` verifies it."""

    statement: Statement
    index: Count
    """Of the statement among the round's."""
    num_statements: Annotated[int, Field(ge=1, le=1024)]
    proof: Annotated[tuple[Annotated[str, Field(pattern=_NODE)], ...], Field(max_length=64)]
    """Path to the root that countersigners signed."""
    previous: Digest
    """`link` of this peer's receipt before; `FIRST` for the first."""
    attests: Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=1024)]
    """Hexadecimal `Attest` envelopes of others."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @property
    def link(self) -> str:
        """What the next receipt names as `previous`."""
        return self.content_id()

    @classmethod
    def make(
        cls, identity: Identity, run_id: str, commit: Commit, attests: Collection[bytes], previous: str
    ) -> Self | None:
        """The receipt of ``identity`` for ``commit``; None if its contribution is in none of the round's means.

        Of ``attests``, those are kept that vouch for exactly this round's statements.
        """
        said = statements(run_id, commit)
        index = next((index for index, statement in enumerate(said) if statement.peer == identity.peer_id), None)
        if index is None:
            return None
        tree, statement = _tree(said), said[index]
        draft = cls(
            statement=statement,
            index=index,
            num_statements=len(said),
            proof=tuple(node.encode().hex() for node in tree.proof(index, 1)),
            previous=previous,
            attests=tuple(raw.hex() for raw in attests if _witness(raw, statement, tree.root.digest) is not None),
            signature="0" * 128,
        )
        return draft.model_copy(update={"signature": identity.sign(DOMAIN + draft.signed_bytes()).hex()})

    def signed_bytes(self) -> bytes:
        """The canonical form without the signature's value."""
        return self.model_copy(update={"signature": ""}).canonical()

    def check(self) -> frozenset[PeerId]:
        """Who countersigned it, the peer itself left out. Raises `InvalidReceipt` if anything does not hold."""
        if not verify_signature(
            PeerId(self.statement.peer), bytes.fromhex(self.signature), DOMAIN + self.signed_bytes()
        ):
            raise InvalidReceipt("its signature does not match; it was changed, or another key has signed it")
        witnesses = {self._check_attest(text) for text in self.attests}
        return frozenset(witnesses - {self.statement.peer})

    def _check_attest(self, text: str) -> PeerId:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise InvalidReceipt("a countersignature is not hexadecimal") from None
        witness = _witness(raw, self.statement, None)
        if witness is None or not self._leads_to(witness[1]):
            raise InvalidReceipt("a countersignature does not vouch for this contribution")
        return witness[0]

    def _leads_to(self, root: str) -> bool:
        try:
            proof = Leaf.decode_all(bytes.fromhex("".join(self.proof)))
        except ValueError:
            return False
        return verify(Root(root, 0.0), self.num_statements, self.index, [_leaf(self.statement)], proof)


def _witness(raw: bytes, statement: Statement, root: str | None) -> tuple[PeerId, str] | None:
    """Who attests the statement's round in ``raw`` with which root (None: any); None if it is no such attest."""
    try:
        envelope = Envelope.open(raw, run_id=statement.run_id)
    except InvalidMessage:
        return None
    body = envelope.body
    if not isinstance(body, Attest) or envelope.header.lineage != statement.lineage or body.receipts is None:
        return None
    if (body.round, body.record) != (statement.round, statement.record) or root not in (None, body.receipts):
        return None
    return envelope.header.sender, body.receipts


# --- a chain of them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """What a chain of receipts proves."""

    peer: PeerId
    num_receipts: int
    tokens: int
    first_round: int
    last_round: int
    countersigners: frozenset[PeerId]
    num_lone: int
    """Receipts that nobody else has countersigned: a lone node's word for itself."""


def parse(line: str) -> Receipt:
    """One line of an exported file. Raises `InvalidReceipt`."""
    if len(line) > MAX_RECEIPT_BYTES:
        raise InvalidReceipt(f"longer than {MAX_RECEIPT_BYTES} bytes; this is no receipt")
    try:
        return parse_json(Receipt, line.encode())
    except ValueError as error:
        raise InvalidReceipt(f"not a receipt: {str(error)[:120]}") from None


def check_chain(run_id: str, receipts: Iterable[Receipt]) -> Given:
    """Verify receipts of one peer in one run, oldest first. Raises `InvalidReceipt` naming the first that fails.

    The first may follow receipts that are not shown; a gap between two of them is an error.
    """
    rounds: list[int] = []
    tokens, num_lone, previous = 0, 0, None
    peer, countersigners = None, set[PeerId]()
    for receipt in receipts:
        said = receipt.statement
        where = f"receipt of round {said.round}"
        if said.run_id != run_id:
            raise InvalidReceipt(f"{where}: of another run ({said.run_id[:8]}…)")
        if peer not in (None, said.peer):
            raise InvalidReceipt(f"{where}: of another peer than the ones before")
        if previous not in (None, receipt.previous):
            raise InvalidReceipt(f"{where}: does not follow the one before; one is missing or was replaced")
        if rounds and said.round <= rounds[-1]:
            raise InvalidReceipt(f"{where}: follows one of round {rounds[-1]}; a round counts once")
        try:
            witnesses = receipt.check()
        except InvalidReceipt as error:
            raise InvalidReceipt(f"{where}: {error}") from None
        peer, previous = PeerId(said.peer), receipt.link
        rounds.append(said.round)
        tokens += said.tokens
        num_lone += not witnesses
        countersigners |= witnesses
    if peer is None:
        raise InvalidReceipt("no receipts")
    return Given(peer, len(rounds), tokens, rounds[0], rounds[-1], frozenset(countersigners), num_lone)
