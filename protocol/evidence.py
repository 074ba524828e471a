"""Evidence of misconduct that convinces anybody who trusts the genesis: signed by the accused, complete, bounded. Pure.

- `Lie`: an owner has signed a span's result, and one of the chunks that it stands for is not what the committed
  contributions give. The mean is a deterministic function of plan and contributions (`true_mean`, by the owners' own
  code), so that recomputing one chunk decides it, to the bit.
- `TwoResults`: an owner has signed two results of one span of one plan.
- `TwoProposals`: a leader has signed two plans or two records at one ballot.
- `Verdict`: enough members have signed that another one's contributions are not what its steps give (`suspicions`).

An honest member never signs any of the first three: it includes only what it has checked against the plan, signs one
result of a span even over a restart (`result_signer`), and leads no ballot twice (`Acceptor.led`).

Wire form: the canonical JSON of a header, then for a `Lie` the bytes whose number `payload_bytes` gives. Sizes follow
from grid and plan; no length is read from a frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from ..kernels.codec import InvalidEncoding
from .admission import refusals
from .aggregation import reduce_chunk
from .amendments import RunRules
from .chunks import ChunkGrid, Contribution, chunk_digest, covers, span_chunks
from .commitments import ENTRY_BYTES, Leaf, Root, proof_length, verify
from .envelope import Envelope, InvalidMessage
from .identity import PeerId
from .messages import PlanMessage, Proposal
from .parsing import Unreadable, parse_any
from .record import Plan, SpanResult
from .signed_results import is_signed, says_the_same
from .spec import Genesis
from .suspicions import Verdict, flaw_of
from .transport import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, Buffer
from .values import Count, Frozen, Peer, SquaredNorm
from .weights import weights

MAX_HEADER_BYTES = MAX_FRAME_BYTES
"""Longest header: one frame. Two envelopes in hexadecimal nearly always fit."""


class FalseEvidence(ValueError):
    """What was offered proves nothing; the message says why."""


class OtherRules(Exception):
    """The evidence is of a time under rules that are not known here: it cannot be judged by others."""


@dataclass(frozen=True)
class Part:
    """One encoded chunk with what binds it to a root that somebody has committed to."""

    leaf: Leaf
    proof: tuple[Leaf, ...]
    data: Buffer

    def is_bound_to(self, root: Root, num_leaves: int, index: int) -> bool:
        """Whether the bytes are what was committed to as leaf ``index``."""
        is_digest = chunk_digest(self.data) == self.leaf.digest
        return is_digest and verify(root, num_leaves, index, (self.leaf,), self.proof)

    def is_sound(self, grid: ChunkGrid, chunk: int) -> bool:
        """Whether an encoder can have written it, and its leaf states its norm: what every receiver checks."""
        try:
            grid.codec.check(self.data, grid.chunk_length(chunk))
        except InvalidEncoding:
            return False
        return grid.codec.squared_norm(self.data, grid.chunk_length(chunk)) == self.leaf.squared_norm

    def encode(self) -> bytes:
        return b"".join(entry.encode() for entry in (self.leaf, *self.proof)) + bytes(self.data)

    @classmethod
    def of(cls, contribution: Contribution, grid: ChunkGrid, chunk: int) -> Part:
        """A chunk of a whole contribution."""
        data = contribution.encoded[grid.encoded_range(chunk)]
        return cls(contribution.leaves[chunk], contribution.tree.proof(chunk, 1), data)

    @classmethod
    def decode(cls, data: Buffer, num_leaves: int, index: int) -> Part:
        """Raises ValueError for leaves that cannot be."""
        end = part_bytes(num_leaves, index, 0)
        leaf, *proof = Leaf.decode_all(memoryview(data)[:end])
        return cls(leaf, tuple(proof), memoryview(data)[end:])


def part_bytes(num_leaves: int, index: int, num_data_bytes: int) -> int:
    """Wire size of a `Part`."""
    return ENTRY_BYTES * (1 + proof_length(num_leaves, index, 1)) + num_data_bytes


class LieHeader(Frozen):
    """What a `Lie` is about."""

    kind: Literal["lie"] = "lie"
    plan: Plan
    result: SpanResult
    chunk: Count
    """On the grid."""
    squared_norm: SquaredNorm
    """Of the span's mean: part of the root that the result's digest is the hash of."""


@dataclass(frozen=True)
class Lie:
    """A chunk of a signed mean, and everything that the mean of that chunk is to be computed from."""

    header: LieHeader
    mean: Part
    """Of the span's tree."""
    contributions: tuple[Part, ...]
    """Of the included members, in plan order, each of its member's tree."""

    @property
    def accused(self) -> PeerId:
        return accused_of(self.header)


class TwoResults(Frozen):
    """Two results of one span of one plan under one signature."""

    kind: Literal["two_results"] = "two_results"
    accused: Peer
    first: SpanResult
    second: SpanResult


