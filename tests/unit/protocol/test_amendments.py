"""What each amendment does, and in which words a wrong one is refused."""

from __future__ import annotations

import pytest

from atoll.protocol.amendments import Amendment, InvalidAmendment, RunRules
from atoll.protocol.changes import (
    Allow,
    Ban,
    Change,
    Finish,
    Keys,
    LearningRate,
    Limits,
    Pause,
    Reset,
    Resume,
    Rollback,
    Seeds,
    Timing,
    Upgrade,
)
from atoll.protocol.identity import Identity
from atoll.protocol.spec import Genesis, MembershipConfig, RecoveryConfig

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 8)]
PEERS = [person.peer_id for person in PEOPLE]
ROSTER = tuple(PEERS[:4])


def genesis_of(**fields: object) -> Genesis:
    return Genesis(
        name="amended",
        protocol_version=1,
        initial_state="00" * 32,
        operators=(PEERS[0],),
        model={},
        inner={"lr": 0.004},
        outer={"lr": 0.7},
        membership=MembershipConfig(roster=ROSTER, allowed=tuple(PEERS[4:6])),
        **fields,  # type: ignore[arg-type]
    )


RULES = RunRules(genesis_of())


def with_change(rules: RunRules, change: Change, from_round: int = 5, signer: Identity = PEOPLE[0]) -> RunRules:
    return rules.extended([rules.next(change, from_round).signed(signer)])


def refusal(rules: RunRules, amendment: Amendment) -> str:
    with pytest.raises(InvalidAmendment) as caught:
        rules.extended([amendment])
    return str(caught.value)


def fork(lineage: int = 1, number: int = 4) -> Rollback:
    return Rollback(lineage=lineage, round=number, record="11" * 32, state_hash="22" * 32, roster=ROSTER[:2])


def test_a_learning_rate_holds_from_its_round_on_and_leaves_the_rest_alone():
    rules = with_change(RULES, LearningRate(outer=0.3))
    assert [rules.at(number).outer["lr"] for number in (4, 5, 6)] == [0.7, 0.3, 0.3]
    assert rules.at(5).inner == {"lr": 0.004}
    assert rules.at(4).rules_id == RULES.genesis.rules_id != rules.at(5).rules_id


def test_an_amendment_of_a_later_round_wins_over_one_signed_after_it():
    rules = with_change(RULES, LearningRate(inner=0.001), 100)
    rules = with_change(rules, LearningRate(inner=0.002), 50)
    assert [rules.at(number).inner["lr"] for number in (49, 50, 100)] == [0.004, 0.002, 0.001]


def test_pause_resume_and_finish():
    rules = with_change(with_change(RULES, Pause(), 5), Resume(), 5)
    assert not rules.at(5).control.paused
    assert with_change(RULES, Pause(), 5).at(5).control.paused
    assert with_change(RULES, Finish(), 9).at(9).stop.num_rounds == 9


def test_banned_peers_are_not_admitted_until_allowed_again():
    rules = with_change(RULES, Ban(peers=(PEERS[1], PEERS[4])), 5)
    assert [rules.at(5).admits(peer) for peer in PEERS[:6]] == [True, False, True, True, False, True]
    rules = with_change(rules, Allow(peers=(PEERS[1], PEERS[6])), 7)
    assert [rules.at(7).admits(peer) for peer in (PEERS[1], PEERS[4], PEERS[6])] == [True, False, True]


def test_seeds_times_and_limits_are_replaced_one_by_one():
    rules = with_change(RULES, Seeds(seeds=("/ip4/10.0.0.1/tcp/1",)))
    rules = with_change(with_change(rules, Timing(values={"ready_grace_s": 5.0})), Limits(values={"max_peers": 7}))
    made = rules.at(5)
    assert made.membership.seeds == ("/ip4/10.0.0.1/tcp/1",)
    assert (made.timing.ready_grace_s, made.timing.drop_after_s) == (5.0, 60.0)
    assert (made.limits.max_peers, made.limits.max_tokens_per_round) == (7, 2**40)


def test_new_keys_sign_what_follows_at_once_and_old_ones_do_not():
    rules = with_change(RULES, Keys(operators=(PEERS[4], PEERS[5]), threshold=2), 1000)
    amendment = rules.next(Pause(), 5)
    assert "no operator of this run" in refusal(rules, amendment.signed(PEOPLE[0]))
    assert "1 of 2 signatures" in refusal(rules, amendment.signed(PEOPLE[4]))
    both = amendment.signed(PEOPLE[4]).with_signatures_of(amendment.signed(PEOPLE[5]))
    assert rules.extended([both]).at(5).control.paused


