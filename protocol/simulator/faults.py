"""Faults as data: a schedule says what goes wrong when, and with the seed it replays a run exactly.

Peers are numbers: founders first, then those who may join. Every fault heals by itself after its ``for_s``, and
`FaultSchedule.storm_s` is when all have; what must hold after that, within which time, is `properties`' matter.
A schedule is JSON and back (`FaultSchedule.to_json`, `from_json`), so that a failure fits on a command line.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field

from ..parsing import canonical_json, parse
from ..values import Frozen

Number: TypeAlias = Annotated[int, Field(ge=0, lt=64)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=3600)]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Moment: TypeAlias = Literal[
    "announcing", "planning", "exchanging", "reducing", "proposing", "promising", "writing", "voting", "committing"
]
"""What a node is about to do, or has just done, when it dies (`CrashAt`)."""


Misbehaviour: TypeAlias = Literal[
    "weight_inflation", "two_faced_reducer", "silent_owner", "silent_leader", "never_votes", "boaster"
]
AmendedRule: TypeAlias = Literal["learning_rate", "attempt_timeout", "max_peers", "keys"]
InRounds: TypeAlias = Annotated[int, Field(ge=0, le=16)]


class Timed(Frozen):
    """A fault begins at ``at_s`` and ends ``for_s`` later."""

    at_s: Seconds
    for_s: Seconds


class Crash(Timed):
    """The process dies and is started again from its disk; the trainer's last checkpoint may be old or missing."""

    kind: Literal["crash"] = "crash"
    peer: Number


class CrashAt(Timed):
    """From ``at_s`` on, whoever is the ``number``-th to reach ``moment`` dies before or ``after`` it (AVG, L1, L2)."""

    kind: Literal["crash_at"] = "crash_at"
    moment: Moment
    number: Annotated[int, Field(ge=0, lt=64)] = 0
    after: bool = False
    loses_disk: bool = False
    """It comes back with an empty folder, as by `LoseDisk`."""


class DeafAt(Timed):
    """From ``at_s`` on, whoever is ``number``-th to reach ``moment`` hears nothing any more; it goes on speaking."""

    kind: Literal["deaf_at"] = "deaf_at"
    moment: Moment
    number: Annotated[int, Field(ge=0, lt=64)] = 0


class Sleep(Timed):
    """The process is stopped and goes on later, unaware; what was sent to it meanwhile arrives then."""

    kind: Literal["sleep"] = "sleep"
    peer: Number


class Partition(Timed):
    """Only peers of one group reach each other."""

    kind: Literal["partition"] = "partition"
    groups: tuple[tuple[Number, ...], ...]


class CutOneWay(Timed):
    """Nothing gets from ``senders`` to ``receivers``; the other way round everything does."""

    kind: Literal["cut_one_way"] = "cut_one_way"
    senders: tuple[Number, ...]
    receivers: tuple[Number, ...]


class BadNetwork(Timed):
    """Messages get lost, doubled, late, and so reordered."""

    kind: Literal["bad_network"] = "bad_network"
    loss: Probability = 0.0
    duplication: Probability = 0.0
    latency_s: Seconds = 0.1
    """The longest; the shortest is as ever, so messages overtake each other."""


class SlowPeer(Timed):
    """A peer's messages take up to ``latency_s`` longer each way, and its training ``factor`` times as long."""

    kind: Literal["slow_peer"] = "slow_peer"
    peer: Number
    latency_s: Seconds = 0.0
    factor: Annotated[float, Field(ge=1, le=100)] = 1.0


class LoseDisk(Timed):
    """The process dies and comes back with an empty folder: the state is loaded from others before it takes part."""

    kind: Literal["lose_disk"] = "lose_disk"
    peer: Number


class RestoreState(Timed):
    """The process dies; its state and chain come back ``num_rounds`` older, its votes as they were."""

    kind: Literal["restore_state"] = "restore_state"
    peer: Number
    num_rounds: Annotated[int, Field(ge=1, le=8)] = 1


class Join(Timed):
    """A peer from outside appears with the newest state that it can load. ``for_s`` does not matter: it stays."""

    kind: Literal["join"] = "join"
    peer: Number


class Leave(Timed):
    """A peer says that it leaves and stops; after ``for_s`` it is back."""

    kind: Literal["leave"] = "leave"
    peer: Number


class ClockJump(Timed):
    """A peer's wall clock is off by ``by_s``."""

    kind: Literal["clock_jump"] = "clock_jump"
    peer: Number
    by_s: Annotated[float, Field(ge=-3600, le=3600)]


class DialOutOnly(Timed):
    """Nobody can open a stream to the peer: it says so, and reaches only peers that others can reach."""

    kind: Literal["dial_out_only"] = "dial_out_only"
    peer: Number


class Amend(Timed):
    """Operators sign a change at a peer's node, in force ``in_rounds`` rounds later. It stays."""

    kind: Literal["amend"] = "amend"
    peer: Number
    change: AmendedRule = "learning_rate"
    in_rounds: InRounds = 1


