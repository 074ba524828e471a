"""Invites: who may sign them, who may use them, and what is remembered of those that were used. Pure.

An invite names its *bearer*, a key. Where it is meant for a known peer, that is the peer's own key. Else it is a key
made for the invite, whose secret travels with the file: whoever holds that proves it by a signature over its own peer
id, so that an invite which is presented in the open cannot be taken over by those who see it.

Plans carry what entitles whom they let in, so that every voter and every later joiner judges the same, from the chain
alone. Rounds rule; the wall clock can only end an invite, and only before it is voted on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Self

from .identity import Identity, PeerId, public_key_of, verify
from .parsing import Unreadable, parse
from .spec import Genesis
from .standing import Standing
from .tickets import MAX_ADMISSIONS, MAX_GUESTS, Admission, Guest, Invite, Ticket
from .values import Digest, Frozen, canonical_json

DOMAIN = b"atoll/invite/1\0"
CLAIM_DOMAIN = b"atoll/invite-claim/1\0"
CLOCK_TOLERANCE_S = 3600.0
"""Voters' clocks may differ by so much from the leader's; no clock but a round's number lets anybody in."""
MAX_FILE_BYTES = 4096


class InviteRefused(ValueError):
    """An invite that lets nobody in, or not this peer, or not now; one line."""


class InviteFile(Frozen):
    """What an operator hands over: the invite and, unless it is for one peer, the secret of its bearer."""

    invite: Invite
    secret: Digest | None = None
    """Seed of the bearer's key, hexadecimal."""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Invite of a file's content. Raises `InviteRefused` if it is none, was cut off or lacks its secret."""
        try:
            if len(text) > MAX_FILE_BYTES:
                raise Unreadable("too long")
            file = parse(cls, text)
            public_key_of(file.invite.bearer)
        except (Unreadable, ValueError):
            raise InviteRefused("not an invite, or not all of one") from None
        if file.secret is not None and Identity.from_seed(bytes.fromhex(file.secret)).peer_id != file.invite.bearer:
            raise InviteRefused("its secret is of another invite")
        return file

    def ticket(self, peer: PeerId) -> Ticket:
        """What ``peer`` presents. Raises `InviteRefused` if it is for another one."""
        if self.invite.bearer == peer:
            return Ticket(invite=self.invite)
        if self.secret is None:
            raise InviteRefused(f"it is for another peer, …{self.invite.bearer[-5:]}")
        return claim(self.invite, Identity.from_seed(bytes.fromhex(self.secret)), peer)


# --- making them ------------------------------------------------------------------------------------------------------


def make(
    signer: Identity,
    *,
    run_id: str,
    owner: str,
    bearer: PeerId,
    until_round: int | None = None,
    until_unix_s: float | None = None,
) -> Invite:
    """An invite, signed. Raises ValueError for an owner's name that is none, or if it never expires."""
    if until_round is None and until_unix_s is None:
        raise ValueError("an invite expires with a round, at a time, or both")
    fields = {
        "run_id": run_id,
        "owner": owner,
        "bearer": bearer,
        "until_round": until_round,
        "until_unix_s": until_unix_s,
        "signer": signer.peer_id,
    }
    unsigned = Invite(**fields, ed25519="0" * 128)  # type: ignore[arg-type]
    return unsigned.model_copy(update={"ed25519": signer.sign(DOMAIN + _body(unsigned)).hex()})


def claim(invite: Invite, bearer: Identity, peer: PeerId) -> Ticket:
    """The proof that ``peer`` holds the bearer's key."""
    return Ticket(invite=invite, proof=bearer.sign(_claimed(digest(invite), peer)).hex())


def digest(invite: Invite) -> str:
    """SHA-256 of what is signed, hexadecimal: the invite's identity."""
    return hashlib.sha256(DOMAIN + _body(invite)).hexdigest()


def _body(invite: Invite) -> bytes:
    return canonical_json(invite.model_dump(mode="json", exclude={"ed25519"}))


def _claimed(invite: str, peer: PeerId) -> bytes:
    return CLAIM_DOMAIN + f"{invite} {peer}".encode()


# --- judging them -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _holds(key: PeerId, signature: str, text: bytes) -> bool:
    """A ticket comes with every heartbeat of its peer, in the round and in the plan: it is verified once."""
    return verify(key, bytes.fromhex(signature), text)


def check(genesis: Genesis, standing: Standing, peer: PeerId, ticket: Ticket) -> None:
    """Raise `InviteRefused` unless ``ticket`` entitles ``peer`` to enter after ``standing`` (seats apart)."""
    invite = ticket.invite
    if genesis.membership.mode != "invite":
        raise InviteRefused("this run takes no invites")
    if invite.run_id != genesis.run_id:
        raise InviteRefused(f"the invite is for another run, {invite.run_id[:8]}…")
    if invite.signer not in genesis.operators and invite.signer not in genesis.membership.inviters:
        raise InviteRefused(f"the invite is signed by …{invite.signer[-5:]}, who may not invite")
    if peer in genesis.control.banned or peer in standing.ejected:
        raise InviteRefused("the peer is banned from this run")
    _check_not_expired(invite, standing.round + 1)
    _check_unused(standing, invite, peer)
    _check_signatures(ticket, peer)


