"""What two peers tell each other over libp2p before one dials the other beside it, and what proves that it was told.

The peer that will accept the connection makes a ticket for the other: a number and a secret, valid once, for a few
seconds, for this peer. The dialler shows the number in clear, so that strangers cost a listener no handshake; inside
the TLS connection each side proves that it knows the secret, in a form bound to the run and to who speaks to whom.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ...identity import PeerId
from ...values import Frozen
from .certificates import MAX_CERTIFICATE_BYTES, check

NUMBER_BYTES, SECRET_BYTES, PROOF_BYTES = 16, 32, 32
MAGIC = b"atoll/1 direct \n"
PREAMBLE_BYTES = len(MAGIC) + NUMBER_BYTES
LIFETIME_S = 10.0
MAX_PENDING_PER_PEER, MAX_PENDING = 16, 1024
MAX_REASON_CHARS = 160
_DOMAIN = b"atoll/direct/1\0"


class Ticket(Frozen):
    """Where to dial, and what to show there."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    number: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]


class _Certified(Frozen):
    certificate: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * MAX_CERTIFICATE_BYTES)]
    """DER of the sender's certificate in hexadecimal."""

    def certificate_of(self, peer: PeerId) -> bytes:
        """DER. Raises ValueError unless it is ``peer``'s, whom libp2p has authenticated as the sender."""
        certificate = bytes.fromhex(self.certificate)
        check(certificate, peer)
        return certificate


class Offer(_Certified):
    """Who wants to open streams says which of the two should dial."""

    dialler: Literal["asker", "answerer"]


class Answer(_Certified):
    """A ticket if the asker is to dial; else whether the answerer will dial, once it gets one."""

    ticket: Ticket | None = None
    refusal: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""
    """Why there will be no connection; empty if there will."""


@dataclass(frozen=True)
class Handover:
    """An agreed connection, as either side knows it."""

    peer: PeerId
    """The other side."""
    certificate: bytes
    """The only one that it may show; DER, checked."""
    number: bytes
    secret: bytes = field(repr=False)
    expires_s: float = float("inf")
    """By the accepting side's clock."""

    @classmethod
    def of(cls, peer: PeerId, certificate: bytes, ticket: Ticket) -> Handover:
        """The dialling side's."""
        return cls(peer, certificate, bytes.fromhex(ticket.number), bytes.fromhex(ticket.secret))

    def ticket(self, port: int) -> Ticket:
        return Ticket(port=port, number=self.number.hex(), secret=self.secret.hex())

    def part(self, index: int) -> Handover:
        """Of a further connection that belongs to this one (`bundle`)."""
        number, secret = (
            hmac.digest(self.secret, _DOMAIN + kind + bytes((index,)), hashlib.sha256)
            for kind in (b"number", b"secret")
        )
        return dataclasses.replace(self, number=number[:NUMBER_BYTES], secret=secret)

    def proof(self, run_id: str, speaker: PeerId, listener: PeerId) -> bytes:
        """What ``speaker`` says to ``listener`` inside the connection."""
        text = _DOMAIN + "\0".join((run_id, speaker, listener)).encode() + b"\0" + self.number
        return hmac.digest(self.secret, text, hashlib.sha256)


class Handovers:
    """Connections that this node has agreed to accept."""

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._pending: OrderedDict[bytes, Handover] = OrderedDict()
        """By number, oldest first."""
        self._num_of: Counter[PeerId] = Counter()

    def issue(self, peer: PeerId, certificate: bytes, now_s: float) -> Handover | None:
        """Agree to accept one connection; None if too many are agreed on already."""
        self._forget_old(now_s)
        if self._num_of[peer] >= MAX_PENDING_PER_PEER or len(self._pending) >= MAX_PENDING:
            return None
        made = Handover(peer, certificate, self._random(NUMBER_BYTES), self._random(SECRET_BYTES), now_s + LIFETIME_S)
        self._add(made)
        return made

    def issue_parts(self, handover: Handover, num_parts: int, now_s: float) -> list[Handover] | None:
        """Agree to accept further connections of one that was accepted; None if that would be too many."""
        self._forget_old(now_s)
        if self._num_of[handover.peer] + num_parts > MAX_PENDING_PER_PEER or len(self._pending) >= MAX_PENDING:
            return None
        whole = dataclasses.replace(handover, expires_s=now_s + LIFETIME_S)
        parts = [whole.part(index) for index in range(num_parts)]
        for part in parts:
            self._add(part)
        return parts

    def _add(self, made: Handover) -> None:
        self._pending[made.number] = made
        self._num_of[made.peer] += 1

    def redeem(self, number: bytes, now_s: float) -> Handover | None:
        """The agreement behind a number, once; None if there is none, it was redeemed before, or is too old."""
        self._forget_old(now_s)
        return self._take(number)

    def cancel(self, handover: Handover) -> None:
        """Nobody will come any more."""
        self._take(handover.number)

    def _take(self, number: bytes) -> Handover | None:
        found = self._pending.pop(number, None)
        if found is not None:
            self._num_of[found.peer] -= 1
            if not self._num_of[found.peer]:
                del self._num_of[found.peer]
        return found

    def _forget_old(self, now_s: float) -> None:
        while self._pending and (oldest := next(iter(self._pending.values()))).expires_s <= now_s:
            self._take(oldest.number)
