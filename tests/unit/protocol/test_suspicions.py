"""What follows from suspicions, without a network: who is believed, by how many, and for how long."""

from __future__ import annotations

import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.protocol.evidence import FalseEvidence, OtherRules, accused_of, decode_header, encode_header, judge, kind_of
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.identity import Identity
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.spec import TrustConfig
from atoll.protocol.suspicions import (
    MAX_HIDDEN,
    MAX_UNCONFIRMED,
    RECHECK_ROUNDS,
    WINDOW_ROUNDS,
    Breach,
    Suspicion,
    Suspicions,
    Verdict,
    breach_of,
    may_hide,
    num_accusers,
    recheck_chance,
)

from .test_round_driver import genesis_of

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 13)]
ROSTER = tuple(person.peer_id for person in PEOPLE[:10])
GENESIS = genesis_of(PEOPLE[:10])
GRID = ChunkGrid(1000, 256, codec("float32"))
ACCUSED, ME = PEOPLE[0], PEOPLE[9]
BREACH = Breach(rule="cosine", value=0.3, limit=0.95)
ZERO = "00" * 32


def suspicion(accuser: Identity, round_number: int = 5, accused: Identity = ACCUSED, **changes: object) -> Suspicion:
    said = Suspicion(
        lineage=0,
        round=round_number,
        record=ZERO,
        accused=accused.peer_id,
        accuser=accuser.peer_id,
        breach=BREACH,
    )
    return said.model_copy(update=changes).signed(accuser)


def verdict(*said: Suspicion) -> Verdict:
    return Verdict(accused=ACCUSED.peer_id, suspicions=said)


THREE = [suspicion(person) for person in PEOPLE[1:4]]


@pytest.mark.parametrize(("num_members", "needed"), [(3, 2), (4, 2), (5, 2), (10, 3), (20, 5)])
def test_more_accusers_are_needed_than_may_misbehave_and_never_one_alone(num_members, needed):
    assert num_accusers(genesis_of(PEOPLE[:1]), num_members) == needed


def test_suspicions_of_enough_distinct_members_are_evidence_that_anybody_can_judge(tmp_path):
    evidence = verdict(*THREE)
    judge(evidence, GENESIS, GRID, ROSTER)
    assert (accused_of(evidence), kind_of(evidence)) == (ACCUSED.peer_id, "verdict")
    assert decode_header(encode_header(evidence)) == evidence
    store = EvidenceStore(tmp_path, GRID)
    store.save(evidence)
    assert EvidenceStore(tmp_path, GRID).load(ACCUSED.peer_id) == evidence


@pytest.mark.parametrize(
    "said",
    [
        THREE[:2],
        [*THREE[:2], THREE[1]],
        [*THREE[:2], suspicion(PEOPLE[1], 6)],
        [*THREE[:2], suspicion(PEOPLE[10])],
        [*THREE[:2], suspicion(PEOPLE[4], 5 + WINDOW_ROUNDS)],
        [*THREE[:2], suspicion(PEOPLE[4], accused=PEOPLE[5])],
        [*THREE[:2], THREE[2].model_copy(update={"round": 6})],
        [*THREE[:2], THREE[2].model_copy(update={"signature": ""})],
        [*THREE[:2], suspicion(ACCUSED)],
    ],
    ids=["too few", "one twice", "two of one", "a stranger", "long ago", "another", "altered", "unsigned", "itself"],
)
def test_what_is_no_verdict_proves_nothing(said):
    with pytest.raises(FalseEvidence):
        judge(verdict(*said), GENESIS, GRID, ROSTER)


def test_a_verdict_of_another_lineage_is_not_judged():
    with pytest.raises(OtherRules):
        judge(verdict(*THREE[:2], suspicion(PEOPLE[4], lineage=1)), GENESIS, GRID, ROSTER)


# --- what a node keeps ------------------------------------------------------------------------------------------------


@pytest.fixture
def known() -> Suspicions:
    return Suspicions(ME.peer_id)


def test_a_verdict_comes_with_the_last_suspicion_that_it_needs(known):
    for accuser in PEOPLE[1:3]:
        assert known.add(suspicion(accuser), 5, ROSTER)
        assert known.verdict(ACCUSED.peer_id, GENESIS, ROSTER) is None
    known.add(suspicion(PEOPLE[3]), 6, ROSTER)
    found = known.verdict(ACCUSED.peer_id, GENESIS, ROSTER)
    assert found is not None
    judge(found, GENESIS, GRID, ROSTER)


def test_one_member_counts_once_however_often_it_accuses(known):
    for number in range(1, 6):
        known.add(suspicion(PEOPLE[1], number), number, ROSTER)
    assert [each.round for each in known.against(ACCUSED.peer_id)] == [5]
    assert not known.add(suspicion(PEOPLE[1], 4), 5, ROSTER)


