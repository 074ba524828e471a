"""Builds the parts of the snapshot that come from peers and commits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..protocol.gossip.account import Swapped
from ..protocol.identity import PeerId
from ..protocol.messages import Commit, Group, Heartbeat
from ..protocol.peers import PeerInfo as KnownPeer
from ..protocol.round_machine import Phase
from ..protocol.spec import Genesis
from ..protocol.standing import Standing
from ..protocol.weights import weights
from .figures import short_id
from .group_view import role_of
from .snapshot import AgreementInfo, PeerInfo, PeerState, Reach, clip_name
from .status import utc

_OF_HEARTBEAT: dict[str, PeerState] = {
    "starting": "joining",
    "syncing": "joining",
    "training": "training",
    "ready": "ready",
    "exchanging": "exchanging",
    "paused": "paused",
    "leaving": "absent",  # not alive, whenever it said so
}
_OF_PHASE: dict[Phase, PeerState] = {
    Phase.TRAINING: "training",
    Phase.READY: "ready",
    Phase.REDUCING: "exchanging",
    Phase.IN_DOUBT: "exchanging",
    Phase.DECIDED: "done",
}


@dataclass(frozen=True)
class OwnPeer:
    """What this node shows of itself among the peers."""

    peer: PeerId
    name: str
    version: str
    phase: Phase
    tokens: int
    tokens_per_s: float | None
    state_hash: str
    head_round: int
    group: Group | None = None


@dataclass(frozen=True)
class Clocks:
    """Two readings of one moment, to turn monotonic times into dates."""

    monotonic_s: float
    unix_s: float

    def date_s(self, monotonic_s: float) -> float:
        return self.unix_s - (self.monotonic_s - monotonic_s)


def names_of(me: OwnPeer, peers: Mapping[PeerId, KnownPeer]) -> dict[PeerId, str]:
    """Peer id -> the name that it gives itself, or the end of its id."""
    names = {me.peer: me.name or short_id(me.peer)}
    for peer, known in peers.items():
        names[peer] = clip_name(known.heartbeat.name if known.heartbeat else "") or short_id(peer)
    return names


def participants(commit: Commit) -> frozenset[PeerId]:
    """Members whose contribution is in some span's mean, whatever it weighs."""
    members, results = commit.record.plan.members, commit.record.results
    return frozenset(m.peer for i, m in enumerate(members) if any(result.included[i] for result in results))


def shares(commit: Commit | None, rules: Genesis) -> dict[PeerId, float]:
    """Participant -> what its contribution weighed in the last mean (`protocol.weights`), over the whole model."""
    if commit is None:
        return {}
    if rules.is_gossip:  # of a pair, each half
        counted = participants(commit)
        return {peer: 1 / len(counted) for peer in counted}
    plan, total = commit.record.plan, dict.fromkeys(participants(commit), 0.0)
    for span, result in zip(plan.spans, commit.record.results, strict=True):
        each = weights(plan, result.included, rules.trust, rules.member_limits)
        for member, weight in zip(plan.members, each, strict=True):
            if weight > 0:
                total[member.peer] += span.num_chunks * weight
    num_chunks = sum(span.num_chunks for span in plan.spans)
    return {peer: weight / num_chunks for peer, weight in total.items()}


def peer_infos(
    me: OwnPeer,
    peers: Mapping[PeerId, KnownPeer],
    standing: Standing,
    commit: Commit | None,
    num_rounds: Mapping[PeerId, int],
    clocks: Clocks,
    rules: Genesis,
    path: Callable[[PeerId], Reach | None],
) -> tuple[PeerInfo, ...]:
    """This node first, then the roster, then the others. ``path``: how this node reaches each."""
    names = names_of(me, peers)
    share_of = shares(commit, rules)
    leader = commit.record.plan.leader if commit else None
    barred = _barred_note(me.peer, standing, rules)
    own = PeerInfo(
        peer_id=me.peer,
        name=me.name,
        version=me.version,
        is_self=True,
        is_leader=leader == me.peer,
        role=role_of(me.peer, me.group, names),
        state="rejected" if barred else _OF_PHASE[me.phase],
        round=me.head_round,
        num_rounds=num_rounds.get(me.peer, 0),
        tokens=me.tokens,
        share=share_of.get(me.peer),
        note=barred or _probation_note(me.peer, standing),
        tokens_per_s=me.tokens_per_s,
        state_hash=me.state_hash,
    )
    members = set(standing.roster)
    order = sorted(peers, key=lambda peer: (peer not in members, peer))
    others = (
        _other(
            peers[peer],
            leader == peer,
            share_of.get(peer),
            num_rounds.get(peer, 0),
            standing,
            clocks,
            rules,
            path(peer),
        ).model_copy(update={"role": role_of(peer, _group_of(peers[peer]), names)})
        for peer in order
    )
    return (own, *others)