class TwoProposals(Frozen):
    """Two `PlanMessage` or `Proposal` envelopes of one sender that no leader sends both; hexadecimal."""

    kind: Literal["two_proposals"] = "two_proposals"
    accused: Peer
    first: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * MAX_MESSAGE_BYTES)]
    second: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * MAX_MESSAGE_BYTES)]


Evidence: TypeAlias = Lie | TwoResults | TwoProposals | Verdict
Header: TypeAlias = LieHeader | TwoResults | TwoProposals | Verdict
_HEADER: TypeAdapter[Any] = TypeAdapter(Annotated[Header, Field(discriminator="kind")])


def accused_of(header: Header) -> PeerId:
    """Whom a header of evidence is against. Raises `FalseEvidence` if it names nobody."""
    if not isinstance(header, LieHeader):
        return PeerId(header.accused)
    _require(header.result.span < len(header.plan.spans), "the result is of no span of the plan")
    return PeerId(header.plan.spans[header.result.span].owner)


def kind_of(evidence: Evidence) -> str:
    """``lie``, ``two_results``, ``two_proposals`` or ``verdict``."""
    return header_of(evidence).kind


def header_of(evidence: Evidence) -> Header:
    """What is said before the bytes."""
    return evidence.header if isinstance(evidence, Lie) else evidence


def rules_of(header: Header, rules: RunRules) -> Genesis:
    """What a header is judged by: for a `Lie` the rules that its plan names, in force still or not.

    Whoever has signed a lie is guilty of it after the next amendment, too, and in a lineage that has been left. Raises
    `OtherRules` if they are not known.
    """
    if not isinstance(header, LieHeader):
        return rules.genesis
    genesis = rules.once(header.plan.rules, header.plan.round)
    if genesis is None:
        raise OtherRules
    return genesis


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(evidence: Evidence, genesis: Genesis, grid: ChunkGrid, roster: Collection[PeerId] = ()) -> None:
    """Returns if ``evidence`` proves that `accused` broke the rules of ``genesis`` (`rules_of`). A `Verdict` is one of
    ``roster``.

    Raises `FalseEvidence` if it does not, and `OtherRules` if the plan was made under other rules. CPU-bound for a
    `Lie`: hashes and reduces one chunk of all members.
    """
    match evidence:
        case Lie():
            check_header(evidence.header, genesis, grid)
            _judge_lie(evidence, genesis, grid)
        case TwoResults():
            _judge_results(evidence)
        case TwoProposals():
            _judge_proposals(evidence, genesis)
        case Verdict():
            _judge_verdict(evidence, genesis, roster)


def _judge_verdict(verdict: Verdict, genesis: Genesis, roster: Collection[PeerId]) -> None:
    if any(suspicion.lineage != genesis.lineage for suspicion in verdict.suspicions):
        raise OtherRules
    flaw = flaw_of(verdict, genesis, roster)
    _require(flaw is None, flaw or "")


def check_header(header: Header, genesis: Genesis, grid: ChunkGrid) -> None:
    """Everything that can be said of a `Lie` before its bytes are here. Raises as `judge` does."""
    if not isinstance(header, LieHeader):
        return
    plan, result = header.plan, header.result
    if plan.rules != genesis.rules_id or plan.lineage != genesis.lineage:
        raise OtherRules
    most = max(genesis.limits.max_peers, len(genesis.membership.roster))
    _require(len(plan.members) <= most, "more members than the run has")
    _require(covers(grid, plan.spans), "the plan does not cover the grid")
    _require(result.plan == plan.content_id() and result.span < len(plan.spans), "the result is of another plan")
    _require(len(result.included) == len(plan.members), "the result is not over the plan's members")
    span = plan.spans[result.span]
    _require(is_signed(result, span.owner), "the owner has not signed the result")
    _require(header.chunk in span_chunks(grid, span), "the chunk is not in the span")


def _judge_lie(lie: Lie, genesis: Genesis, grid: ChunkGrid) -> None:
    plan, result, chunk = lie.header.plan, lie.header.result, lie.header.chunk
    chunks = span_chunks(grid, plan.spans[result.span])
    root = Root(result.digest, lie.header.squared_norm)
    _require(lie.mean.is_bound_to(root, len(chunks), chunk - chunks.start), "the owner did not sign this mean")
    members = included_members(result)
    _require(len(members) == len(lie.contributions), "not one contribution of each included member")
    for index, part in zip(members, lie.contributions, strict=True):
        member = plan.members[index]
        committed = Root(member.commitment, member.squared_norm)
        _require(part.is_bound_to(committed, grid.num_chunks, chunk), "a contribution is not the committed one")
    honest = true_mean(genesis, grid, plan, result, chunk, lie.contributions)
    _require(honest is None or honest != bytes(lie.mean.data), "the mean is the right one")


