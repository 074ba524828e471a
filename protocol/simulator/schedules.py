"""Random fault schedules: a seed gives the size of the swarm, what happens to it, and what is tried afterwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from typing import TypeAlias, get_args

from .faults import (
    Accuse,
    Amend,
    AmendedRule,
    BadNetwork,
    BanPeer,
    ClockJump,
    Crash,
    CrashAt,
    CutOneWay,
    DeafAt,
    DeafToRules,
    DialOutOnly,
    Fault,
    FaultSchedule,
    Forge,
    Invited,
    Join,
    Leave,
    LoseDisk,
    Misbehave,
    Misbehaviour,
    Moment,
    Partition,
    PauseRun,
    Probe,
    RestoreState,
    RollBack,
    Sleep,
    SlowPeer,
)

STORM_S = (8.0, 45.0)
MAX_FAULTS = 10
_SIZES = (2, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8)
_LARGE_SIZES = (10, 12, 16, 24, 32)
_LARGE_SHARE = 0.04
_MOMENTS: tuple[Moment, ...] = get_args(Moment)
_PROBES: tuple[Probe, ...] = get_args(Probe)
_RULES: tuple[AmendedRule, ...] = get_args(AmendedRule)
_MISBEHAVIOURS: tuple[Misbehaviour, ...] = get_args(Misbehaviour)
_INVITES_SHARE, _DELEGATES_SHARE, _WITNESSES_SHARE = 0.2, 0.2, 0.1
INVITES, DELEGATES = "invites", "delegates"
"""Among the kinds of faults to draw: joiners come by invites, or delegates may reset the run, in every schedule."""

Draw: TypeAlias = Callable[[random.Random, int, float, float], Fault]
"""Random numbers, number of peers, begin and duration → a fault."""


def random_schedule(seed: int, *, max_peers: int = 32, kinds: Collection[str] = ()) -> FaultSchedule:
    """The same schedule for the same arguments, on every machine. ``kinds``: the only faults to draw (none: all)."""
    draw = random.Random(f"atoll/hunt/{seed}")
    sizes = _LARGE_SIZES if draw.random() < _LARGE_SHARE else _SIZES
    num_peers = draw.choice([size for size in sizes if size <= max_peers] or [max_peers])
    has_invites, has_delegates = draw.random() < _INVITES_SHARE, draw.random() < _DELEGATES_SHARE
    if kinds:
        has_invites, has_delegates = INVITES in kinds, DELEGATES in kinds
    invites = _random_invites(draw) if has_invites else ()
    delegates = _random_delegates(draw, num_peers) if has_delegates else ()
    num_joiners = len(invites) or draw.choice((0, 0, 1, 2))
    storm_s = draw.uniform(*STORM_S)
    drawn = [kind for kind in kinds if kind in _DRAWS] or KINDS
    faults = [_random_fault(draw, num_peers, storm_s, drawn) for _ in range(draw.randint(1, MAX_FAULTS))]
    faults += [_join(draw, num_peers + number, storm_s) for number in range(len(invites) or min(1, num_joiners))]
    faults += _lost_quorum(draw, num_peers, storm_s) if delegates else []
    return FaultSchedule(
        seed=seed,
        num_peers=num_peers,
        num_joiners=num_joiners,
        fault_tolerance=draw.choice((None, None, 0)),
        invites=invites,
        max_per_owner=draw.choice((1, 1, 2)),
        witnesses=_random_witnesses(draw, num_peers) if draw.random() < _WITNESSES_SHARE else (),
        delegates=delegates,
        faults=tuple(sorted(_promised(faults, delegates), key=lambda fault: fault.at_s)),
        probes=tuple(draw.sample(_PROBES, 2)),
    )


def _random_invites(draw: random.Random) -> tuple[Invited, ...]:
    """Of few owners, some of them shown by two peers, some good for the first rounds only."""
    pool = [
        Invited(owner=draw.randrange(2), invite=number, until_round=draw.choice((4, 8, 10**6, 10**6)))
        for number in range(3)
    ]
    return tuple(draw.choices(pool, k=draw.randint(1, 4)))


def _random_delegates(draw: random.Random, num_peers: int) -> tuple[int, ...]:
    return tuple(draw.sample(range(num_peers), min(num_peers, draw.choice((1, 1, 2, 3)))))


def _random_witnesses(draw: random.Random, num_peers: int) -> tuple[int, ...]:
    return tuple(draw.sample(range(num_peers), min(num_peers, draw.choice((1, 2, 3)))))


def _join(draw: random.Random, peer: int, storm_s: float) -> Fault:
    return Join(at_s=_rounded(draw.uniform(0, storm_s)), for_s=0.0, peer=peer)


def _lost_quorum(draw: random.Random, num_peers: int, storm_s: float) -> list[Fault]:
    """For longer than a run waits before it is reset."""
    at_s, for_s = _rounded(draw.uniform(0.0, storm_s)), _rounded(draw.uniform(18.0, 40.0))
    if draw.random() < 0.5:
        return [_partition(draw, num_peers, at_s, for_s)]
    victims = draw.sample(range(num_peers), num_peers // 2 + draw.choice((0, 0, 1)) * (num_peers > 1))
    return [Crash(at_s=at_s, for_s=for_s, peer=peer) for peer in victims]


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _random_fault(draw: random.Random, num_peers: int, storm_s: float, kinds: Collection[str]) -> Fault:
    """Most faults are short; some last long enough for members to be dropped."""
    at_s = _rounded(draw.uniform(0.0, storm_s))
    for_s = _rounded(draw.choice((draw.uniform(0.2, 6.0), draw.uniform(0.2, 6.0), draw.uniform(6.0, 30.0))))
    kind = draw.choices(list(kinds), weights=[_DRAWS[kind][1] for kind in kinds])[0]
    return _DRAWS[kind][0](draw, num_peers, at_s, for_s)


def _promised(faults: list[Fault], delegates: Collection[int]) -> list[Fault]:
    """Without faults that nothing is promised of: those that lose too many disks, and delegates that misbehave."""
    kept = [fault for fault in faults if not (isinstance(fault, Accuse) and fault.peer in delegates)]
    return _at_most_one_lost_disk(kept, delegates)


def _at_most_one_lost_disk(faults: list[Fault], delegates: Collection[int]) -> list[Fault]:
    """More lost disks than a quorum can do without are no promise of the protocol's; one is, if it is no delegate's."""
    lost = [
        fault for fault in faults if isinstance(fault, LoseDisk) or (isinstance(fault, CrashAt) and fault.loses_disk)
    ]
    kept = [fault for fault in lost if isinstance(fault, LoseDisk) and fault.peer not in delegates]
    kept = (kept if delegates else lost)[:1]
    return [fault for fault in faults if fault not in lost or fault in kept]


def _crash(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return Crash(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers))


def _crash_at(draw: random.Random, _num_peers: int, at_s: float, for_s: float) -> Fault:
    number, after = draw.choice((0, 0, 1, 2, 3)), draw.random() < 0.5
    return CrashAt(at_s=at_s, for_s=for_s, moment=draw.choice(_MOMENTS), number=number, after=after)


def _sleep(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return Sleep(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers))


def _partition(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    peers = list(range(num_peers))
    draw.shuffle(peers)
    places = sorted({draw.randint(1, max(1, num_peers - 1)) for _ in range(draw.choice((1, 1, 2)))})
    ends = (0, *places, num_peers)
    groups = tuple(tuple(sorted(peers[a:b])) for a, b in itertools.pairwise(ends) if a < b)
    return Partition(at_s=at_s, for_s=for_s, groups=groups)


def _cut_one_way(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    peer, others = draw.randrange(num_peers), [p for p in range(num_peers) if draw.random() < 0.6]
    one, many = (peer,), tuple(others) or (0,)
    senders, receivers = (one, many) if draw.random() < 0.5 else (many, one)
    return CutOneWay(at_s=at_s, for_s=for_s, senders=senders, receivers=receivers)


def _deaf_at(draw: random.Random, _num_peers: int, at_s: float, _for_s: float) -> Fault:
    """For longer than an attempt, so that others take over from it while it repeats itself."""
    moment, for_s = draw.choice(("proposing", "proposing", "planning", "voting")), _rounded(draw.uniform(12.0, 30.0))
    return DeafAt(at_s=at_s, for_s=for_s, moment=moment, number=draw.choice((0, 1, 2)))


def _bad_network(draw: random.Random, _num_peers: int, at_s: float, for_s: float) -> Fault:
    loss, duplication = draw.choice((0.0, 0.05, 0.3)), draw.choice((0.0, 0.2))
    return BadNetwork(
        at_s=at_s, for_s=for_s, loss=loss, duplication=duplication, latency_s=draw.choice((0.1, 0.8, 3.0))
    )


def _slow_peer(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    peer, latency_s = draw.randrange(num_peers), draw.choice((0.0, 0.5, 3.0))
    return SlowPeer(at_s=at_s, for_s=for_s, peer=peer, latency_s=latency_s, factor=draw.choice((1.0, 3.0, 10.0)))


def _lose_disk(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    if num_peers < 3:
        return _crash(draw, num_peers, at_s, for_s)
    return LoseDisk(at_s=max(at_s, 6.0), for_s=for_s, peer=draw.randrange(num_peers))


def _lose_disk_at(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    if num_peers < 3:
        return _crash_at(draw, num_peers, at_s, for_s)
    moment = draw.choice(("voting", "voting", "promising", "committing"))
    number = draw.choice((0, 1, 2))
    return CrashAt(at_s=max(at_s, 4.0), for_s=for_s, moment=moment, number=number, after=True, loses_disk=True)


def _restore_state(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return RestoreState(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), num_rounds=draw.choice((1, 1, 2, 4)))


def _leave(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return Leave(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers))


def _clock_jump(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return ClockJump(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), by_s=draw.choice((-3600.0, 3600.0)))


def _dial_out_only(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return DialOutOnly(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers))


def _amend(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    change, in_rounds = draw.choice(_RULES), draw.choice((0, 0, 1, 1, 2, 4))
    return Amend(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), change=change, in_rounds=in_rounds)


def _forge(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return Forge(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers))


def _pause_run(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return PauseRun(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), in_rounds=draw.choice((0, 1, 2)))


def _ban_peer(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    peer, banned = draw.sample(range(num_peers + 1), 2)
    peer, banned = (banned, peer) if peer == num_peers else (peer, banned)
    return BanPeer(at_s=at_s, for_s=for_s, peer=peer, banned=banned % num_peers, in_rounds=draw.choice((0, 1, 1, 2)))


def _roll_back(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return RollBack(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), num_rounds=draw.choice((1, 2, 4)))


def _deaf_to_rules(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    """About half of them."""
    deaf = tuple(peer for peer in range(num_peers) if draw.random() < 0.5)
    return DeafToRules(at_s=at_s, for_s=for_s, peers=deaf or (0,))


def _misbehave(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    return Misbehave(at_s=at_s, for_s=for_s, peer=draw.randrange(num_peers), how=draw.choice(_MISBEHAVIOURS))


def _accuse(draw: random.Random, num_peers: int, at_s: float, for_s: float) -> Fault:
    peer, finder = draw.sample(range(max(2, num_peers)), 2)
    return Accuse(at_s=at_s, for_s=for_s, peer=peer, finder=finder, is_lie=draw.random() < 0.5)


_DRAWS: dict[str, tuple[Draw, float]] = {
    "crash": (_crash, 2),
    "crash_at": (_crash_at, 4),
    "sleep": (_sleep, 1),
    "partition": (_partition, 3),
    "cut_one_way": (_cut_one_way, 2),
    "deaf_at": (_deaf_at, 0.7),
    "bad_network": (_bad_network, 2),
    "slow_peer": (_slow_peer, 1),
    "lose_disk": (_lose_disk, 0.5),
    "lose_disk_at": (_lose_disk_at, 0.5),
    "restore_state": (_restore_state, 0.5),
    "leave": (_leave, 0.5),
    "clock_jump": (_clock_jump, 0.3),
    "dial_out_only": (_dial_out_only, 0.7),
    "amend": (_amend, 1.2),
    "forge": (_forge, 0.2),
    "pause_run": (_pause_run, 0.4),
    "ban_peer": (_ban_peer, 0.6),
    "roll_back": (_roll_back, 0.4),
    "deaf_to_rules": (_deaf_to_rules, 0.6),
    "accuse": (_accuse, 0.5),
    "misbehave": (_misbehave, 0.5),
}
"""Kind of a fault → how to draw one, and how often."""
KINDS: Collection[str] = tuple(_DRAWS)