def _group_of(known: KnownPeer) -> Group | None:
    return None if known.heartbeat is None else known.heartbeat.group


def _probation_note(peer: PeerId, standing: Standing) -> str:
    counts_from = standing.counts_from.get(peer, 0)
    return f"on probation until round {counts_from}" if counts_from > standing.round + 1 else ""


def _barred_note(peer: PeerId, standing: Standing, rules: Genesis) -> str:
    """Why the run takes nothing of the peer any more; empty if it does."""
    if peer in standing.ejected:
        return "ejected: its misconduct was proven"
    return "banned by the run’s operator" if peer in rules.control.banned else ""


def _provisional_note(heartbeat: Heartbeat) -> str:
    told = heartbeat.provisional
    return "" if told is None else f"hears from {told.num_alive} of {told.num_members} members only"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _other(
    known: KnownPeer,
    is_leader: bool,
    share: float | None,
    num_rounds: int,
    standing: Standing,
    clocks: Clocks,
    rules: Genesis,
    reach: Reach | None,
) -> PeerInfo:
    heartbeat = known.heartbeat or Heartbeat(round=0, state_hash="0" * 64, phase="starting")
    is_alive = known.is_alive(clocks.monotonic_s, rules.timing.heartbeat_timeout_s)
    barred = _barred_note(known.peer, standing, rules)
    return PeerInfo(
        peer_id=known.peer,
        name=heartbeat.name or short_id(known.peer),
        version=heartbeat.version,
        is_leader=is_leader,
        state="rejected" if barred else _OF_HEARTBEAT[heartbeat.phase] if is_alive else "absent",
        round=heartbeat.round if known.heartbeat else None,
        num_rounds=num_rounds,
        tokens=heartbeat.tokens if known.heartbeat else None,
        share=share,
        tokens_per_s=heartbeat.tokens_per_s if known.heartbeat else None,
        note=barred or _provisional_note(heartbeat) or _probation_note(known.peer, standing),
        reach=reach if is_alive else None,
        round_trip_ms=_ms(known.round_trip_s),
        clock_offset_ms=_ms(known.clock_offset_s),
        last_seen_at=None if known.heard_s is None else utc(clocks.date_s(known.heard_s)),
        state_hash=heartbeat.state_hash if known.heartbeat else None,
    )


def clock_offset_s(peers: Iterable[KnownPeer], now_s: float, timeout_s: float) -> float | None:
    """The peers' clocks minus ours, as measured within ``timeout_s``: the median, which one wrong clock does not move.

    Of the two in the middle of an even number the smaller offset: our own clock is one more opinion.
    """
    recent = [
        known for known in peers if known.clock_measured_s is not None and now_s - known.clock_measured_s < timeout_s
    ]
    offsets = sorted(known.clock_offset_s for known in recent if known.clock_offset_s is not None)
    middle = offsets[(len(offsets) - 1) // 2 : len(offsets) // 2 + 1]
    return min(middle, key=abs, default=None)


def no_agreement(head_round: int, state_hash: str, swap: Swapped | None) -> AgreementInfo:
    """Of a gossip run: no two peers need have equal hashes; how far this node is from its last partner instead."""
    if swap is None:
        return AgreementInfo(round=head_round, state_hash=state_hash, is_exempt=True)
    return AgreementInfo(
        round=head_round,
        state_hash=state_hash,
        is_exempt=True,
        partner=swap.partner,
        spread=swap.spread,
        spread_in_rounds=swap.distance_in_rounds,
        spread_round=swap.commit.record.plan.round,
    )


def agreement(head_round: int, state_hash: str, peers: Mapping[PeerId, KnownPeer]) -> AgreementInfo:
    """How many peers state the same hash for the same round as this node."""
    known = [k.heartbeat.state_hash for k in peers.values() if k.heartbeat and k.heartbeat.round == head_round]
    num_same = sum(other == state_hash for other in known)
    return AgreementInfo(
        round=head_round,
        state_hash=state_hash,
        num_same=num_same + 1,
        num_known=len(known) + 1,
        agrees=num_same == len(known),
    )
