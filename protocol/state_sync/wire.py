"""Requests and answers on a ``state`` stream: one request frame, its answer, and so on until the client closes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from ..values import Count, Digest, Frozen, Round

PROTOCOL = "state"
MAX_REQUEST_BYTES = 256
MAX_COMMITS = 64
"""Commits in one answer."""


class CommitsRequest(Frozen):
    """Answered by `CommitsAnswer` and that many frames, each a `Commit` as canonical JSON."""

    want: Literal["commits"] = "commits"
    first: Round
    """First round asked for."""
    count: Annotated[int, Field(ge=1, le=MAX_COMMITS)]


class ManifestRequest(Frozen):
    """Answered by yes or no, then a `SnapshotManifest` as canonical JSON in one frame."""

    want: Literal["manifest"] = "manifest"
    record: Digest | None = None
    """Of the state after this record; None: the newest that the donor has."""


class LeafRequest(Frozen):
    """Answered by yes or no, then the leaf's bytes."""

    want: Literal["leaf"] = "leaf"
    digest: Digest


class CommitsAnswer(Frozen):
    num_commits: Annotated[Count, Field(le=MAX_COMMITS)]
    head: Round
    """Last round that the donor has committed."""


Request = CommitsRequest | ManifestRequest | LeafRequest
REQUEST: TypeAdapter[Any] = TypeAdapter(Annotated[Request, Field(discriminator="want")])