@pytest.mark.parametrize(
    "said",
    [
        suspicion(PEOPLE[10]),
        suspicion(PEOPLE[1], accused=PEOPLE[11]),
        suspicion(PEOPLE[1], 6),
        suspicion(ACCUSED),
        suspicion(PEOPLE[1]).model_copy(update={"round": 4}),
    ],
    ids=["by a stranger", "of a stranger", "of the future", "of itself", "altered"],
)
def test_suspicions_that_cannot_be_are_not_noted(known, said):
    assert not known.add(said, 5, ROSTER)
    assert known.against(said.accused) == ()


def test_old_suspicions_and_those_of_who_has_left_are_forgotten(known):
    known.add(suspicion(PEOPLE[1], 1), 1, ROSTER)
    known.add(suspicion(PEOPLE[2], 5), 5, ROSTER)
    known.forget_old(1 + WINDOW_ROUNDS, ROSTER)
    assert [each.accuser for each in known.against(ACCUSED.peer_id)] == [PEOPLE[2].peer_id]
    known.forget_old(1 + WINDOW_ROUNDS, ROSTER[3:])
    assert known.against(ACCUSED.peer_id) == ()


def test_a_suspicion_of_others_is_looked_into_once_and_soon(known):
    known.add(suspicion(PEOPLE[1]), 5, ROSTER)
    assert known.to_recheck(6) == [ACCUSED.peer_id]
    assert known.to_recheck(6 + RECHECK_ROUNDS) == []
    assert known.note_passed(ACCUSED.peer_id, 6) == [PEOPLE[1].peer_id]
    assert known.to_recheck(7) == []


def test_who_accuses_in_vain_again_and_again_makes_nobody_check_any_more(known):
    for number in range(1, 1 + MAX_UNCONFIRMED):
        known.add(suspicion(PEOPLE[1], number), number, ROSTER)
        assert known.to_recheck(number + 1) == [ACCUSED.peer_id]
        known.note_passed(ACCUSED.peer_id, number + 1)
    known.add(suspicion(PEOPLE[1], 9), 9, ROSTER)
    assert known.to_recheck(10) == []
    assert known.num_unconfirmed[PEOPLE[1].peer_id] == MAX_UNCONFIRMED
    known.add(suspicion(PEOPLE[2], 9), 9, ROSTER)
    assert known.to_recheck(10) == [ACCUSED.peer_id]


def test_not_showing_ones_state_is_a_breach_after_several_times_in_a_row(known):
    found = [known.note_hidden(ACCUSED.peer_id) for _ in range(MAX_HIDDEN)]
    assert [breach is not None for breach in found] == [False] * (MAX_HIDDEN - 1) + [True]
    known.note_shown(ACCUSED.peer_id)
    assert known.note_hidden(ACCUSED.peer_id) is None


def test_about_twice_as_many_look_again_as_are_needed():
    assert recheck_chance(GENESIS, 4) == 1.0
    assert recheck_chance(GENESIS, 101) == pytest.approx(2 * num_accusers(GENESIS, 101) / 100)


# --- what is a breach -------------------------------------------------------------------------------------------------

TRUST = TrustConfig(min_cosine=0.9, max_norm_ratio=1.2)


@pytest.mark.parametrize(
    ("products", "claimed", "found"),
    [
        ((0.95, 1.0, 1.0), 100, None),
        ((0.89, 1.0, 1.0), 100, "cosine"),
        ((-1.0, 1.0, 1.0), 100, "cosine"),
        ((1.3, 1.69, 1.0), 100, "norm"),
        ((0.5, 0.25, 1.0), 100, "norm"),
        ((0.0, 0.0, 1.0), 100, "norm"),
        ((0.0, 1.0, 0.0), 100, "norm"),
        ((0.0, 0.0, 0.0), 100, None),
        ((1.0, 1.0, 1.0), 101, "tokens"),
        ((1.0, 1.0, 1.0), 99, None),
    ],
)
def test_a_contribution_is_held_against_direction_length_and_tokens(products, claimed, found):
    breach = breach_of(products, claimed, 100, TRUST)
    assert (breach and breach.rule) == found


def record(peers: list[Identity], included: tuple[bool, ...]) -> Record:
    plan = Plan(
        lineage=0,
        fragment=0,
        round=1,
        ballot=0,
        leader=peers[0].peer_id,
        parent=ZERO,
        parent_state=ZERO,
        members=tuple(Member(peer=person.peer_id, tokens=1, commitment=ZERO) for person in peers),
        spans=(Span(first_chunk=0, num_chunks=4, owner=peers[0].peer_id),),
        roster=ROSTER,
        next_roster=ROSTER,
        data_cursor=0,
        rules=ZERO,
        attempt_timeout_s=60.0,
    )
    return Record(plan=plan, results=(SpanResult(plan=plan.content_id(), span=0, included=included, digest=ZERO),))


def test_only_who_missed_the_last_round_may_have_nothing_to_show():
    counted = record(PEOPLE[:2], (True, False))
    assert not may_hide(PEOPLE[0].peer_id, counted)
    assert may_hide(PEOPLE[1].peer_id, counted)
    assert may_hide(PEOPLE[2].peer_id, counted)
    assert not may_hide(PEOPLE[0].peer_id, None)