def test_an_upgrade_names_the_protocol_that_a_round_needs():
    rules = with_change(RULES, Upgrade(protocol_version=2), 8)
    assert [rules.at(number).control.required_protocol for number in (7, 8)] == [1, 2]


def test_a_rollback_begins_the_next_lineage_and_earlier_changes_stay_in_force():
    rules = with_change(with_change(RULES, LearningRate(inner=0.1), 3), fork(), 5)
    assert [rules.at(number).lineage for number in (4, 5)] == [0, 1]
    assert rules.at(5).inner["lr"] == 0.1
    assert rules.lineage == 1
    rules = with_change(rules, fork(lineage=2, number=1), 2)
    assert [rules.at(number).lineage for number in (1, 2, 6)] == [0, 2, 2]


@pytest.mark.parametrize(
    ("amendment", "words"),
    [
        (Amendment(number=2, previous="00" * 32, from_round=1, change=Pause()), "where number 1 is due"),
        (Amendment(number=1, previous="00" * 32, from_round=1, change=Pause()), "follows another one"),
        (RULES.next(fork(lineage=3), 5), "begins lineage 3 where 1 is due"),
        (RULES.next(fork(), 9), "goes on after round 4, so it is from round 5"),
        (RULES.next(Timing(values={"heartbeat_timeout_s": 90.0}), 2), "must be shorter than timing.drop_after_s"),
        (RULES.next(Timing(values={"hartbeat": 1.0}), 2), "unknown key timing.hartbeat"),
        (RULES.next(Limits(values={"max_peers": 0}), 2), "limits.max_peers = 0"),
        (RULES.next(Ban(peers=tuple(PEERS[:6])), 2), "nobody who may take part would be left"),
        (RULES.next(Keys(operators=(PEERS[0],), threshold=2), 2), "1 operators cannot give 2 signatures"),
    ],
    ids=str,
)
def test_wrong_amendments_are_refused_in_one_line(amendment: Amendment, words: str):
    line = refusal(RULES, amendment.signed(PEOPLE[0]))
    assert words in line
    assert line.startswith(f"amendment {amendment.number}")
    assert "\n" not in line


def test_a_foreign_a_missing_and_a_forged_signature_are_told_apart():
    amendment = RULES.next(Pause(), 3)
    assert "0 of 1 signatures" in refusal(RULES, amendment)
    assert f"…{PEERS[1][-5:]}, who is no operator" in refusal(RULES, amendment.signed(PEOPLE[1]))
    signed = amendment.signed(PEOPLE[0])
    moved = signed.model_copy(update={"from_round": 4})
    assert "does not match" in refusal(RULES, moved)


def test_two_different_amendments_of_one_number_are_the_operators_fault():
    rules = with_change(RULES, Pause())
    other = RULES.next(Resume(), 5).signed(PEOPLE[0])
    assert "two different ones are signed" in refusal(rules, other)


def test_what_an_operator_must_not_do_by_mistake():
    with pytest.raises(InvalidAmendment, match="round 3 is past; the run works on 7"):
        RULES.check_new(RULES.next(Pause(), 3), 7, ROSTER)
    with pytest.raises(InvalidAmendment, match="the rest is no quorum"):
        RULES.check_new(RULES.next(Ban(peers=ROSTER[:2]), 8), 7, ROSTER[:3])
    RULES.check_new(RULES.next(Ban(peers=ROSTER[:1]), 8), 7, ROSTER)


def test_a_reset_may_be_signed_by_delegates_and_a_rollback_may_not():
    genesis = genesis_of(recovery=RecoveryConfig(delegates=(PEERS[2], PEERS[3]), threshold=2))
    rules, reset = RunRules(genesis), Reset(**fork().model_dump(exclude={"kind"}))
    amendment = rules.next(reset, 5)
    assert "no operator" in refusal(rules, amendment.signed(PEOPLE[2]))
    assert rules.extended([amendment.signed(PEOPLE[2]).signed(PEOPLE[3])]).lineage == 1
    rollback = rules.next(fork(), 5).signed(PEOPLE[2]).signed(PEOPLE[3])
    assert "no operator" in refusal(rules, rollback)


def test_rules_survive_their_text():
    rules = with_change(with_change(RULES, Pause()), fork(), 5)
    texts = [amendment.canonical() for amendment in rules.amendments]
    again = RunRules(RULES.genesis).extended(map(Amendment.parse, texts))
    assert again.head == rules.head
    assert again.at(5) == rules.at(5)
