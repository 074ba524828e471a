"""Evidence on its own: what convinces, what does not, its size, and the single proofs it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.kernels.codec import codec
from atoll.protocol.amendments import RunRules
from atoll.protocol.changes import LearningRate, Rollback
from atoll.protocol.chunks import ChunkGrid, Contribution, span_chunks, tree_of
from atoll.protocol.commitments import Leaf, Tree, narrow, verify
from atoll.protocol.envelope import Header, seal
from atoll.protocol.evidence import (
    FalseEvidence,
    Lie,
    LieHeader,
    OtherRules,
    Part,
    TwoProposals,
    TwoResults,
    assemble,
    check_header,
    decode_header,
    encode_header,
    encode_payload,
    judge,
    payload_bytes,
    rules_of,
    true_mean,
)
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.identity import Identity
from atoll.protocol.messages import PlanMessage, Proposal
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.result_signer import AlreadySigned, ResultSigner
from atoll.protocol.signed_results import is_signed, signed
from atoll.protocol.simulator import world_genesis
from atoll.protocol.spec import Genesis

PEOPLE = [Identity.from_seed(bytes([number + 1]) * 32) for number in range(3)]
OWNER = PEOPLE[1]
GENESIS = world_genesis(3)
GRID = ChunkGrid(11 * 256 + 100, 256, codec("int8"))
SPAN, CHUNK = 1, 6


@dataclass(frozen=True)
class Case:
    """One span of a round: contributions, plan, and an owner's signed mean, honest unless ``mean`` says otherwise."""

    included: tuple[bool, ...] = (True, True, True)
    altered_chunk: int | None = None

    @cached_property
    def contributions(self) -> list[Contribution]:
        return [contribution_of(seed) for seed in range(3)]

    @cached_property
    def plan(self) -> Plan:
        members = (
            Member(peer=person.peer_id, tokens=100 + i, commitment=c.commitment, squared_norm=c.squared_norm)
            for i, (person, c) in enumerate(zip(PEOPLE, self.contributions, strict=True))
        )
        edges = (0, 4, 9, GRID.num_chunks)
        spans = (
            Span(first_chunk=edges[i], num_chunks=edges[i + 1] - edges[i], owner=PEOPLE[i].peer_id) for i in range(3)
        )
        return plan_of(members=tuple(members), spans=tuple(spans))

    @cached_property
    def mean(self) -> bytes:
        """Of all chunks of the span."""
        result = SpanResult(plan=self.plan.content_id(), span=SPAN, included=self.included, digest="0" * 64)
        means = [
            true_mean(GENESIS, GRID, self.plan, result, chunk, self.parts(chunk))
            for chunk in span_chunks(GRID, self.plan.spans[SPAN])
        ]
        if self.altered_chunk is not None:
            means[self.altered_chunk - 4] = bytes(np.full(GRID.encoded_bytes(CHUNK), 0, np.uint8))
        return b"".join(means)

    @cached_property
    def result(self) -> SpanResult:
        digest = tree_of(GRID, self.mean, range(4, 9)).root.digest
        return signed(OWNER, SpanResult(plan=self.plan.content_id(), span=SPAN, included=self.included, digest=digest))

    def parts(self, chunk: int) -> tuple[Part, ...]:
        pairs = zip(self.contributions, self.included, strict=True)
        return tuple(Part.of(contribution, GRID, chunk) for contribution, is_in in pairs if is_in)

    def evidence(self, chunk: int = CHUNK) -> Lie:
        tree, start = tree_of(GRID, self.mean, range(4, 9)), GRID.encoded_range(4).start
        part = GRID.encoded_range(chunk)
        data = self.mean[part.start - start : part.stop - start]
        header = LieHeader(plan=self.plan, result=self.result, chunk=chunk, squared_norm=tree.root.squared_norm)
        return Lie(header, Part(tree.leaves[chunk - 4], tree.proof(chunk - 4, 1), data), self.parts(chunk))


def contribution_of(seed: int) -> Contribution:
    values = np.random.default_rng(seed).standard_normal(GRID.num_elements).astype(np.float32)
    encoded = np.empty(GRID.total_encoded, np.uint8)
    for chunk in range(GRID.num_chunks):
        GRID.codec.encode(values[GRID.elements(chunk)], encoded[GRID.encoded_range(chunk)])
    return Contribution.of(GRID, encoded.data, round_number=1, tokens=100 + seed)


def plan_of(**changes: object) -> Plan:
    roster = tuple(person.peer_id for person in PEOPLE)
    values = {
        "lineage": 0,
        "fragment": 0,
        "round": 1,
        "ballot": 0,
        "leader": roster[0],
        "parent": "1" * 64,
        "parent_state": "2" * 64,
        "members": (),
        "spans": (),
        "roster": roster,
        "next_roster": roster,
        "data_cursor": 0,
        "rules": GENESIS.rules_id,
        "attempt_timeout_s": 20.0,
    }
    return Plan.model_validate({**values, **changes})


LIE = Case(altered_chunk=CHUNK)


