"""What a node says of itself: state and reason, decided from facts. Pure; the order of the rules is their priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..protocol.round_machine import Phase
from ..protocol.spec import PROTOCOL_VERSION
from .reasons import Reason, State


@dataclass(frozen=True)
class Facts:
    """What the sentence depends on, at one moment."""

    round: int
    """Round that is being worked on."""
    phase: Phase
    is_member: bool
    """Whether this node decides on rounds."""
    num_others: int
    """Other roster members that are alive."""
    roster_size: int
    quorum_size: int
    min_peers: int
    is_follower: bool = False
    """In two-tier rounds: whether it has a seat in a delegate's group."""
    is_seeking: bool = False
    """In two-tier rounds: whether it needs one, and has none."""
    is_provisional: bool = False
    """Whether no quorum is heard from, by the driver's own count."""
    counts_from: int | None = None
    """While on probation: the round from which this node's work counts."""
    has_trainer: bool = True
    """Whether the trainer process is up."""
    has_started: bool = False
    """Whether the trainer works on this round."""
    has_met: bool = False
    """Whether any peer has spoken to us since the start."""
    is_syncing: bool = False
    is_paused: bool = False
    """By the run's operator."""
    is_banned: bool = False
    is_ejected: bool = False
    """Whether the last commit here names it among those whose misconduct was proven."""
    required_protocol: int = PROTOCOL_VERSION
    is_finishing: bool = False
    is_young: bool = False
    """Whether the network came up so recently that silence means nothing yet."""
    sync_percent: int | None = None
    num_donors: int = 0
    p2p_alive: bool = True
    num_seeds: int = 0
    num_seeds_answering: int = 0
    seed_causes: str = ""
    straggler: str | None = None
    straggler_s: float = 0.0
    device: str = "this machine"
    exchange_eta_s: float | None = None
    weights_eta_s: float | None = None


@dataclass(frozen=True)
class Situation:
    """State, reason, values of the sentence, and when it ends."""

    state: State
    reason: Reason | None = None
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    ends_in_s: float | None = None


def situation(facts: Facts) -> Situation:
    """The first rule that applies."""
    for rule in (_network, _barred, _syncing, _connecting, _paused, _joining, _alone, _finishing):
        found = rule(facts)
        if found is not None:
            return found
    return _working(facts)


def _network(facts: Facts) -> Situation | None:
    if facts.p2p_alive:
        return None
    return Situation(State.DEGRADED, Reason.P2P_RESTARTING)


def _barred(facts: Facts) -> Situation | None:
    """The run does not want this node, or not this version of it."""
    if facts.is_ejected:
        return Situation(State.EJECTED, Reason.MISCONDUCT_PROVEN)
    if facts.is_banned:
        return Situation(State.EJECTED, Reason.EJECTED, {"rule": "its operator has banned this identity"})
    if facts.required_protocol > PROTOCOL_VERSION:
        values = {"wanted": facts.required_protocol, "found": PROTOCOL_VERSION}
        return Situation(State.WAITING, Reason.PROTOCOL_MISMATCH, values)
    return None


def _syncing(facts: Facts) -> Situation | None:
    if not facts.is_syncing:
        return None
    values = {"num_donors": facts.num_donors, "percent": facts.sync_percent or 0}
    return Situation(State.SYNCING, Reason.DOWNLOADING_STATE, values)


def _connecting(facts: Facts) -> Situation | None:
    """Nobody answers or ever has, and we are not a quorum of our own. Who has met others is alone instead."""
    is_lone_quorum = facts.is_member and facts.roster_size == 1
    if is_lone_quorum or facts.has_met or facts.num_others or not facts.num_seeds or facts.num_seeds_answering:
        return None
    if facts.is_young:
        return Situation(State.CONNECTING)
    values = {"num_seeds": facts.num_seeds, "causes": facts.seed_causes}
    return Situation(State.CONNECTING, Reason.SEEDS_UNREACHABLE, values)


def _paused(facts: Facts) -> Situation | None:
    return Situation(State.PAUSED, Reason.RUN_PAUSED) if facts.is_paused else None


def _joining(facts: Facts) -> Situation | None:
    if facts.is_seeking:
        return Situation(State.WAITING, Reason.WAITING_SEAT)
    if not facts.is_member and not facts.is_follower:
        return Situation(State.WAITING, Reason.WAITING_ROUND_BOUNDARY, {"round": facts.round + 1})
    if not facts.has_trainer:
        return Situation(State.STARTING)
    if not facts.has_started and not facts.is_finishing:
        return Situation(State.CONNECTING)
    return None


def _alone(facts: Facts) -> Situation | None:
    """Too few are here for a round; training goes on, and nothing is lost. A follower leaves that to its delegate."""
    if facts.is_follower:
        return None
    num_here = facts.num_others + 1
    if num_here < facts.min_peers:  # the spec wants no work of fewer, not even provisional work
        values: dict[str, object] = {"num_peers": num_here, "min_peers": facts.min_peers}
        return Situation(State.WAITING, Reason.WAITING_MIN_PEERS, values)
    if not facts.is_provisional and num_here >= facts.quorum_size:
        return None
    if facts.num_others == 0 and facts.roster_size > 1:
        return Situation(State.TRAINING, Reason.ALONE, {"round": facts.round, "device": facts.device})
    values = {"num_peers": num_here, "num_members": facts.roster_size, "num_needed": facts.quorum_size}
    return Situation(State.TRAINING, Reason.PROVISIONAL, values)


def _finishing(facts: Facts) -> Situation | None:
    last_round = facts.round - 1  # the one being worked on would come after it
    return Situation(State.FINISHING, Reason.RUN_FINISHED, {"round": last_round}) if facts.is_finishing else None


def _working(facts: Facts) -> Situation:
    values: dict[str, object] = {"round": facts.round, "device": facts.device, "num_others": facts.num_others}
    match facts.phase:
        case Phase.TRAINING if facts.counts_from is not None:
            values |= {"counts_from": facts.counts_from}
            return Situation(State.TRAINING, Reason.ON_PROBATION, values, facts.exchange_eta_s)
        case Phase.TRAINING:
            return Situation(State.TRAINING, None, values, facts.exchange_eta_s)
        case Phase.READY if facts.straggler is not None:
            values |= {"peer": facts.straggler, "behind_s": f"{facts.straggler_s:.0f}"}
            return Situation(State.EXCHANGING, Reason.STRAGGLER, values)
        case Phase.READY | Phase.REDUCING | Phase.IN_DOUBT:
            return Situation(State.EXCHANGING, None, values, facts.weights_eta_s)
        case Phase.DECIDED:
            return Situation(State.APPLYING, None, values)
