"""Parsers of audits and evidence: what owners show, and what accusers send."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atoll.protocol import audit, payload
from atoll.protocol import evidence as proofs
from atoll.protocol.amendments import RunRules
from atoll.protocol.audit import Auditor, Findings
from atoll.protocol.docket import Docket
from atoll.protocol.envelope import seal
from atoll.protocol.evidence import FalseEvidence, LieHeader, OtherRules, Part, TwoProposals, TwoResults
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.identity import PeerId
from atoll.protocol.messages import PlanMessage
from atoll.protocol.record import Member
from atoll.protocol.result_signer import ResultSigner
from atoll.protocol.signed_results import signed
from atoll.protocol.simulator import world_genesis
from atoll.protocol.swarm.streams import SwarmStream

from . import examples as ex
from .file_targets import FILE_BYTES, in_file, made
from .harness import ON_STREAMS, Refused, Target, accepted, frames, on_stream, run_async, served, stream_of
from .network_targets import Donor, executor, folder

GENESIS = world_genesis(1)
ME = ex.ME.peer_id
MEMBER = Member(peer=ME, tokens=7, commitment=ex.CONTRIBUTION.commitment, squared_norm=ex.CONTRIBUTION.squared_norm)
PLAN = ex.PLAN.model_copy(update={"members": (MEMBER,), "rules": GENESIS.rules_id})
RESULT = signed(ex.ME, ex.RESULT.model_copy(update={"plan": PLAN.content_id()}))
HEADER = LieHeader(plan=PLAN, result=RESULT, chunk=0, squared_norm=ex.CONTRIBUTION.squared_norm).canonical()
ENVELOPE = seal(ex.ME, ex.HEADER, PlanMessage(plan=PLAN))
TWO = TwoProposals(accused=ME, first=ENVELOPE.hex(), second=ENVELOPE.hex()).canonical()
PART = Part.of(ex.CONTRIBUTION, ex.GRID, 0).encode()
OTHER = signed(ex.ME, RESULT.model_copy(update={"digest": ex.ZERO}))
CONTRADICTION = TwoResults(accused=ME, first=RESULT, second=OTHER)
RUN: Any = SimpleNamespace(run_id=ex.RUN, lineage=0)
STREAM_BYTES = 256 << 10


def _auditor(donor: Any) -> Auditor:
    return Auditor(ME, ex.GRID, donor, executor(), 8)


def _docket(donor: Any, store: Any = None) -> Docket:
    store = store or EvidenceStore(folder() / "evidence", ex.GRID)
    rules, roster = lambda: RunRules(GENESIS), lambda: (ME,)
    return Docket(ex.GRID, donor, store, executor(), rules, roster, lambda *_: None, lambda _: None)


async def _answer_audit(stream: SwarmStream) -> None:
    auditor, shown = _auditor(Donor()), Part.of(ex.CONTRIBUTION, ex.GRID, 0)
    auditor.keep(SimpleNamespace(plan_id=PLAN.content_id(), plan=PLAN, exhibit=lambda _: [shown]))  # type: ignore[arg-type]
    await auditor._handle(stream)


async def _read_parts(stream: SwarmStream) -> None:
    await _auditor(Donor())._read_parts(stream, PLAN, 0, Findings())


async def _hear_evidence(stream: SwarmStream) -> None:
    await _docket(Donor())._handle(stream)


class _Accuser(Donor):
    def __init__(self, stream: SwarmStream) -> None:
        super().__init__()
        self._stream = stream

    async def open(self, _peer: object, _protocol: str) -> SwarmStream:
        return self._stream


class _Verdicts:
    """A store whose every evidence is the first, and that says what was kept."""

    def __init__(self) -> None:
        self.accused: set[str] = set()
        self.kept: list[object] = []

    def save(self, evidence: object) -> None:
        self.kept.append(evidence)


async def _accuse(stream: SwarmStream) -> None:
    """True evidence comes through, to the disk."""
    store: Any = _Verdicts()
    await _docket(Donor(), store)._handle(stream)
    accepted(store.kept or None)


def _accuse_of_results(header: bytes) -> None:
    run_async(_accuse(stream_of(frames(b"T" + header))))


async def _offer(stream: SwarmStream) -> None:
    await _docket(_Accuser(stream))._offer(ME, TwoResults(accused=ME, first=RESULT, second=RESULT))


async def _ask_auditee(stream: SwarmStream) -> None:
    donor: Any = _Accuser(stream)
    auditor = Auditor(PeerId("another"), ex.GRID, donor, executor(), 8)
    await auditor._ask(ME, PLAN, RESULT, 0, Findings())


def _read_evidence(path: Path) -> None:
    accepted(EvidenceStore(path.parent, ex.GRID).load(ME))


def _evidence_file(place: Path) -> None:
    EvidenceStore(place, ex.GRID).save(CONTRADICTION)


def _signatures(place: Path) -> None:
    ResultSigner(ex.ME, place).sign(1, RESULT)


async def _ask_for_evidence(stream: SwarmStream) -> None:
    await _docket(_Accuser(stream))._ask(ME, ME)


EVIDENCE_TARGETS = (
    Target(
        "a header of evidence",
        proofs.decode_header,
        [HEADER, TWO],
        ("protocol/evidence.py:decode_header",),
        refusals=(FalseEvidence,),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a statement that is shown as evidence",
        lambda data: proofs._opened(data.hex(), ME, RUN),
        [ENVELOPE],
        ("protocol/evidence.py:_opened",),
        refusals=(FalseEvidence, OtherRules),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a chunk with its proof",
        lambda data: Part.decode(data, ex.GRID.num_chunks, 0),
        [PART],
        ("protocol/evidence.py:Part.decode",),
        refusals=(ValueError,),
        max_bytes=64 << 10,
    ),
    Target(
        "questions of auditors",
        served(_answer_audit),
        [frames(bytes(36)), frames(*2 * [bytes.fromhex(PLAN.content_id()) + bytes(4)])],
        ("protocol/audit.py:Auditor._answer",),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "what an owner shows",
        on_stream(_read_parts),
        [frames(b"\x01", PART), frames(b"\x00")],
        ("protocol/audit.py:Auditor._read_parts",),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "accusations, and questions for evidence",
        served(_hear_evidence),
        [frames(b"T" + HEADER, PART * 2), frames(b"T" + TWO), frames(b"S" + ME.encode())],
        ("protocol/docket.py:Docket._handle", "protocol/docket.py:Docket._receive"),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "evidence that was asked for",
        on_stream(_ask_for_evidence),
        [frames(payload.NO), frames(payload.YES, CONTRADICTION.canonical())],
        ("protocol/docket.py:Docket._ask",),
        refusals=(*ON_STREAMS, FalseEvidence, OtherRules),
        max_bytes=STREAM_BYTES,
        tokens=(frames(payload.YES, HEADER, PART * 2), frames(payload.YES, TWO)),
    ),
    Target(
        "two results of one owner",
        _accuse_of_results,
        [CONTRADICTION.canonical()],
        ("protocol/docket.py:Docket._handle", "protocol/signed_results.py:_verified"),
        refusals=(*ON_STREAMS, Refused),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "answers to an accusation",
        on_stream(_offer),
        [frames(payload.YES, payload.YES), frames(payload.NO)],
        ("protocol/docket.py:Docket._offer",),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "an answer to an auditor",
        on_stream(_ask_auditee),
        [frames(payload.YES, b"\x01", PART)],
        ("protocol/audit.py:Auditor._ask", "protocol/audit.py:Auditor._read_parts"),
        refusals=(*ON_STREAMS, audit._Refused),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "evidence on disk",
        in_file(f"{ME}.evidence", _read_evidence),
        [made(f"{ME}.evidence", _evidence_file)],
        ("protocol/evidence_store.py:EvidenceStore.load",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "results that were signed before",
        in_file(f"{1:012d}.jsonl", lambda path: ResultSigner(ex.ME, path.parent)),
        [made(f"{1:012d}.jsonl", _signatures)],
        ("protocol/result_signer.py:_read",),
        max_bytes=FILE_BYTES,
    ),
)
