"""Parsers of audits and evidence: what owners show, and what accusers send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from atoll.protocol import evidence as proofs
from atoll.protocol import payload
from atoll.protocol.audit import Auditor, Findings
from atoll.protocol.docket import Docket
from atoll.protocol.envelope import seal
from atoll.protocol.evidence import FalseEvidence, LieHeader, OtherRules, Part, TwoProposals
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.messages import Member, PlanMessage
from atoll.protocol.signed_results import signed
from atoll.protocol.simulator import soup_genesis
from atoll.protocol.swarm.streams import SwarmStream

from . import examples as ex
from .harness import ON_STREAMS, Target, frames, on_stream, served
from .network_targets import Donor, executor, folder

GENESIS = soup_genesis(1)
ME = ex.ME.peer_id
MEMBER = Member(peer=ME, tokens=7, commitment=ex.CONTRIBUTION.commitment, squared_norm=ex.CONTRIBUTION.squared_norm)
PLAN = ex.PLAN.model_copy(update={"members": (MEMBER,), "rules": GENESIS.rules_id})
RESULT = signed(ex.ME, ex.RESULT.model_copy(update={"plan": PLAN.content_id()}))
HEADER = LieHeader(plan=PLAN, result=RESULT, chunk=0, squared_norm=ex.CONTRIBUTION.squared_norm).canonical()
ENVELOPE = seal(ex.ME, ex.HEADER, PlanMessage(plan=PLAN))
TWO = TwoProposals(accused=ME, first=ENVELOPE.hex(), second=ENVELOPE.hex()).canonical()
PART = Part.of(ex.CONTRIBUTION, ex.GRID, 0).encode()
RUN: Any = SimpleNamespace(run_id=ex.RUN, lineage=0)
STREAM_BYTES = 256 << 10


def _auditor(donor: Donor) -> Auditor:
    return Auditor(ME, ex.GRID, donor, executor(), 8)  # type: ignore[arg-type]


def _docket(donor: Donor) -> Docket:
    store = EvidenceStore(folder() / "evidence", ex.GRID)
    return Docket(ex.GRID, donor, store, executor(), lambda: GENESIS, lambda *_: None, lambda _: None)  # type: ignore[arg-type]


async def _answer_audit(stream: SwarmStream) -> None:
    await _auditor(Donor())._handle(stream)


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
        refusals=(FalseEvidence,),
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
        [frames(bytes(36), bytes(36))],
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
        [frames(payload.NO)],
        ("protocol/docket.py:Docket._ask",),
        refusals=(*ON_STREAMS, FalseEvidence, OtherRules),
        max_bytes=STREAM_BYTES,
        tokens=(frames(payload.YES, HEADER, PART * 2), frames(payload.YES, TWO)),
    ),
)
