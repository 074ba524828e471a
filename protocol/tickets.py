"""Invites on their way: as operators sign them, as peers present them, and as plans and commits carry them.

What they mean is `invites`'s. Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .values import Digest, Frozen, Peer, Round

Owner = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Whose peers they are: a name by which the operator tells people apart."""
Signed = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
"""An Ed25519 signature, hexadecimal."""
MAX_ADMISSIONS = 16
"""Peers that enter by invites with one commit."""
MAX_GUESTS = 1024
"""Uses of invites that a run remembers: 250 kB of every plan, at most."""


class Invite(Frozen):
    """An operator's leave to join one run, for one owner of peers, until a round, a time, or both (`invites`)."""

    run_id: Digest
    owner: Owner
    bearer: Peer
    """Whose key proves that a peer may use it: the peer's own, or one whose secret comes with the invite."""
    until_round: Round | None = None
    """The last round by whose plan the peer may enter."""
    until_unix_s: Annotated[float, Field(ge=0, le=1e11)] | None = None
    signer: Peer
    ed25519: Signed


class Ticket(Frozen):
    """An invite as a peer presents it."""

    invite: Invite
    proof: Signed | None = None
    """The bearer's signature over invite and peer; None where the bearer is the peer itself."""


class Guest(Frozen):
    """A peer that has entered by an invite: for as long as the run remembers it, nobody else can use that one."""

    peer: Peer
    owner: Owner
    invite: Digest
    until_round: Round | None = None


class Admission(Frozen):
    """A peer that a plan lets in, with what entitles it."""

    peer: Peer
    ticket: Ticket
