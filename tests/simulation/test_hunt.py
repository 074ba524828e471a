"""A fixed budget of random fault schedules finds no violation; every seeded bug is found within its budget.

A longer hunt: ``make hunt BUDGET=10000``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atoll.protocol.simulator.faults import Crash, CrashAt, FaultSchedule, Partition, Sleep
from atoll.protocol.simulator.hunt import Outcome, first_violation, replay_command, run_schedule, shrunk
from atoll.protocol.simulator.mutations import MUTATIONS
from atoll.protocol.simulator.schedules import random_schedule
from atoll.protocol.simulator.shrinking import shrink

NUM_SCHEDULES, MAX_PEERS = 64, 6
MUTATION_BUDGET, MUTATED_PEERS = 60, 5
PARTS = 4


def found(outcome: Outcome) -> str:
    return f"{outcome.detail}\n{replay_command(outcome.schedule)}"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_violate_nothing(part):
    outcome = first_violation(range(part, NUM_SCHEDULES, PARTS), max_peers=MAX_PEERS)
    assert outcome is None, found(outcome)


@pytest.mark.parametrize("seed", [13, 18])
def test_large_swarms_violate_nothing(seed):
    schedule = random_schedule(seed)
    assert schedule.num_peers >= 16
    outcome = run_schedule(schedule)
    assert not outcome.is_violation, found(outcome)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_seeded_bug_is_found_within_its_budget(name):
    mutation = MUTATIONS[name]
    with mutation.applied():
        outcome = first_violation(range(MUTATION_BUDGET), max_peers=MUTATED_PEERS, kinds=mutation.kinds)
    assert outcome is not None


def test_without_its_bug_the_same_schedule_violates_nothing():
    """What finds a bug is the bug: a check that always fails would find everything."""
    for mutation in MUTATIONS.values():
        with mutation.applied():
            outcome = first_violation(range(2), max_peers=3, kinds=mutation.kinds)
        if outcome is not None:
            assert not run_schedule(outcome.schedule).is_violation, found(outcome)


def test_a_schedule_runs_the_same_every_time():
    schedule = random_schedule(7, max_peers=4)
    assert run_schedule(schedule) == run_schedule(schedule)


def test_a_schedule_survives_json():
    for seed in range(50):
        schedule = random_schedule(seed)
        assert FaultSchedule.from_json(schedule.to_json()) == schedule


def test_a_failure_is_shrunk_to_what_it_needs():
    mutation = MUTATIONS["takeover_never_happens"]
    with mutation.applied():
        outcome = first_violation(range(MUTATION_BUDGET), max_peers=MUTATED_PEERS)
        assert outcome is not None
        small = shrunk(outcome, max_runs=60)
        assert small.violated == outcome.violated
    assert len(small.schedule.faults) <= len(outcome.schedule.faults)
    assert not run_schedule(small.schedule).is_violation


def test_shrinking_drops_faults_peers_and_probes_that_do_not_matter():
    culprit = Sleep(at_s=8.0, for_s=8.0, peer=1)
    others = (Crash(at_s=1.0, for_s=1.0, peer=0), CrashAt(at_s=2.0, for_s=1.0, moment="voting"))
    cut = Partition(at_s=3.0, for_s=3.0, groups=((0, 1), (2, 3)))
    schedule = FaultSchedule(seed=1, num_peers=4, faults=(*others, cut, culprit), probes=("progress", "joiner"))

    def fails(candidate: FaultSchedule) -> bool:
        return any(isinstance(fault, Sleep) and fault.for_s >= 4 for fault in candidate.faults)

    small = shrink(schedule, fails)
    assert small.faults == (Sleep(at_s=0.0, for_s=4.0, peer=1),) or small.faults[0].for_s == 4.0
    assert (len(small.faults), small.num_peers, small.probes) == (1, 2, ())


def test_a_replayed_file_prints_the_violation(tmp_path: Path):
    path = tmp_path / "schedule.json"
    path.write_text(random_schedule(1, max_peers=3).to_json())
    command = [sys.executable, "-P", "-m", "atoll.protocol.simulator.hunt", "--replay", str(path)]
    replayed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (replayed.returncode, replayed.stdout[:12]) == (0, "no violation")
    path.write_text("{}")
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 2
