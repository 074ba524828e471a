"""A valid value of every message and of what is kept of them: one member, one span, one round."""

from __future__ import annotations

import numpy as np

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.kernels.hash_tree import leaf_digest
from atoll.protocol import envelope as e
from atoll.protocol import messages as m
from atoll.protocol import record as r
from atoll.protocol.chunks import Contribution, span_digest
from atoll.protocol.identity import Identity
from atoll.protocol.signed_results import signed
from atoll.protocol.state_sync.snapshot import SnapshotManifest
from atoll.protocol.suspicions import Breach, Suspicion

RUN = "ab" * 32
ZERO = "00" * 32
ME = Identity.from_seed(bytes([1]) * 32)
HEADER = e.Header(run_id=RUN, lineage=0, sender=ME.peer_id, sequence=1, expires_unix_s=2e9)
NUM_ELEMENTS = 2 * 4096 + 100
GRID = ChunkGrid(NUM_ELEMENTS, 4096, codec("int8"))


def encoded(codec_name: str = "int8", num_elements: int = 4096) -> bytes:
    """Honest bytes of a codec."""
    values = np.random.default_rng(1).standard_normal(num_elements).astype(np.float32)
    out = np.empty(codec(codec_name).nbytes(num_elements), np.uint8)
    codec(codec_name).encode(values, out)
    return out.tobytes()


def _vector() -> bytes:
    return b"".join(encoded(num_elements=GRID.chunk_length(chunk)) for chunk in range(GRID.num_chunks))


VECTOR = _vector()
CONTRIBUTION = Contribution.of(GRID, VECTOR, round_number=1, tokens=7)
MEMBER = r.Member(peer=ME.peer_id, tokens=7, squared_norm=CONTRIBUTION.squared_norm, commitment=CONTRIBUTION.commitment)
PLAN = r.Plan(
    lineage=0,
    fragment=0,
    round=1,
    ballot=0,
    leader=ME.peer_id,
    parent=RUN,
    parent_state=ZERO,
    members=(MEMBER,),
    spans=(r.Span(first_chunk=0, num_chunks=GRID.num_chunks, owner=ME.peer_id),),
    roster=(ME.peer_id,),
    next_roster=(ME.peer_id,),
    data_cursor=8,
    rules=RUN,
    attempt_timeout_s=60.0,
)
RESULT = signed(
    ME, r.SpanResult(plan=PLAN.content_id(), span=0, included=(True,), digest=span_digest(GRID, PLAN.spans[0], VECTOR))
)
RECORD = r.Record(plan=PLAN, results=(RESULT,))
VOTE = m.Vote(fragment=0, round=1, ballot=0, record=RECORD.content_id())
COMMIT = m.Commit(record=RECORD, ballot=0, votes=(e.seal(ME, HEADER, VOTE).hex(),))
HEARTBEAT = m.Heartbeat(
    name="peer",
    round=1,
    state_hash=ZERO,
    phase="training",
    loss=1.5,
    evaluated=m.Evaluated(round=1, validation_loss=2.0),
    group=m.Group(delegate=ME.peer_id, num_peers=2),
    addresses=("/ip4/203.0.113.5/tcp/4001",),
    sent_unix_s=1e9,
)
GROUP_RESULT = m.GroupResult(
    record=RECORD, commitment=CONTRIBUTION.commitment, squared_norm=CONTRIBUTION.squared_norm, proofs=("",)
)
SUSPICION = Suspicion(
    lineage=0,
    round=3,
    record=ZERO,
    accused=Identity.from_seed(bytes([2]) * 32).peer_id,
    accuser=ME.peer_id,
    breach=Breach(rule="cosine", value=0.4, limit=0.95),
).signed(ME)
MESSAGES: tuple[m.Message, ...] = (
    HEARTBEAT,
    m.Ready(round=1, parent=RUN, parent_state=ZERO, tokens=7, commitment=CONTRIBUTION.commitment),
    m.PlanMessage(plan=PLAN),
    m.SpanDone(result=RESULT, round=1),
    m.SpanFailed(plan=PLAN.content_id(), round=1, span=0, why="gone"),
    m.Proposal(ballot=0, record=RECORD),
    VOTE,
    m.Prepare(fragment=0, round=1, ballot=1),
    m.Promise(fragment=0, round=1, ballot=1, accepted=m.Accepted(ballot=0, record=RECORD)),
    m.Nack(fragment=0, round=1, promised=2),
    COMMIT,
    m.Attest(round=1, record=RECORD.content_id(), state_hash=ZERO),
    m.CommitRequest(fragment=0, round=1),
    m.AmendmentsRequest(first=1),
    m.Amendments(amendments=("{}",)),
    m.MemoryRequest(round=1),
    m.Memory(round=1, envelope=e.seal(ME, HEADER, HEARTBEAT).hex()),
    m.Refused(why="the invite has expired"),
    m.Enlist(round=1),
    m.Seat(round=1, seat=1, group=(ME.peer_id,)),
    m.GroupPlan(plan=PLAN),
    GROUP_RESULT,
    m.GroupResultRequest(round=1, commitment=CONTRIBUTION.commitment),
    m.GroupResultCopy(round=1, envelope=e.seal(ME, HEADER, GROUP_RESULT).hex()),
    m.GroupWithdrawn(round=1, why="no quorum"),
    m.Suspected(suspicion=SUSPICION),
)


def signed_part(message: m.Message) -> bytes:
    """What the signature of a message covers."""
    return e.seal(ME, HEADER, message)[e.SIGNATURE_BYTES :]


def sealed_message(message: m.Message) -> bytes:
    """A message as its honest sender seals it."""
    return e.seal(ME, HEADER, message)


def first_words() -> bytes:
    """A heartbeat as others keep it."""
    return e.seal(ME, HEADER, HEARTBEAT)


def sealed(content: bytes) -> bytes:
    """What a malicious but authenticated sender makes of ``content``."""
    return ME.sign(e.DOMAIN + content) + content


def manifest() -> SnapshotManifest:
    """Of a state of 5 bytes after round 1."""
    bare = SnapshotManifest(round=1, record=RECORD.content_id(), context="00", num_bytes=5, leaves=(STATE_LEAF,))
    attest = m.Attest(round=1, record=bare.record, state_hash=bare.state_hash)
    return bare.model_copy(update={"attests": (e.seal(ME, HEADER, attest).hex(),)})


STATE = b"state"
STATE_LEAF = leaf_digest(STATE).hex()