def true_mean(
    genesis: Genesis, grid: ChunkGrid, plan: Plan, result: SpanResult, chunk: int, contributions: Sequence[Part]
) -> bytes | None:
    """What an honest owner makes of the included ``contributions``; None if no honest owner signs such a result."""
    if refusals(plan.members).keys() & set(included_members(result)):
        return None
    if not all(part.is_sound(grid, chunk) for part in contributions):
        return None
    shares = weights(plan, result.included, genesis.trust, genesis.member_limits)
    if not any(shares):
        return None
    kept = [shares[index] for index in included_members(result)]
    datas = [part.data for part in contributions]
    return reduce_chunk(grid, chunk, datas, kept, genesis.trust.aggregation).encoded.tobytes()


def included_members(result: SpanResult) -> list[int]:
    """Indices into ``Plan.members``."""
    return [index for index, is_in in enumerate(result.included) if is_in]


def _judge_results(evidence: TwoResults) -> None:
    first, second = evidence.first, evidence.second
    _require((first.plan, first.span) == (second.plan, second.span), "results of two spans")
    _require(not says_the_same(first, second), "both results say the same")
    _require(is_signed(first, evidence.accused) and is_signed(second, evidence.accused), "not signed by the accused")


def _judge_proposals(evidence: TwoProposals, genesis: Genesis) -> None:
    first, second = (_opened(raw, evidence.accused, genesis) for raw in (evidence.first, evidence.second))
    _require(contradict(first, second), "a leader may say both")


def _opened(raw: str, accused: PeerId, genesis: Genesis) -> PlanMessage | Proposal:
    try:
        envelope = Envelope.open(bytes.fromhex(raw), run_id=genesis.run_id)
    except InvalidMessage as error:
        raise FalseEvidence(str(error)) from None
    _require(envelope.header.sender == accused, "not signed by the accused")
    if not isinstance(envelope.body, PlanMessage | Proposal):
        raise FalseEvidence("neither a plan nor a proposal")
    return envelope.body


def contradict(first: PlanMessage | Proposal, second: PlanMessage | Proposal) -> bool:
    """Whether no leader sends both: another plan, or another record, at one ballot of one round."""
    if ballot_of(first) != ballot_of(second):
        return False
    if isinstance(first, Proposal) and isinstance(second, Proposal):
        return first.record != second.record
    plans = [plan for plan in (_own_plan(first), _own_plan(second)) if plan is not None]
    return len(plans) == 2 and plans[0] != plans[1]


def ballot_of(message: PlanMessage | Proposal) -> tuple[int, int, int, int]:
    """Lineage, fragment, round and ballot that a leader speaks for."""
    plan = message.plan if isinstance(message, PlanMessage) else message.record.plan
    return plan.lineage, plan.fragment, plan.round, plan.ballot if isinstance(message, PlanMessage) else message.ballot


def _own_plan(message: PlanMessage | Proposal) -> Plan | None:
    """The plan that the sender has made at the ballot; a proposal may have to repeat an earlier leader's."""
    if isinstance(message, PlanMessage):
        return message.plan
    return message.record.plan if message.record.plan.ballot == message.ballot else None


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise FalseEvidence(why)


# --- wire form --------------------------------------------------------------------------------------------------------


def encode_header(evidence: Evidence) -> bytes:
    """Canonical JSON."""
    return header_of(evidence).canonical()


def decode_header(data: bytes) -> Header:
    """Raises `FalseEvidence` for anything else than a header."""
    try:
        return parse_any(_HEADER, data)
    except Unreadable as error:
        raise FalseEvidence(f"malformed header: {error}") from None


def payload_bytes(header: Header, grid: ChunkGrid) -> int:
    """How many bytes follow a header that `check_header` lets pass."""
    return sum(num_bytes for *_, num_bytes in _layout(header, grid))


def encode_payload(evidence: Evidence) -> bytes:
    parts = (evidence.mean, *evidence.contributions) if isinstance(evidence, Lie) else ()
    return b"".join(part.encode() for part in parts)


def assemble(header: Header, payload: Buffer, grid: ChunkGrid) -> Evidence:
    """Evidence from a checked header and its payload. Raises `FalseEvidence`."""
    if not isinstance(header, LieHeader):
        return header
    view, parts = memoryview(payload), list[Part]()
    try:
        for num_leaves, index, num_bytes in _layout(header, grid):
            parts.append(Part.decode(view[:num_bytes], num_leaves, index))
            view = view[num_bytes:]
    except ValueError as error:
        raise FalseEvidence(f"malformed part: {error}") from None
    return Lie(header, parts[0], tuple(parts[1:]))


def _layout(header: Header, grid: ChunkGrid) -> Iterator[tuple[int, int, int]]:
    """Per part: leaves of its tree, index of its leaf, bytes."""
    if not isinstance(header, LieHeader):
        return
    chunks, num_data_bytes = span_chunks(grid, header.plan.spans[header.result.span]), grid.encoded_bytes(header.chunk)
    trees = [(len(chunks), header.chunk - chunks.start)]
    trees += [(grid.num_chunks, header.chunk)] * len(included_members(header.result))
    for num_leaves, index in trees:
        yield num_leaves, index, part_bytes(num_leaves, index, num_data_bytes)
