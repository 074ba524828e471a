"""Plans, records and commits of two tiers, without anything that sends them."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Commit, Group, Heartbeat, Ready
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.round_machine import PeerView
from atoll.protocol.spec import ExchangeConfig, Genesis, MembershipConfig

PEERS: list[PeerId] = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 9)]
D, A, B, C, E, *_ = PEERS
DIGEST = "ab" * 32
NUM_CHUNKS = 6


def digest(number: int) -> str:
    return f"{number:064x}"


def genesis(group_size: int = 4, **tables: object) -> Genesis:
    return Genesis(
        name="groups",
        protocol_version=1,
        initial_state=DIGEST,
        operators=(D,),
        model={},
        exchange=ExchangeConfig(topology="two_tier", group_size=group_size),
        membership=MembershipConfig(roster=(D, E), allowed=(A, B, C)),
        **tables,  # type: ignore[arg-type]
    )


def ready(tokens: int = 100, commitment: int = 1, parent: str = DIGEST, number: int = 1) -> Ready:
    return Ready(
        round=number,
        parent=parent,
        parent_state=DIGEST,
        tokens=tokens,
        commitment=digest(commitment),
        tokens_per_s=10.0,
        squared_norm=1.0,
    )


def plan_of(
    members: Sequence[tuple[PeerId, int, str]],
    spans: Sequence[tuple[int, PeerId]],
    number: int = 1,
    ballot: int = 0,
    leader: PeerId = D,
) -> Plan:
    """``members``: peer, tokens, commitment. ``spans``: number of chunks, owner."""
    edges = [sum(count for count, _ in spans[:index]) for index in range(len(spans))]
    peers = tuple(peer for peer, _, _ in members)
    return Plan(
        lineage=0,
        fragment=0,
        round=number,
        ballot=ballot,
        leader=leader,
        parent=DIGEST,
        parent_state=DIGEST,
        members=tuple(Member(peer=p, tokens=t, commitment=c, squared_norm=1.0) for p, t, c in members),
        spans=tuple(
            Span(first_chunk=first, num_chunks=count, owner=owner)
            for first, (count, owner) in zip(edges, spans, strict=True)
        ),
        roster=peers,
        next_roster=peers,
        data_cursor=0,
        rules=DIGEST,
        attempt_timeout_s=1.0,
    )


def record_of(plan: Plan, included: Sequence[Sequence[bool]]) -> Record:
    results = tuple(
        SpanResult(plan=plan.content_id(), span=index, included=tuple(flags), digest=digest(index))
        for index, flags in enumerate(included)
    )
    return Record(plan=plan, results=results)


def commit_of(record: Record) -> Commit:
    return Commit(record=record, ballot=0, votes=())


def follows(delegate: PeerId | None, heard_s: float = 0.0, **progress: object) -> PeerView:
    """A peer as it is seen that says whose group it is in."""
    group = None if delegate is None else Group(delegate=delegate, num_peers=2)
    heartbeat = Heartbeat(round=0, state_hash=DIGEST, **{"phase": "training", "group": group, **progress})  # type: ignore[arg-type]
    return PeerView(heard_s, heartbeat)
