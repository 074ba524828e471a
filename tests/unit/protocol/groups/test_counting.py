"""Whose work is in a commit, and who may say what a group has reduced."""

from __future__ import annotations

import pytest

from atoll.protocol.commitments import Leaf, Tree
from atoll.protocol.envelope import Header, seal
from atoll.protocol.groups.counting import UNKNOWN, account, flags_of
from atoll.protocol.groups.fidelity import is_faithful, proofs_of
from atoll.protocol.groups.ledger import GroupLedger
from atoll.protocol.identity import Identity
from atoll.protocol.messages import GroupResult
from atoll.protocol.record import Record
from atoll.protocol.signed_results import signed
from atoll.protocol.transport import RemoteProtocolError

from .conftest import DIGEST, A, B, D, E, commit_of, digest, plan_of, record_of

GROUP = plan_of([(D, 100, digest(1)), (A, 100, digest(2)), (B, 100, digest(3))], [(2, D), (4, A)])
"""Of D, A and B; D owns chunks 0 and 1, A the others."""
MEAN = digest(10)
ROUND = plan_of([(D, 300, MEAN), (E, 100, digest(11))], [(3, D), (3, E)])


def test_work_counts_where_the_round_includes_the_delegate_and_the_group_the_peer() -> None:
    group = record_of(GROUP, [[True, True, True], [True, True, False]])
    commit = commit_of(record_of(ROUND, [[True, True], [True, True]]))
    assert account(commit, D, A, {MEAN: group}) == (True, True)
    assert account(commit, D, B, {MEAN: group}) == (True, False)  # of its chunks 0 and 1, which the first span has
    assert account(commit, D, D, {MEAN: group}) == (True, True)


def test_without_the_delegate_in_a_span_nobody_of_its_group_is_in_it() -> None:
    group = record_of(GROUP, [[True, True, True], [True, True, True]])
    commit = commit_of(record_of(ROUND, [[False, True], [True, True]]))
    assert account(commit, D, A, {MEAN: group}) == (False, True)
    nothing = commit_of(record_of(ROUND, [[False, True], [False, True]]))
    assert account(nothing, D, A, {MEAN: group}) == (False, False)


def test_a_delegate_that_is_in_no_plan_has_nobody_s_work_counted() -> None:
    alone = plan_of([(E, 100, digest(11))], [(6, E)])
    commit = commit_of(record_of(alone, [[True]]))
    assert account(commit, D, A, {}) == (False,)
    assert account(commit, None, A, {}) == (False,)


def test_work_that_no_group_has_had_has_missed_whatever_the_delegate_has_sent() -> None:
    commit = commit_of(record_of(ROUND, [[True, True], [True, True]]))
    assert account(commit, None, A, {}) == (False, False)


def test_what_nobody_knows_is_not_used_again() -> None:
    commit = commit_of(record_of(ROUND, [[True, True], [True, True]]))
    found = account(commit, D, A, {digest(99): record_of(GROUP, [[True] * 3] * 2)})
    assert found is UNKNOWN
    assert flags_of(found, commit) == (True, True)


def test_a_delegate_knows_that_what_it_has_no_group_result_for_was_its_own() -> None:
    commit = commit_of(record_of(ROUND, [[True, True], [False, True]]))
    assert account(commit, D, D, {}) == (True, False)


# --- the ledger -------------------------------------------------------------------------------------------------------

IDENTITIES = {person.peer_id: person for person in (Identity.from_seed(bytes([number]) * 32) for number in range(1, 9))}


def signed_record(ballot: int = 0) -> Record:
    plan = GROUP.model_copy(update={"ballot": ballot})
    record = record_of(plan, [[True, True, True], [True, True, False]])
    results = (signed(IDENTITIES[span.owner], r) for span, r in zip(plan.spans, record.results, strict=True))
    return record.model_copy(update={"results": tuple(results)})


