"""Random fault schedules: a seed gives the size of the swarm, what happens to it, and what is tried afterwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from typing import TypeAlias, get_args

from .faults import (
    BadNetwork,
    ClockJump,
    Crash,
    CrashAt,
    CutOneWay,
    DeafAt,
    DialOutOnly,
    Fault,
    FaultSchedule,
    Join,
    Leave,
    LoseDisk,
    Moment,
    Partition,
    Probe,
    RestoreState,
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

Draw: TypeAlias = Callable[[random.Random, int, float, float], Fault]
"""Random numbers, number of peers, begin and duration → a fault."""


def random_schedule(seed: int, *, max_peers: int = 32, kinds: Collection[str] = ()) -> FaultSchedule:
    """The same schedule for the same arguments, on every machine. ``kinds``: the only faults to draw (none: all)."""
    draw = random.Random(f"atoll/hunt/{seed}")
    sizes = _LARGE_SIZES if draw.random() < _LARGE_SHARE else _SIZES
    num_peers = draw.choice([size for size in sizes if size <= max_peers] or [max_peers])
    num_joiners = draw.choice((0, 0, 1, 2))
    storm_s = draw.uniform(*STORM_S)
    faults = [_random_fault(draw, num_peers, storm_s, kinds or KINDS) for _ in range(draw.randint(1, MAX_FAULTS))]
    faults += [Join(at_s=_rounded(draw.uniform(0, storm_s)), for_s=0.0, peer=num_peers)] * min(1, num_joiners)
    return FaultSchedule(
        seed=seed,
        num_peers=num_peers,
        num_joiners=num_joiners,
        fault_tolerance=draw.choice((None, None, 0)),
        faults=tuple(sorted(_at_most_one_lost_disk(faults), key=lambda fault: fault.at_s)),
        probes=tuple(draw.sample(_PROBES, 2)),
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _random_fault(draw: random.Random, num_peers: int, storm_s: float, kinds: Collection[str]) -> Fault:
    """Most faults are short; some last long enough for members to be dropped."""
    at_s = _rounded(draw.uniform(0.0, storm_s))
    for_s = _rounded(draw.choice((draw.uniform(0.2, 6.0), draw.uniform(0.2, 6.0), draw.uniform(6.0, 30.0))))
    kind = draw.choices(list(kinds), weights=[_DRAWS[kind][1] for kind in kinds])[0]
    return _DRAWS[kind][0](draw, num_peers, at_s, for_s)


def _at_most_one_lost_disk(faults: list[Fault]) -> list[Fault]:
    """More lost disks than a quorum can do without are no promise of the protocol's; one is."""
    lost = [
        fault for fault in faults if isinstance(fault, LoseDisk) or (isinstance(fault, CrashAt) and fault.loses_disk)
    ]
    return [fault for fault in faults if fault not in lost[1:]]


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
}
"""Kind of a fault → how to draw one, and how often."""
KINDS: Collection[str] = tuple(_DRAWS)
