"""Whatever strangers show and leaders let in, in any order: every owner has its number, and no invite serves twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.invites import InviteFile, InviteRefused, check, claim, guests_after, let_in, make
from atoll.protocol.spec import Genesis, MembershipConfig
from atoll.protocol.standing import Standing
from atoll.protocol.tickets import Admission, Ticket

OPERATOR = Identity.from_seed(bytes(32))
KEYS = [Identity.from_seed(bytes([100 + number]) * 32) for number in range(4)]
STRANGERS = [Identity.from_seed(bytes([50 + number]) * 32) for number in range(5)]
MAX_PER_OWNER = 2
GENESIS = Genesis(
    name="invited",
    protocol_version=1,
    initial_state="00" * 32,
    operators=(OPERATOR.peer_id,),
    model={},
    membership=MembershipConfig(roster=(OPERATOR.peer_id,), mode="invite", max_per_owner=MAX_PER_OWNER),
)
INVITES = [
    make(OPERATOR, run_id=GENESIS.run_id, owner=f"owner {number % 2}", bearer=key.peer_id, until_round=3 + number)
    for number, key in enumerate(KEYS)
]

shown = st.dictionaries(st.integers(0, len(STRANGERS) - 1), st.none() | st.integers(0, len(KEYS) - 1), max_size=5)
rounds = st.lists(st.tuples(shown, st.sets(st.integers(0, len(STRANGERS) - 1))), max_size=8)
"""Per round: what each stranger shows, and who of the members has gone."""


def ticket_of(stranger: int, invite: int | None) -> Ticket | None:
    return None if invite is None else claim(INVITES[invite], KEYS[invite], STRANGERS[stranger].peer_id)


def next_standing(standing: Standing, tickets: dict[PeerId, Ticket | None], gone: set[PeerId]) -> Standing:
    kept = tuple(peer for peer in standing.roster if peer not in gone)
    candidates = {peer: ticket for peer, ticket in tickets.items() if peer not in standing.roster}
    entered = let_in(GENESIS, standing, kept, candidates)
    new = [peer for peer in entered if not standing.admits(GENESIS, peer)]
    admissions = [Admission(peer=peer, ticket=ticket) for peer in new if (ticket := tickets[peer]) is not None]
    assert len(admissions) == len(new)
    roster = (*kept, *entered)
    # What a leader lets in is what every voter would: the check is the same function over the plan's own words.
    assert let_in(GENESIS, standing, kept, {p: t for p, t in candidates.items() if p in entered}) == entered
    return replace(standing, round=standing.round + 1, roster=roster, guests=guests_after(standing, roster, admissions))


@settings(max_examples=60)
@given(rounds)
def test_no_owner_has_more_than_its_number_and_no_invite_serves_two_peers(history):
    standing, used = Standing.of_genesis(GENESIS), dict[str, PeerId]()
    for tickets, gone in history:
        by_peer = {STRANGERS[who].peer_id: ticket_of(who, invite) for who, invite in tickets.items()}
        standing = next_standing(standing, by_peer, {STRANGERS[who].peer_id for who in gone})
        owners = Counter(standing.guest_of[p].owner for p in standing.roster if p in standing.guest_of)
        assert max(owners.values(), default=0) <= MAX_PER_OWNER
        assert set(standing.roster) <= {OPERATOR.peer_id, *standing.guest_of}
        for guest in standing.guests:
            assert used.setdefault(guest.invite, guest.peer) == guest.peer


FILE = InviteFile(invite=INVITES[3], secret=(bytes([103]) * 32).hex()).canonical()


@settings(max_examples=200)
@given(st.integers(0, len(FILE) - 1), st.binary(min_size=0, max_size=3))
def test_a_file_that_was_changed_anywhere_lets_nobody_in(place: int, change: bytes):
    changed = FILE[:place] + change + FILE[place + max(1, len(change)) :]
    if changed != FILE:
        with pytest.raises(InviteRefused):
            use(changed)


def use(file: bytes) -> None:
    me = STRANGERS[0].peer_id
    check(GENESIS, Standing.of_genesis(GENESIS), me, InviteFile.parse(file).ticket(me))


def test_the_same_file_unchanged_lets_its_holder_in():
    use(FILE)