def test_an_altered_chunk_convinces_whoever_has_the_rules():
    judge(LIE.evidence(), GENESIS, GRID)
    assert LIE.evidence().accused == OWNER.peer_id


def test_a_lie_over_some_of_the_members_convinces():
    judge(Case(included=(True, False, True), altered_chunk=CHUNK).evidence(), GENESIS, GRID)


@pytest.mark.parametrize("included", [(True, True, True), (False, True, True), (True, False, False)])
def test_an_honest_mean_proves_nothing(included):
    with pytest.raises(FalseEvidence, match="right one"):
        judge(Case(included=included).evidence(), GENESIS, GRID)


def test_the_honest_chunks_of_a_liar_prove_nothing():
    with pytest.raises(FalseEvidence, match="right one"):
        judge(LIE.evidence(CHUNK + 1), GENESIS, GRID)


def test_including_somebody_that_every_owner_refuses_is_a_lie():
    empty = Case()
    members = list(empty.plan.members)
    silent = Contribution.of(GRID, bytes(GRID.total_encoded), round_number=1, tokens=1)
    members[0] = members[0].model_copy(update={"commitment": silent.commitment, "squared_norm": 0.0})
    object.__setattr__(empty, "plan", empty.plan.model_copy(update={"members": tuple(members)}))
    object.__setattr__(empty, "contributions", [silent, *empty.contributions[1:]])
    object.__setattr__(empty, "mean", Case().mean)
    judge(empty.evidence(), GENESIS, GRID)


def forged(case: Case = LIE, **header: object) -> Lie:
    lie = case.evidence()
    return replace(lie, header=lie.header.model_copy(update=header))


def with_data(lie: Lie, index: int, data: bytes) -> Lie:
    parts = list(lie.contributions)
    parts[index] = replace(parts[index], data=data)
    return replace(lie, contributions=tuple(parts))


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (forged(result=signed(PEOPLE[0], LIE.result)), "has not signed"),
        (forged(result=LIE.result.model_copy(update={"included": (True, True, False)})), "has not signed"),
        (forged(result=LIE.result.model_copy(update={"span": 0})), "has not signed"),
        (forged(result=LIE.result.model_copy(update={"span": 7})), "another plan"),
        (forged(plan=LIE.plan.model_copy(update={"ballot": 3})), "another plan"),
        (forged(chunk=0), "not in the span"),
        (forged(squared_norm=1.0), "did not sign this mean"),
        (forged(chunk=CHUNK + 1), "did not sign this mean"),
        (replace(LIE.evidence(), mean=LIE.evidence(CHUNK + 1).mean), "did not sign this mean"),
        (replace(LIE.evidence(), contributions=LIE.evidence().contributions[:2]), "each included member"),
        (replace(LIE.evidence(), contributions=LIE.evidence(CHUNK + 1).contributions), "not the committed one"),
        (with_data(LIE.evidence(), 2, bytes(GRID.encoded_bytes(CHUNK))), "not the committed one"),
    ],
)
def test_what_is_forged_proves_nothing(evidence, why):
    with pytest.raises(FalseEvidence, match=why):
        judge(evidence, GENESIS, GRID)


def test_evidence_under_other_rules_is_neither_true_nor_false():
    other = GENESIS.amended({"trust": {"clip_factor": 9.0}})
    with pytest.raises(OtherRules):
        judge(LIE.evidence(), other, GRID)


def test_a_lie_is_judged_by_the_rules_that_its_plan_names_whatever_has_been_amended_since():
    """Or members with the evidence, and others who get it after an amendment, would never agree on a plan again."""
    operator = Identity.from_seed(bytes([1]) * 32)
    header, rules = LIE.evidence().header, RunRules(GENESIS)
    assert GENESIS.operators == (operator.peer_id,)
    for change in (LearningRate(outer=0.5), fork_of(GENESIS)):
        rules = rules.extended([rules.next(change, 1).signed(operator)])
        judge(LIE.evidence(), rules_of(header, rules), GRID)
    assert rules.at(header.plan.round).lineage == 1
    unknown = forged(plan=LIE.plan.model_copy(update={"rules": "12" * 32}))
    with pytest.raises(OtherRules):
        rules_of(unknown.header, rules)


def fork_of(genesis: Genesis) -> Rollback:
    state, roster = genesis.initial_state, genesis.membership.roster
    return Rollback(lineage=1, round=0, record=genesis.run_id, state_hash=state, roster=roster)


def test_evidence_survives_the_wire_and_has_the_size_that_grid_and_plan_say(tmp_path):
    lie = LIE.evidence()
    header, payload = decode_header(encode_header(lie)), encode_payload(lie)
    check_header(header, GENESIS, GRID)
    assert len(payload) == payload_bytes(header, GRID)
    judge(assemble(header, payload, GRID), GENESIS, GRID)
    EvidenceStore(tmp_path, GRID).save(lie)
    again = EvidenceStore(tmp_path, GRID)
    assert again.accused == {OWNER.peer_id}
    judge(again.load(OWNER.peer_id), GENESIS, GRID)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_header_or_false_evidence(data):
    with pytest.raises(FalseEvidence):
        decode_header(data)