def check_seat(genesis: Genesis, standing: Standing, peer: PeerId, owner: str) -> None:
    """Raise `InviteRefused` if ``owner`` has as many members beside ``peer`` as one may have."""
    if not _has_seat(genesis, standing, standing.guests, standing.roster, peer, owner):
        limit = genesis.membership.max_per_owner
        raise InviteRefused(f"{owner} has {limit} member{'s' if limit > 1 else ''} already, as many as one may have")


def _check_not_expired(invite: Invite, round_number: int) -> None:
    if invite.until_round is None and invite.until_unix_s is None:
        raise InviteRefused("the invite never expires")
    if invite.until_round is not None and round_number > invite.until_round:
        raise InviteRefused(f"the invite has expired: it was good until round {invite.until_round}")


def _check_unused(standing: Standing, invite: Invite, peer: PeerId) -> None:
    name = digest(invite)
    if any(guest.invite == name and guest.peer != peer for guest in standing.guests):
        raise InviteRefused("the invite has been used already, by another peer")


def _check_signatures(ticket: Ticket, peer: PeerId) -> None:
    invite = ticket.invite
    if not _holds(invite.signer, invite.ed25519, DOMAIN + _body(invite)):
        raise InviteRefused(f"the invite's signature by …{invite.signer[-5:]} does not match")
    if ticket.proof is None and invite.bearer != peer:
        raise InviteRefused(f"the invite is for another peer, …{invite.bearer[-5:]}")
    if ticket.proof is not None and not _holds(invite.bearer, ticket.proof, _claimed(digest(invite), peer)):
        raise InviteRefused("the proof that the peer holds the invite's key does not match")


def is_over(invite: Invite, now_unix_s: float, tolerance_s: float = 0.0) -> bool:
    """Whether an invite has expired by a clock."""
    return invite.until_unix_s is not None and now_unix_s > invite.until_unix_s + tolerance_s


def let_in(
    genesis: Genesis, standing: Standing, kept: Collection[PeerId], candidates: Mapping[PeerId, Ticket | None]
) -> tuple[PeerId, ...]:
    """Those of ``candidates`` (peer -> its ticket), in order, who may enter the next roster beside ``kept``."""
    if not candidates:
        return ()
    room = min(MAX_ADMISSIONS, MAX_GUESTS - _num_remembered(standing, {*kept, *candidates}))
    guests, roster, entered = list(standing.guests), list(kept), list[PeerId]()
    for peer, ticket in candidates.items():
        guest = _entitled(genesis, standing, peer, ticket)
        if isinstance(guest, Guest):
            is_new = peer not in standing.guest_of
            is_reused = any(other.invite == guest.invite and other.peer != peer for other in guests)
            if is_reused or not _has_seat(genesis, standing, guests, roster, peer, guest.owner) or room < is_new:
                continue
            room -= is_new
            guests += [guest] if is_new else []
        if guest is not None:
            roster.append(peer)
            entered.append(peer)
    return tuple(entered)


def _entitled(genesis: Genesis, standing: Standing, peer: PeerId, ticket: Ticket | None) -> Guest | bool | None:
    """What a peer enters as: a guest, a listed peer (True), or not at all."""
    if standing.admits(genesis, peer):
        return standing.guest_of.get(peer, True)
    if ticket is None:
        return None
    try:
        check(genesis, standing, peer, ticket)
    except InviteRefused:
        return None
    return _guest(Admission(peer=peer, ticket=ticket))


def _has_seat(
    genesis: Genesis,
    standing: Standing,
    guests: Iterable[Guest],
    roster: Collection[PeerId],
    peer: PeerId,
    owner: str,
) -> bool:
    """A peer that was banned or ejected keeps its seat: nobody comes back under another key by the next invite."""
    others = [guest.peer for guest in guests if guest.owner == owner and guest.peer != peer]
    shut_out = {*genesis.control.banned, *standing.ejected}
    return sum(other in roster or other in shut_out for other in others) < genesis.membership.max_per_owner


# --- remembering them -------------------------------------------------------------------------------------------------


def guests_after(
    standing: Standing, next_roster: Iterable[PeerId], admissions: Iterable[Admission]
) -> tuple[Guest, ...]:
    """Everybody who has used an invite, after a plan that lets in those of ``admissions``.

    Where there are too many, those that are no members and whose invites have run out are forgotten, oldest first: they
    need a new invite to come back. `let_in` sees to it that no more than `MAX_GUESTS` are left.
    """
    new = [_guest(admission) for admission in admissions]
    guests = [*standing.guests, *new]
    members, excess = set(next_roster), len(standing.guests) + len(new) - MAX_GUESTS
    idle = (guest for guest in guests if _is_idle(standing, guest, members))
    forgotten = {guest.peer for guest, _ in zip(idle, range(excess), strict=False)}
    return tuple(guest for guest in guests if guest.peer not in forgotten)


def _is_idle(standing: Standing, guest: Guest, members: Collection[PeerId]) -> bool:
    has_run_out = guest.until_round is not None and guest.until_round <= standing.round
    return has_run_out and guest.peer not in members


def _num_remembered(standing: Standing, members: Collection[PeerId]) -> int:
    return sum(not _is_idle(standing, guest, members) for guest in standing.guests)


def _guest(admission: Admission) -> Guest:
    invite = admission.ticket.invite
    return Guest(peer=admission.peer, owner=invite.owner, invite=digest(invite), until_round=invite.until_round)