class Forge(Timed):
    """Who must not sign an amendment (any more) signs one: a former operator, or one operator alone."""

    kind: Literal["forge"] = "forge"
    peer: Number


class PauseRun(Timed):
    """Operators pause the run at a peer's node, and resume it ``for_s`` later."""

    kind: Literal["pause_run"] = "pause_run"
    peer: Number
    in_rounds: InRounds = 1


class BanPeer(Timed):
    """Operators ban ``banned`` at a peer's node, and lift the ban ``for_s`` later."""

    kind: Literal["ban_peer"] = "ban_peer"
    peer: Number
    banned: Number
    in_rounds: InRounds = 1


class RollBack(Timed):
    """Operators let the run go on from ``num_rounds`` before a peer's state, in a new lineage."""

    kind: Literal["roll_back"] = "roll_back"
    peer: Number
    num_rounds: Annotated[int, Field(ge=1, le=8)] = 1


class DeafToRules(Timed):
    """Amendments do not get through to some peers."""

    kind: Literal["deaf_to_rules"] = "deaf_to_rules"
    peers: tuple[Number, ...]


class Misbehave(Timed):
    """A peer misbehaves in one of the ways of `behaviours`, of those that no audit has to find."""

    kind: Literal["misbehave"] = "misbehave"
    peer: Number
    how: Misbehaviour


class Accuse(Timed):
    """``finder`` gets true evidence against ``peer``: of a lie, or of two signed results. It stays."""

    kind: Literal["accuse"] = "accuse"
    peer: Number
    finder: Number
    is_lie: bool = False


Fault: TypeAlias = Annotated[
    Crash
    | CrashAt
    | DeafAt
    | Sleep
    | Partition
    | CutOneWay
    | BadNetwork
    | SlowPeer
    | LoseDisk
    | RestoreState
    | Join
    | Leave
    | ClockJump
    | DialOutOnly
    | Amend
    | Forge
    | PauseRun
    | BanPeer
    | RollBack
    | DeafToRules
    | Misbehave
    | Accuse,
    Field(discriminator="kind"),
]

Probe: TypeAlias = Literal["progress", "dead_leader", "dead_peer", "all_ready", "straggler", "joiner", "minority"]
"""What is tried in the calm after the storm; each stands for a liveness property (`properties.PROBES`)."""


class Invited(Frozen):
    """What a joiner holds: an invite by its number, for an owner by his. Two joiners may hold the same one."""

    owner: Number
    invite: Number
    until_round: Annotated[int, Field(ge=1, le=10**6)] = 10**6


class FaultSchedule(Frozen):
    """One simulated run: a swarm of ``num_peers`` founders, what happens to it, and what is tried afterwards."""

    seed: Annotated[int, Field(ge=0)]
    """Of everything the schedule does not say: latencies, what is lost, how long training takes."""
    num_peers: Annotated[int, Field(ge=1, le=32)]
    num_joiners: Annotated[int, Field(ge=0, le=4)] = 0
    fault_tolerance: Annotated[int, Field(ge=0, le=8)] | None = None
    """As in the spec; None: a fifth of the roster."""
    invites: Annotated[tuple[Invited, ...], Field(max_length=4)] = ()
    """Of the joiners, in their order. None: all are listed."""
    max_per_owner: Annotated[int, Field(ge=1, le=4)] = 1
    witnesses: Annotated[tuple[Number, ...], Field(max_length=8)] = ()
    """Founders, more than half of whom must sign every commit."""
    delegates: Annotated[tuple[Number, ...], Field(max_length=5)] = ()
    """Founders, most of whom together may reset the run once its quorum is lost."""
    faults: tuple[Fault, ...] = ()
    probes: tuple[Probe, ...] = ("progress",)

    @property
    def storm_s(self) -> float:
        """When the last fault has healed."""
        return max((fault.at_s + fault.for_s for fault in self.faults), default=0.0)

    def to_json(self) -> str:
        """One line that `from_json` reads back."""
        return canonical_json(self.model_dump(mode="json", exclude_defaults=True) | self._kinds()).decode()

    def _kinds(self) -> dict[str, object]:
        faults = [fault.model_dump(mode="json", exclude_defaults=True) | {"kind": fault.kind} for fault in self.faults]
        return {"faults": faults}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The schedule that was written. Raises `Unreadable` (a ValueError) for anything else."""
        return parse(cls, text.encode() if isinstance(text, str) else text)


def named_peers(fault: Fault) -> frozenset[int]:
    """The peers that a fault is about."""
    match fault:
        case Partition():
            return frozenset(peer for group in fault.groups for peer in group)
        case CutOneWay():
            return frozenset((*fault.senders, *fault.receivers))
        case CrashAt() | DeafAt() | BadNetwork():
            return frozenset()
        case DeafToRules():
            return frozenset(fault.peers)
        case BanPeer():
            return frozenset((fault.peer, fault.banned))
        case Accuse():
            return frozenset((fault.peer, fault.finder))
        case _:
            return frozenset((fault.peer,))
