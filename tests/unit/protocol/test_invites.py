"""Invites, judged one by one: whom they let in, and every way in which they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol import invites
from atoll.protocol.identity import Identity
from atoll.protocol.invites import InviteFile, InviteRefused, check, check_seat, claim, guests_after, let_in, make
from atoll.protocol.messages import PlanMessage
from atoll.protocol.round_machine import Received, advance, begin
from atoll.protocol.round_machine.values import Acceptor
from atoll.protocol.spec import Genesis, MembershipConfig
from atoll.protocol.standing import Standing
from atoll.protocol.tickets import MAX_ADMISSIONS, MAX_GUESTS, Admission, Guest, Ticket
from atoll.protocol.transport import RemoteProtocolError

from .test_round_machine import GENESIS as LISTED
from .test_round_machine import plan_of, rules_of

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 10)]
OPERATOR, INVITER, ALICE, BOB, KEY, STRANGER = (person for person in PEOPLE[3:9])


def genesis_with(**membership: object) -> Genesis:
    changed = MembershipConfig(roster=LISTED.membership.roster, mode="invite", **membership)  # type: ignore[arg-type]
    return LISTED.model_copy(update={"membership": changed, "operators": (OPERATOR.peer_id,)})


GENESIS = genesis_with(inviters=(INVITER.peer_id,))
START = Standing.of_genesis(GENESIS)


def generous(number: int) -> Genesis:
    """The same run with more members per owner."""
    table = GENESIS.membership.model_dump(mode="json")
    return GENESIS.amended({"membership": {**table, "max_per_owner": number}})


def invite_for(bearer: Identity, **changes: object):
    terms = {"run_id": GENESIS.run_id, "owner": "alice", "bearer": bearer.peer_id, "until_round": 5, **changes}
    return make(changes.pop("signer", OPERATOR), **{k: v for k, v in terms.items() if k != "signer"})  # type: ignore[arg-type]


def ticket_of(peer: Identity, **changes: object) -> Ticket:
    return Ticket(invite=invite_for(peer, **changes))


def why(ticket: Ticket, peer: Identity = ALICE, standing: Standing = START, genesis: Genesis = GENESIS) -> str:
    with pytest.raises(InviteRefused) as refused:
        check(genesis, standing, peer.peer_id, ticket)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signer", [OPERATOR, INVITER])
def test_operators_and_those_whom_the_spec_names_may_invite(signer: Identity):
    check(GENESIS, START, ALICE.peer_id, ticket_of(ALICE, signer=signer))


def test_whoever_holds_the_secret_of_an_invite_proves_it_for_itself_alone():
    ticket = claim(invite_for(KEY), KEY, ALICE.peer_id)
    check(GENESIS, START, ALICE.peer_id, ticket)
    assert "holds the invite's key does not match" in why(ticket, BOB)


def test_an_invite_that_is_seen_in_the_open_cannot_be_taken_over():
    seen = claim(invite_for(KEY), KEY, ALICE.peer_id)
    assert "does not match" in why(claim(seen.invite, STRANGER, STRANGER.peer_id), STRANGER)
    assert "is for another peer" in why(Ticket(invite=seen.invite), STRANGER)


def test_an_invite_for_one_peer_is_for_no_other():
    assert "is for another peer" in why(ticket_of(ALICE), BOB)


def test_a_forged_or_changed_invite_is_refused():
    invite = invite_for(ALICE)
    assert "does not match" in why(Ticket(invite=invite.model_copy(update={"ed25519": "00" * 64})))
    for change in ({"owner": "eve"}, {"until_round": 500}, {"until_unix_s": 1e10}):
        assert "does not match" in why(Ticket(invite=invite.model_copy(update=change)))


def test_a_stranger_cannot_invite():
    assert "who may not invite" in why(ticket_of(ALICE, signer=STRANGER))


def test_after_a_change_of_keys_the_old_operators_invites_are_void():
    newer = GENESIS.amended({"operators": [BOB.peer_id]})
    assert "who may not invite" in why(ticket_of(ALICE), genesis=newer)


def test_an_invite_of_another_run_is_refused():
    assert "for another run, abab" in why(ticket_of(ALICE, run_id="ab" * 32))


def test_an_invite_ends_with_its_round():
    check(GENESIS, replace(START, round=4), ALICE.peer_id, ticket_of(ALICE))
    assert "good until round 5" in why(ticket_of(ALICE), standing=replace(START, round=5))


def test_an_invite_without_end_is_neither_made_nor_taken():
    with pytest.raises(ValueError, match="expires"):
        invite_for(ALICE, until_round=None)
    endless = invite_for(ALICE).model_copy(update={"until_round": None})
    assert "never expires" in why(Ticket(invite=endless))


def test_clocks_that_differ_by_less_than_an_hour_do_not_end_an_invite():
    invite = invite_for(ALICE, until_unix_s=1000.0)
    assert [invites.is_over(invite, now, 3600.0) for now in (999.0, 1001.0, 4599.0, 4601.0)] == [False] * 3 + [True]
    assert not invites.is_over(invite_for(ALICE), 1e10)


def test_a_ban_ends_an_invite_and_listed_runs_take_none():
    banned = GENESIS.amended({"control": {"banned": [ALICE.peer_id]}})
    assert "banned" in why(ticket_of(ALICE), genesis=banned)
    assert "takes no invites" in why(ticket_of(ALICE), genesis=LISTED)


# --- what is remembered -----------------------------------------------------------------------------------------------


def standing_with(*entered: tuple[Identity, Ticket], roster: tuple[str, ...] | None = None, number: int = 1):
    admissions = [Admission(peer=peer.peer_id, ticket=ticket) for peer, ticket in entered]
    members = (*START.roster, *(peer.peer_id for peer, _ in entered)) if roster is None else roster
    return replace(START, round=number, roster=members, guests=guests_after(START, members, admissions))


def test_an_invite_is_used_up_by_the_first_peer_that_enters_by_it():
    invite = invite_for(KEY)
    after = standing_with((ALICE, claim(invite, KEY, ALICE.peer_id)), roster=START.roster)
    assert "used already" in why(claim(invite, KEY, BOB.peer_id), BOB, after)
    assert after.admits(GENESIS, ALICE.peer_id)  # and comes back without showing it again


def test_the_same_invite_twice_in_one_plan_lets_one_in():
    invite = invite_for(KEY)
    shown = {peer.peer_id: claim(invite, KEY, peer.peer_id) for peer in (ALICE, BOB)}
    assert let_in(generous(5), START, START.roster, shown) == (ALICE.peer_id,)


def test_an_owner_has_its_number_of_members_and_no_more():
    second = ticket_of(BOB)
    after = standing_with((ALICE, ticket_of(ALICE)))
    assert let_in(GENESIS, after, after.roster, {BOB.peer_id: second}) == ()
    with pytest.raises(InviteRefused, match="alice has 1 member already"):
        check_seat(GENESIS, after, BOB.peer_id, "alice")
    assert let_in(generous(2), after, after.roster, {BOB.peer_id: second}) == (BOB.peer_id,)
    both = {peer.peer_id: ticket_of(peer) for peer in (ALICE, BOB)}
    assert let_in(GENESIS, START, START.roster, both) == (ALICE.peer_id,)


def test_another_peer_of_an_owner_enters_when_the_first_has_gone_and_then_the_first_has_to_stay_out():
    left = standing_with((ALICE, ticket_of(ALICE)), roster=START.roster)
    assert let_in(GENESIS, left, left.roster, {BOB.peer_id: ticket_of(BOB)}) == (BOB.peer_id,)
    both = let_in(GENESIS, left, left.roster, {BOB.peer_id: ticket_of(BOB), ALICE.peer_id: None})
    assert both == (BOB.peer_id,)


def test_who_was_banned_does_not_come_back_under_another_key_of_the_same_owner():
    left = standing_with((ALICE, ticket_of(ALICE)), roster=START.roster)
    banned = GENESIS.amended({"control": {"banned": [ALICE.peer_id]}})
    assert let_in(banned, left, left.roster, {BOB.peer_id: ticket_of(BOB)}) == ()
    ejected = replace(left, ejected=(ALICE.peer_id,))
    assert let_in(GENESIS, ejected, left.roster, {BOB.peer_id: ticket_of(BOB)}) == ()


def test_only_so_many_enter_at_once():
    crowd = [Identity.from_seed(bytes([9, number]) * 16) for number in range(MAX_ADMISSIONS + 3)]
    shown = {peer.peer_id: ticket_of(peer, owner=f"owner {i}") for i, peer in enumerate(crowd)}
    assert len(let_in(GENESIS, START, START.roster, shown)) == MAX_ADMISSIONS


def test_of_too_many_uses_those_that_have_run_out_are_forgotten_and_no_others():
    fresh = [Guest(peer=f"{i:046d}", owner=f"{i}", invite=f"{i:064x}", until_round=100) for i in range(MAX_GUESTS)]
    full = replace(START, round=9, guests=tuple(fresh))
    shown = {ALICE.peer_id: ticket_of(ALICE, until_round=90)}
    assert let_in(GENESIS, full, full.roster, shown) == ()
    with_old = replace(full, guests=(fresh[0], fresh[1].model_copy(update={"until_round": 9}), *fresh[2:]))
    assert let_in(GENESIS, with_old, full.roster, shown) == (ALICE.peer_id,)
    admission = Admission(peer=ALICE.peer_id, ticket=shown[ALICE.peer_id])
    guests = guests_after(with_old, (*full.roster, ALICE.peer_id), [admission])
    assert [guest.peer for guest in guests] == [fresh[0].peer, *(g.peer for g in fresh[2:]), ALICE.peer_id]


# --- in a plan --------------------------------------------------------------------------------------------------------


def state_under(genesis: Genesis, **rules: object):
    found = rules_of(0, genesis=genesis, standing=Standing.of_genesis(genesis), **rules)
    return begin(replace(found, me=found.order[2]), Acceptor(), {}, 0.0)


LEADER = state_under(GENESIS).rules.order[0]


def plan_with(genesis: Genesis, admissions: tuple[Admission, ...], **changes: object):
    next_roster = (*genesis.membership.roster, *(admission.peer for admission in admissions))
    guests = guests_after(Standing.of_genesis(genesis), next_roster, admissions)
    values = {"next_roster": next_roster, "admissions": admissions, "guests": guests, "rules": genesis.rules_id}
    return plan_of(parent=genesis.run_id, leader=LEADER, **{**values, **changes})


def judge(plan, **rules: object):
    state, _ = advance(state_under(GENESIS, **rules), Received(LEADER, PlanMessage(plan=plan), b""), 1.0)
    return state.attempt.plan


def test_a_voter_follows_a_plan_that_shows_what_entitles_a_newcomer():
    plan = plan_with(GENESIS, (Admission(peer=ALICE.peer_id, ticket=ticket_of(ALICE)),))
    assert judge(plan) == plan
    assert plan.guests[0].owner == "alice"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"admissions": ()}, "next_roster"),
        ({"guests": ()}, "guests"),
        ({"next_roster": GENESIS.membership.roster}, "admissions"),
    ],
)
def test_a_plan_that_says_less_or_more_than_it_must_is_refused(change: dict[str, object], rule: str):
    plan = plan_with(GENESIS, (Admission(peer=ALICE.peer_id, ticket=ticket_of(ALICE)),)).model_copy(update=change)
    with pytest.raises(RemoteProtocolError) as refused:
        judge(plan)
    assert refused.value.rule == f"plan.{rule}"


def test_a_leader_cannot_let_in_two_peers_of_one_owner_or_one_by_anothers_invite():
    two = tuple(Admission(peer=peer.peer_id, ticket=ticket_of(peer)) for peer in (ALICE, BOB))
    other = (Admission(peer=BOB.peer_id, ticket=ticket_of(ALICE)),)
    for admissions in (two, other):
        with pytest.raises(RemoteProtocolError, match="admits a peer not allowed"):
            judge(plan_with(GENESIS, admissions))


def test_a_voter_refuses_a_new_plan_with_an_invite_that_ended_more_than_an_hour_ago():
    plan = plan_with(GENESIS, (Admission(peer=ALICE.peer_id, ticket=ticket_of(ALICE, until_unix_s=1000.0)),))
    assert judge(plan, began_unix_s=4500.0) == plan
    with pytest.raises(RemoteProtocolError, match="an invite that has expired"):
        judge(plan, began_unix_s=4700.0)


# --- the file ---------------------------------------------------------------------------------------------------------


def file_for(key: Identity, seed: bytes | None) -> bytes:
    return InviteFile(invite=invite_for(key), secret=None if seed is None else seed.hex()).canonical()


def test_a_file_gives_its_holder_what_to_present():
    seed = bytes([8]) * 32
    key = Identity.from_seed(seed)
    check(GENESIS, START, ALICE.peer_id, InviteFile.parse(file_for(key, seed)).ticket(ALICE.peer_id))
    check(GENESIS, START, ALICE.peer_id, InviteFile.parse(file_for(ALICE, None)).ticket(ALICE.peer_id))
    with pytest.raises(InviteRefused, match="for another peer"):
        InviteFile.parse(file_for(ALICE, None)).ticket(BOB.peer_id)


def test_a_file_that_was_cut_off_or_mixed_up_is_refused():
    text = file_for(KEY, bytes([8]) * 32)
    for length in range(0, len(text), 7):
        with pytest.raises(InviteRefused):
            InviteFile.parse(text[:length])
    with pytest.raises(InviteRefused, match="secret is of another invite"):
        InviteFile.parse(file_for(KEY, bytes(32)))
