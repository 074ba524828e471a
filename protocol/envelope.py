"""The signed form in which a message travels.

64 bytes of Ed25519 signature, then canonical JSON of `Header` and body. The signature covers a domain tag and those
exact bytes, so that verification never depends on re-serialising. The sender's public key is inside its peer id. Replay
is rejected by (run id, lineage) equality, expiry and a per-sender sequence number (`sealing`).

Nothing here performs I/O or knows the time; expiry is checked against a time that the caller passes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, TypeAdapter

from .identity import Identity, verify
from .messages import AnyMessage, Message
from .parsing import Unreadable, canonical_json, parse, parse_any, split_canonical
from .values import Count, Digest, Frozen, Peer

DOMAIN = b"atoll/envelope/1\0"
SIGNATURE_BYTES = 64
_ANY: TypeAdapter[Any] = TypeAdapter(AnyMessage)


class InvalidMessage(ValueError):
    """Bytes that are not a valid message of this run: malformed, unsigned, foreign, expired or replayed."""


class Header(Frozen):
    """Who says something, in which run, and until when it may be believed."""

    run_id: Digest
    lineage: Count
    sender: Peer
    sequence: Count
    """Strictly increasing per sender over restarts (microseconds since 1970 at start, then counting)."""
    expires_unix_s: Annotated[float, Field(ge=0, le=1e11)]


class Envelope(Frozen):
    """A verified message with its header. `raw` is what was signed and can be forwarded as evidence."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    header: Header
    body: Message
    raw: bytes

    @classmethod
    def open(cls, raw: bytes, *, run_id: str, now_unix_s: float | None = None) -> Self:
        """Verify and parse. Raises `InvalidMessage`; never trusts a length or a type from the bytes.

        ``now_unix_s=None`` skips the expiry check, for evidence such as the votes of an old certificate.
        """
        if len(raw) < SIGNATURE_BYTES + 2:
            raise InvalidMessage("message is too short")
        signature, signed = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        header, body = _parse(signed)
        if header.run_id != run_id:
            raise InvalidMessage(f"message of another run ({header.run_id[:8]}…)")
        if not verify(header.sender, signature, DOMAIN + signed):
            raise InvalidMessage(f"bad signature of …{header.sender[-5:]}")
        if now_unix_s is not None and header.expires_unix_s < now_unix_s:
            raise InvalidMessage(f"message of …{header.sender[-5:]} expired")
        return cls(header=header, body=body, raw=raw)


def _parse(signed: bytes) -> tuple[Header, Any]:
    try:
        body_text, header_text = split_canonical(signed, "body", "header")
        return parse(Header, header_text), parse_any(_ANY, body_text)
    except Unreadable as error:
        raise InvalidMessage(f"malformed message: {error}") from None


def seal(identity: Identity, header: Header, body: Message) -> bytes:
    """Signed wire form of ``body``."""
    signed = canonical_json({"header": header.model_dump(mode="json"), "body": body.model_dump(mode="json")})
    return identity.sign(DOMAIN + signed) + signed