def sealed(result: GroupResult, sender: str = D, run_id: str = DIGEST) -> bytes:
    header = Header(run_id=run_id, lineage=0, sender=sender, sequence=1, expires_unix_s=2e9)  # type: ignore[arg-type]
    return seal(IDENTITIES[sender], header, result)  # type: ignore[index]


RESULT = GroupResult(record=signed_record(), commitment=MEAN, squared_norm=1.0, proofs=("", ""))


def test_a_result_is_known_as_its_delegate_has_signed_it_and_can_be_passed_on() -> None:
    first, second = GroupLedger(DIGEST), GroupLedger(DIGEST)
    first.add(D, RESULT, sealed(RESULT))
    envelope = first.envelope(MEAN)
    assert envelope is not None
    second.add_copy(B, envelope, D)
    assert second.records() == first.records() == {MEAN: RESULT.record}
    assert second.knows(RESULT.record.plan)


@pytest.mark.parametrize(
    "raw",
    [sealed(RESULT, sender=A), sealed(RESULT, run_id=digest(5)), sealed(RESULT)[:-1], b""],
    ids=["another's", "another run's", "torn", "empty"],
)
def test_a_copy_that_its_delegate_has_not_signed_is_refused(raw: bytes) -> None:
    ledger = GroupLedger(DIGEST)
    with pytest.raises(RemoteProtocolError):
        ledger.add_copy(B, raw, D)
    assert not ledger.records()


def test_a_result_of_another_delegates_plan_or_without_its_owners_signatures_is_refused() -> None:
    unsigned = RESULT.model_copy(update={"record": record_of(GROUP, [[True] * 3] * 2)})
    short = RESULT.model_copy(
        update={"record": RESULT.record.model_copy(update={"results": RESULT.record.results[:1]})}
    )
    for delegate, result in ((E, RESULT), (D, unsigned), (D, short)):
        with pytest.raises(RemoteProtocolError):
            GroupLedger(DIGEST).add(delegate, result, b"")


def test_of_two_results_with_one_mean_the_later_attempt_counts() -> None:
    ledger = GroupLedger(DIGEST)
    later = RESULT.model_copy(update={"record": signed_record(ballot=1)})
    for result in (later, RESULT):
        ledger.add(D, result, b"")
    assert ledger.records()[MEAN].plan.ballot == 1


def test_a_ledger_does_not_grow_without_end() -> None:
    ledger = GroupLedger(DIGEST)
    for number in range(200):
        ledger.add(D, RESULT.model_copy(update={"commitment": digest(number)}), b"")
    assert len(ledger.entries()) <= 32
    assert ledger.envelope(digest(199)) is not None


# --- what a delegate contributes --------------------------------------------------------------------------------------


def test_who_has_reduced_a_span_can_tell_whether_the_delegate_contributes_it() -> None:
    leaves = [Leaf(bytes([number]) * 32, float(number)) for number in range(6)]
    altered = [*leaves[:3], Leaf(bytes([9]) * 32, 3.0), *leaves[4:]]
    honest, lying = Tree(leaves), Tree(altered)
    for tree, is_true in ((honest, True), (lying, False)):
        claim = {"commitment": tree.root.digest, "squared_norm": tree.root.squared_norm}
        result = RESULT.model_copy(update={**claim, "proofs": proofs_of(tree, GROUP)})
        assert is_faithful(result, 1, leaves[2:], 6) is is_true
    for proofs in ((), ("", ""), proofs_of(honest, GROUP)[::-1], ("zz", "zz")):
        claim = {"commitment": honest.root.digest, "squared_norm": honest.root.squared_norm, "proofs": proofs}
        assert not is_faithful(RESULT.model_copy(update=claim), 1, leaves[2:], 6)
    inflated = {"commitment": honest.root.digest, "squared_norm": 1e9, "proofs": proofs_of(honest, GROUP)}
    assert not is_faithful(RESULT.model_copy(update=inflated), 1, leaves[2:], 6)
