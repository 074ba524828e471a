from __future__ import annotations

import pytest

from atoll.protocol.commitments import Leaf
from atoll.protocol.envelope import Header, seal
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Attest, Commit
from atoll.protocol.receipts import FIRST, InvalidReceipt, Receipt, check_chain, parse, statements, statements_root
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult

RUN = "ab" * 32
PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 6)]
ME, OTHER, ABSENT = PEOPLE[0], PEOPLE[1], PEOPLE[2]
ZERO = "0" * 64


def commit_of(round_number: int, absent: Identity = ABSENT) -> Commit:
    """Five members in two spans; ``absent``'s contribution is in neither, the last one's in one."""
    peers = tuple(person.peer_id for person in PEOPLE)
    plan = Plan(
        lineage=0,
        fragment=0,
        round=round_number,
        ballot=0,
        leader=peers[0],
        parent=ZERO,
        parent_state=ZERO,
        members=tuple(Member(peer=peer, tokens=100 + i, commitment=ZERO) for i, peer in enumerate(peers)),
        spans=(Span(first_chunk=0, num_chunks=1, owner=peers[0]), Span(first_chunk=1, num_chunks=1, owner=peers[1])),
        roster=peers,
        next_roster=peers,
        data_cursor=0,
        rules=ZERO,
        attempt_timeout_s=1.0,
    )
    included = [
        tuple(person is not absent and (span == 0 or i < 4) for i, person in enumerate(PEOPLE)) for span in (0, 1)
    ]
    results = tuple(
        SpanResult(plan=plan.content_id(), span=span, included=flags, digest=ZERO)
        for span, flags in enumerate(included)
    )
    return Commit(record=Record(plan=plan, results=results), ballot=0, votes=())


def attest(person: Identity, commit: Commit, run_id: str = RUN, **changes) -> bytes:
    body = Attest(
        round=commit.record.plan.round,
        record=commit.record.content_id(),
        state_hash=ZERO,
        receipts=statements_root(RUN, commit),
    )
    header = Header(run_id=run_id, lineage=0, sender=person.peer_id, sequence=1, expires_unix_s=1.0)
    return seal(person, header, body.model_copy(update=changes))


def receipt_of(round_number: int, previous: str = FIRST, person: Identity = ME) -> Receipt:
    commit = commit_of(round_number)
    attests = [attest(witness, commit) for witness in PEOPLE if witness is not person]
    receipt = Receipt.make(person, RUN, commit, attests, previous)
    assert receipt is not None
    return receipt


def chain_of(*rounds: int) -> list[Receipt]:
    receipts: list[Receipt] = []
    for number in rounds:
        receipts.append(receipt_of(number, receipts[-1].link if receipts else FIRST))
    return receipts


def test_a_chain_proves_rounds_tokens_and_who_vouches_for_them_offline():
    lines = [receipt.canonical().decode() for receipt in chain_of(3, 4, 7)]
    given = check_chain(RUN, [parse(line) for line in lines])
    assert (given.peer, given.num_receipts, given.tokens) == (ME.peer_id, 3, 300)
    assert (given.first_round, given.last_round, given.num_lone) == (3, 7, 0)
    assert given.countersigners == {person.peer_id for person in PEOPLE[1:]}


def test_every_member_that_counted_can_prove_it_and_no_other():
    commit = commit_of(1)
    assert [said.peer for said in statements(RUN, commit)] == [p.peer_id for p in PEOPLE if p is not ABSENT]
    for person in PEOPLE:
        receipt = Receipt.make(person, RUN, commit, [attest(ME, commit), attest(OTHER, commit)], FIRST)
        if person is ABSENT:
            assert receipt is None
            continue
        assert receipt is not None
        assert receipt.check() == {ME.peer_id, OTHER.peer_id} - {person.peer_id}
    assert statements(RUN, commit)[-1].num_included == 1


def test_own_attests_and_those_of_other_rounds_or_runs_count_for_nobody():
    commit = commit_of(2)
    others = [
        attest(ME, commit),
        attest(OTHER, commit_of(3)),
        attest(OTHER, commit, run_id="cd" * 32),
        attest(OTHER, commit, receipts=ZERO),
        attest(OTHER, commit, receipts=None),
        b"no envelope",
    ]
    receipt = Receipt.make(ME, RUN, commit, others, FIRST)
    assert receipt is not None
    assert len(receipt.attests) == 1
    assert receipt.check() == frozenset()
    assert check_chain(RUN, [receipt]).num_lone == 1


def resigned(receipt: Receipt, **changes) -> Receipt:
    """As a node that lies about itself would make it."""
    draft = receipt.model_copy(update=changes)
    return draft.model_copy(update={"signature": ME.sign(b"atoll/receipt/1\0" + draft.signed_bytes()).hex()})


def test_a_node_cannot_give_itself_more_than_the_others_have_signed():
    receipt = receipt_of(1)
    richer = receipt.statement.model_copy(update={"tokens": 10**9})
    for forged in (
        resigned(receipt, statement=richer),
        resigned(receipt, statement=receipt.statement.model_copy(update={"num_included": 1})),
        resigned(receipt, index=1),
        resigned(receipt, num_statements=5),
        resigned(receipt, proof=()),
        resigned(receipt, proof=tuple(Leaf(bytes(32), 0.0).encode().hex() for _ in receipt.proof)),
        resigned(receipt, attests=("zz",)),
        resigned(receipt, attests=(attest(OTHER, commit_of(9)).hex(),)),
    ):
        with pytest.raises(InvalidReceipt, match="countersignature"):
            forged.check()


def test_what_was_changed_after_signing_does_not_hold():
    receipt = receipt_of(1)
    for changed in (
        receipt.model_copy(update={"previous": "1" * 64}),
        receipt.model_copy(update={"attests": ()}),
        receipt.model_copy(update={"signature": "0" * 128}),
    ):
        with pytest.raises(InvalidReceipt, match="signature does not match"):
            changed.check()


def test_gaps_repetitions_and_mixtures_are_named_with_their_round():
    one, two, three = chain_of(1, 2, 3)
    assert check_chain(RUN, [two, three]).num_receipts == 2  # what came before need not be shown
    for receipts, why in (
        ([one, three], "receipt of round 3: does not follow"),
        ([one, one], "receipt of round 1: does not follow"),
        ([one, receipt_of(1, one.link)], "a round counts once"),
        ([one, receipt_of(2, one.link, OTHER)], "of another peer"),
        ([], "no receipts"),
    ):
        with pytest.raises(InvalidReceipt, match=why):
            check_chain(RUN, receipts)
    with pytest.raises(InvalidReceipt, match="of another run"):
        check_chain("cd" * 32, [one])


@pytest.mark.parametrize("line", ["", "{}", "[" * 10_000, '{"statement": 1}', "x" * (2 << 20)])
def test_lines_that_are_no_receipts_are_refused_in_one_line(line):
    with pytest.raises(InvalidReceipt) as caught:
        parse(line)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)
