"""Make a failing schedule short: drop faults by delta debugging, then peers, probes, seconds, while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from .faults import CrashAt, Fault, FaultSchedule, named_peers

Fails: TypeAlias = Callable[[FaultSchedule], bool]


def shrink(schedule: FaultSchedule, fails: Fails, max_runs: int = 200) -> FaultSchedule:
    """The smallest schedule found within ``max_runs`` runs; ``fails`` says whether the same property is violated."""
    budget = [max_runs]

    def still_fails(candidate: FaultSchedule) -> bool:
        budget[0] -= 1
        return budget[0] >= 0 and fails(candidate)

    before = None
    while before != schedule and budget[0] > 0:
        before = schedule
        schedule = _drop_faults(schedule, still_fails)
        for simpler in (_fewer_probes, _fewer_peers, _shorter):
            schedule = _first_that_fails(schedule, simpler, still_fails)
    return schedule


def _drop_faults(schedule: FaultSchedule, fails: Fails) -> FaultSchedule:
    """Delta debugging: without ever smaller parts of the list."""
    size = len(schedule.faults)
    while size >= 1:
        first = 0
        while first < len(schedule.faults):
            kept = (*schedule.faults[:first], *schedule.faults[first + size :])
            candidate = schedule.model_copy(update={"faults": kept})
            if fails(candidate):
                schedule = candidate
            else:
                first += size
        size //= 2
    return schedule


def _first_that_fails(
    schedule: FaultSchedule, simpler: Callable[[FaultSchedule], Iterator[FaultSchedule]], fails: Fails
) -> FaultSchedule:
    """Go to the first simpler schedule that fails too, again and again."""
    while (found := next((candidate for candidate in simpler(schedule) if fails(candidate)), None)) is not None:
        schedule = found
    return schedule


def _fewer_probes(schedule: FaultSchedule) -> Iterator[FaultSchedule]:
    for index in range(len(schedule.probes)):
        kept = (*schedule.probes[:index], *schedule.probes[index + 1 :])
        yield schedule.model_copy(update={"probes": kept})


def _fewer_peers(schedule: FaultSchedule) -> Iterator[FaultSchedule]:
    """Without the last founder, if no fault is about it or somebody who would get another number."""
    named = frozenset[int]().union(*(named_peers(fault) for fault in schedule.faults))
    if schedule.num_joiners and schedule.num_peers + schedule.num_joiners - 1 not in named:
        num_joiners = schedule.num_joiners - 1
        yield schedule.model_copy(update={"num_joiners": num_joiners, "invites": schedule.invites[:num_joiners]})
    if schedule.delegates and not schedule.invites:
        yield schedule.model_copy(update={"delegates": ()})
    named |= {*schedule.delegates, *schedule.witnesses}
    if schedule.num_peers > 1 and not schedule.num_joiners and schedule.num_peers - 1 not in named:
        yield schedule.model_copy(update={"num_peers": schedule.num_peers - 1})


def _shorter(schedule: FaultSchedule) -> Iterator[FaultSchedule]:
    for index, fault in enumerate(schedule.faults):
        for simpler in _shorter_fault(fault):
            faults = (*schedule.faults[:index], simpler, *schedule.faults[index + 1 :])
            yield schedule.model_copy(update={"faults": faults})


def _shorter_fault(fault: Fault) -> Iterator[Fault]:
    if fault.for_s > 1:
        yield fault.model_copy(update={"for_s": float(int(fault.for_s / 2))})
    if fault.at_s > 1:
        yield fault.model_copy(update={"at_s": float(int(fault.at_s / 2))})
    if isinstance(fault, CrashAt) and fault.number:
        yield fault.model_copy(update={"number": fault.number - 1})