@given(st.data())
def test_a_damaged_payload_never_convinces_and_never_crashes(data):
    """Whatever is changed is either bound by a hash, or stands for a member's bytes, which are bound as well."""
    lie = LIE.evidence()
    payload = bytearray(encode_payload(lie))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FalseEvidence):
        judge(assemble(lie.header, payload, GRID), GENESIS, GRID)


# --- contradictions ---------------------------------------------------------------------------------------------------


def test_two_signed_results_of_a_span_convince_and_everything_less_does_not():
    first = LIE.result
    second = signed(OWNER, first.model_copy(update={"digest": "7" * 64}))
    judge(TwoResults(accused=OWNER.peer_id, first=first, second=second), GENESIS, GRID)
    for other, why in (
        (first, "the same"),
        (signed(OWNER, second.model_copy(update={"span": 2})), "two spans"),
        (signed(OWNER, second.model_copy(update={"plan": "8" * 64})), "two spans"),
        (signed(PEOPLE[0], second), "not signed"),
        (second.model_copy(update={"digest": "9" * 64}), "not signed"),
    ):
        with pytest.raises(FalseEvidence, match=why):
            judge(TwoResults(accused=OWNER.peer_id, first=first, second=other), GENESIS, GRID)


def envelope(body: PlanMessage | Proposal, identity: Identity = OWNER, run_id: str = GENESIS.run_id) -> str:
    header = Header(run_id=run_id, lineage=0, sender=identity.peer_id, sequence=1, expires_unix_s=1.0)
    return seal(identity, header, body).hex()


PLAN = plan_of()
OTHER_PLAN = plan_of(data_cursor=1)
RECORD, OTHER_RECORD = Record(plan=PLAN, results=()), Record(plan=PLAN, results=(LIE.result,))


@pytest.mark.parametrize(
    ("first", "second", "is_proof"),
    [
        (PlanMessage(plan=PLAN), PlanMessage(plan=OTHER_PLAN), True),
        (PlanMessage(plan=PLAN), PlanMessage(plan=PLAN), False),
        (PlanMessage(plan=PLAN), PlanMessage(plan=plan_of(ballot=3)), False),
        (PlanMessage(plan=PLAN), PlanMessage(plan=plan_of(round=2)), False),
        (Proposal(ballot=0, record=RECORD), Proposal(ballot=0, record=OTHER_RECORD), True),
        (Proposal(ballot=0, record=RECORD), Proposal(ballot=3, record=OTHER_RECORD), False),
        (Proposal(ballot=0, record=RECORD), PlanMessage(plan=OTHER_PLAN), True),
        (Proposal(ballot=0, record=RECORD), PlanMessage(plan=PLAN), False),
        (Proposal(ballot=3, record=RECORD), PlanMessage(plan=plan_of(ballot=3)), False),
    ],
)
def test_two_statements_of_a_leader_convince_if_no_leader_makes_both(first, second, is_proof):
    evidence = TwoProposals(accused=OWNER.peer_id, first=envelope(first), second=envelope(second))
    if is_proof:
        judge(evidence, GENESIS, GRID)
    else:
        with pytest.raises(FalseEvidence, match="may say both"):
            judge(evidence, GENESIS, GRID)


def test_statements_of_others_or_of_other_runs_prove_nothing():
    first, second = PlanMessage(plan=PLAN), PlanMessage(plan=OTHER_PLAN)
    for raw in (envelope(second, PEOPLE[0]), envelope(second, run_id="3" * 64), "00" * 70):
        with pytest.raises(FalseEvidence):
            judge(TwoProposals(accused=OWNER.peer_id, first=envelope(first), second=raw), GENESIS, GRID)


# --- what it rests on -------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.data())
def test_the_proof_of_one_leaf_follows_from_the_proof_of_its_range(num_leaves, data):
    tree = Tree([Leaf(bytes([i]) * 32, float(i)) for i in range(num_leaves)])
    first = data.draw(st.integers(0, num_leaves - 1))
    count = data.draw(st.integers(1, num_leaves - first))
    leaf = data.draw(st.integers(first, first + count - 1))
    single = narrow(num_leaves, first, tree.leaves[first : first + count], tree.proof(first, count), leaf)
    assert single == tree.proof(leaf, 1)
    assert verify(tree.root, num_leaves, leaf, (tree.leaves[leaf],), single)


def test_an_owner_signs_one_result_of_a_span_even_over_a_restart(tmp_path):
    result = LIE.result.model_copy(update={"signature": ""})
    mine = ResultSigner(OWNER, tmp_path).sign(1, result)
    assert is_signed(mine, OWNER.peer_id)
    restarted = ResultSigner(OWNER, tmp_path)
    assert restarted.sign(1, result) == mine
    with pytest.raises(AlreadySigned):
        restarted.sign(1, result.model_copy(update={"included": (True, False, True)}))
    restarted.prune(head_round=40)
    assert not list(tmp_path.iterdir())
