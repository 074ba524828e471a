"""What every value that peers exchange is made of: bounded scalars, and a base that is frozen, strict and canonical.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from .identity import PeerId
from .parsing import canonical_json as canonical_json

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes as lower-case hexadecimal."""
DigestOrNone = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""As `Digest`; empty where there is none."""
Peer = Annotated[PeerId, Field(min_length=46, max_length=64)]
Round = Annotated[int, Field(ge=0, le=2**40)]
"""Number of a commit. Round 0 is the genesis state; the first exchange produces commit 1."""
Ballot = Annotated[int, Field(ge=0, le=2**40)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Name = Annotated[str, Field(max_length=64)]
Signature = Annotated[str, Field(pattern=r"^([0-9a-f]{128})?$")]
"""An Ed25519 signature inside a message, hexadecimal; empty where nobody checks it (simulators)."""
MAX_SPEED = 1e12
Speed = Annotated[float, Field(ge=0, le=MAX_SPEED)]
"""Tokens per second."""
SquaredNorm = Annotated[float, Field(ge=0, le=1e300)]
MAX_LOSS = 1e6
Loss = Annotated[float, Field(ge=0, le=MAX_LOSS)]
"""Nats per token."""
NodePhase = Literal["starting", "syncing", "training", "ready", "exchanging", "paused", "leaving"]


def _fail_fast(schema: Any) -> None:
    """Let every list and tuple inside a schema end at its first fault."""
    if isinstance(schema, dict):
        found = cast("dict[str, Any]", schema)
        if found.get("type") in ("list", "tuple"):
            found["fail_fast"] = True
        schema = list(found.values())
    if isinstance(schema, list | tuple):
        for part in cast("list[Any]", schema):
            _fail_fast(part)


class Frozen(BaseModel):
    """Base of all protocol values: immutable, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The first fault in a list ends its validation: each further one of thousands would cost a kilobyte."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    def canonical(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def content_id(self) -> str:
        """SHA-256 of the canonical form: the value's identity in votes and parents. Computed once."""
        return self._content_id

    @cached_property
    def _content_id(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, unchecked, with other values of some fields; nothing that was computed from the old ones stays."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            vars(copied).pop(name)
        return copied
