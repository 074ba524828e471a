"""The hunter: random fault schedules against S1 to S7 and L1 to L6, and a failure shrunk to a short one to replay.

    python -m atoll.protocol.simulator.hunt --budget 1000 --first-seed 0 --processes 2
    python -m atoll.protocol.simulator.hunt --replay FILE        (or the schedule's JSON itself)

Prints progress and rate; a violation ends it with exit code 1, the shrunk schedule and the command that replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..round_machine import IllegalTransition
from .charter import Divided
from .faults import FaultSchedule
from .faulty import FaultySwarm
from .injector import Injector
from .liveness import LivenessProbes
from .nodes import Violation
from .properties import PropertyViolated, SafetyChecks
from .schedules import random_schedule
from .shrinking import shrink

_REPORT_EVERY_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """What became of one schedule."""

    schedule: FaultSchedule
    violated: str | None
    """Name of the property that does not hold; None if all hold."""
    detail: str
    num_rounds: int
    simulated_s: float

    @property
    def is_violation(self) -> bool:
        return self.violated is not None


def run_schedule(schedule: FaultSchedule) -> Outcome:
    """Run a schedule: the storm, the healing, the probes. The same schedule has the same outcome, always."""
    swarm = FaultySwarm(schedule)
    checks = SafetyChecks(swarm)
    violated, detail = None, ""
    try:
        _run(swarm, schedule)
    except PropertyViolated as error:
        violated, detail = error.name, str(error)
    except Divided as error:
        violated, detail = "S7", str(error)
    except Violation as error:
        violated, detail = "S1/S2", str(error)
    except IllegalTransition as error:
        violated, detail = "machine", str(error)
    return Outcome(schedule, violated, detail, checks.num_rounds, swarm.now)


def _run(swarm: FaultySwarm, schedule: FaultSchedule) -> None:
    injector = Injector(swarm, schedule.faults)
    swarm.run(schedule.storm_s)
    injector.heal()
    probes = LivenessProbes(swarm)
    if probes.settle():
        for probe in schedule.probes:
            probes.run(probe)


def shrunk(outcome: Outcome, max_runs: int = 200) -> Outcome:
    """The outcome of the shortest schedule found that violates the same property."""

    def fails(schedule: FaultSchedule) -> bool:
        return run_schedule(schedule).violated == outcome.violated

    return run_schedule(shrink(outcome.schedule, fails, max_runs))


def hunt(seeds: Iterable[int], *, processes: int = 1, max_peers: int = 32) -> Iterator[Outcome]:
    """Outcomes of the random schedules of ``seeds``, as they come."""
    work = ((seed, max_peers) for seed in seeds)
    if processes == 1:
        yield from map(_run_seed, work)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_run_seed, work, chunksize=4)


def first_violation(seeds: Iterable[int], *, max_peers: int = 32, kinds: Collection[str] = ()) -> Outcome | None:
    """The first violation among the schedules of ``seeds``, if there is one."""
    schedules = (random_schedule(seed, max_peers=max_peers, kinds=kinds) for seed in seeds)
    return next((outcome for outcome in map(run_schedule, schedules) if outcome.is_violation), None)


def _run_seed(work: tuple[int, int]) -> Outcome:
    seed, max_peers = work
    return run_schedule(random_schedule(seed, max_peers=max_peers))


def replay_command(schedule: FaultSchedule) -> str:
    """A shell command that runs this schedule again."""
    return f"python -m atoll.protocol.simulator.hunt --replay {shlex.quote(schedule.to_json())}"


# --- command line -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: no violation; 1: a violation, which is printed; 2: a schedule that cannot be read."""
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay)
    return _hunt(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="atoll.protocol.simulator.hunt", description="hunt for violations")
    parser.add_argument("--budget", type=int, default=1000, help="schedules to run (0: until the minutes are over)")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after this time (0: when the budget is spent)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--max-peers", type=int, default=32)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--replay", metavar="FILE", help="run one schedule: a file, or its JSON")
    return parser


def _replay(source: str) -> int:
    try:
        schedule = FaultSchedule.from_json(source if source.lstrip().startswith("{") else Path(source).read_bytes())
    except (OSError, ValueError) as error:
        print(f"cannot read the schedule: {error}", file=sys.stderr)
        return 2
    outcome = run_schedule(schedule)
    print(outcome.detail or f"no violation in {outcome.num_rounds} rounds, {outcome.simulated_s:.0f} simulated seconds")
    return int(outcome.is_violation)


def _hunt(options: argparse.Namespace) -> int:
    seeds = range(options.first_seed, options.first_seed + options.budget) if options.budget else _endless(options)
    progress = Progress(time.monotonic())
    for outcome in hunt(seeds, processes=options.processes, max_peers=options.max_peers):
        progress.note(outcome)
        if outcome.is_violation:
            return _say_violation(outcome)
        if 0 < options.minutes * 60 < progress.elapsed_s:
            break
    progress.say()
    return 0


def _endless(options: argparse.Namespace) -> Iterator[int]:
    seed = options.first_seed
    while True:
        yield seed
        seed += 1


def _say_violation(outcome: Outcome) -> int:
    print(f"seed {outcome.schedule.seed} violates {outcome.detail}", flush=True)
    print("shrinking…", flush=True)
    small = shrunk(outcome)
    print(f"{len(small.schedule.faults)} faults, {small.schedule.num_peers} peers: {small.detail}")
    print(replay_command(small.schedule))
    return 1


@dataclass
class Progress:
    """Counts what has been run, and says so now and then."""

    started_s: float
    num_schedules: int = 0
    num_rounds: int = 0
    simulated_s: float = 0.0
    fewest_peers: int = 64
    most_peers: int = 0
    said_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def note(self, outcome: Outcome) -> None:
        self.num_schedules += 1
        self.num_rounds += outcome.num_rounds
        self.simulated_s += outcome.simulated_s
        self.fewest_peers = min(self.fewest_peers, outcome.schedule.num_peers)
        self.most_peers = max(self.most_peers, outcome.schedule.num_peers)
        if self.elapsed_s - self.said_s >= _REPORT_EVERY_S:
            self.said_s = self.elapsed_s
            self.say()

    def say(self) -> None:
        rate = self.num_schedules / max(self.elapsed_s, 1e-9)
        sizes = f"{self.fewest_peers} to {self.most_peers} peers"
        print(
            f"{self.num_schedules} schedules of {sizes}, {self.num_rounds} rounds, {self.simulated_s:.0f} simulated "
            f"seconds in {self.elapsed_s:.0f} s ({rate:.2f}/s): no violation",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
