"""Figures of swarms that these machines are too small for, from the simulator.

    utilisation_usa_only, utilisation_usa_eu, utilisation_global
                             time in inner steps, plain rounds, on INTELLECT-1's links; reference: as published.
                             The links are calibrated as the traces say. `paths_limited` is the figure if the paths
                             between continents are slow instead of the far peers' lines; `at_the_ring's_efficiency`
                             if our exchange reached no more of a line than the published ring.
    throughput_speeds_1_2_4_6
                             tokens that entered means, as a fraction of what all peers could train; `rule` says
                             whether rounds had a budget of tokens or a fixed number of steps
    churn_30_commit_rate     rounds that committed, 30 % of 12 peers lost per round
    mass_loss_next_round_s   from the loss of 4 of 12 peers to the next commit; `round_s` is an undisturbed round
    joiner_delay_s           how much longer the others' rounds took, from its arrival to its first contribution
    simulated_64_peers_cpu_s CPU-seconds of 64 peers over 100 rounds, every message

Usage: python benchmarks/simulated.py [--quick]
"""

from __future__ import annotations

import argparse
import time
from statistics import mean, median

from _figures import report

from atoll.protocol.simulator import world_genesis
from atoll.protocol.simulator.report import Report
from atoll.protocol.simulator.scenario import Scenario, Workload
from atoll.protocol.simulator.steps import StepRuleName
from atoll.protocol.simulator.traces import Trace

TIMING = {
    "heartbeat_interval_s": 2,
    "heartbeat_timeout_s": 10,
    "drop_after_s": 60,
    "ready_grace_s": 30,
    "progress_timeout_s": 10,
    "attempt_timeout_s": 60,
    "quorum_timeout_s": 600,
}
"""The defaults of a run spec."""
GENESIS = world_genesis(1).amended({"timing": TIMING})
WORKLOAD = Workload(139_584, num_steps=50, max_steps=100, tokens_per_step=512, samples_per_step=8)
"""The demo's recipe."""


def simulated(trace: Trace, num_peers: int, num_rounds: int, steps: StepRuleName = "budget") -> Report:
    """One run with the default times."""
    return Scenario(GENESIS, WORKLOAD, trace, num_peers=num_peers, seed=1, steps=steps).run(num_rounds)


def report_utilisation(name: str, trace_name: str, num_rounds: int) -> None:
    """One of INTELLECT-1's scenarios."""
    trace = Trace.load(trace_name)
    published = trace.published
    if published is None:
        raise SystemExit(f"{trace_name} names no published figures")
    like_ring = trace.model_copy(
        update={"network": trace.network.model_copy(update={"efficiency": published.efficiency})}
    )
    others = {"at_the_ring's_efficiency": like_ring}
    if trace_name != "intellect1-usa":
        others["paths_limited"] = Trace.load(f"{trace_name}-paths")
    further = {key: round(simulated(other, 12, num_rounds).utilisation, 4) for key, other in others.items()}
    run = simulated(trace, 12, num_rounds)
    sent_gb = round(run.sent_bytes_per_peer_and_round / 1e9, 2)
    details = {"round_s": run.round_s, "gigabytes_per_peer_and_round": sent_gb, **further}
    report(name, run.utilisation, "of the time", reference=published.utilisation, repeats=num_rounds, **details)


def report_speeds(num_rounds: int) -> None:
    """Eight peers of speeds 1:2:4:6. The first round knows no speeds, and counts all the same."""
    fixed, budget = (simulated(Trace.load("speeds-1-2-4-6"), 8, num_rounds, rule) for rule in ("fixed", "budget"))
    report(
        "throughput_speeds_1_2_4_6",
        budget.throughput,
        "of the summed throughput",
        reference=round(fixed.throughput, 4),
        repeats=num_rounds,
    )


def report_churn(num_rounds: int) -> None:
    """30 % of the peers per round."""
    run = simulated(Trace.load("churn-30"), 12, num_rounds)
    members = round(mean(row.num_members for row in run.rounds), 1)
    report(
        "churn_30_commit_rate",
        run.commit_rate if len(run.rounds) == num_rounds else len(run.rounds) / num_rounds,
        "of the rounds",
        repeats=num_rounds,
        members_per_round=members,
        round_s=run.round_s,
    )


def report_mass_loss() -> None:
    """4 of 12 peers, lost at one moment of round 3."""
    trace = Trace.load("mass-failure")
    (loss,) = trace.events
    rows = simulated(trace, 12, loss.round + 2).rounds
    report(
        "mass_loss_next_round_s",
        rows[loss.round - 1].duration_s - loss.after_s,
        "s",
        reference=round(rows[0].duration_s - loss.after_s, 3),
        members=[row.num_members for row in rows],
        roster=[row.roster_size for row in rows],
    )


def report_joiner(num_rounds: int) -> None:
    """The same run with and without a peer that joins."""
    trace = Trace.load("joiner")
    joined = simulated(trace, 12, num_rounds).rounds
    alone = simulated(trace.model_copy(update={"events": ()}), 12, num_rounds).rounds
    delays_s = [a.duration_s - b.duration_s for a, b in zip(joined, alone, strict=True)]
    first = next(row.round for row in joined if row.num_members == 13)
    during_s = delays_s[2:first]
    report("joiner_delay_s", median(during_s), "s per round", largest=round(max(during_s), 3), counts_from=first)


def report_speed(num_rounds: int) -> None:
    """How long the simulator itself takes."""
    trace = Trace.load("lan")
    trace = trace.model_copy(update={"compute": trace.compute.model_copy(update={"step_s": 0.4})})
    scenario = Scenario(GENESIS, WORKLOAD, trace, num_peers=64, seed=1)
    before_s = time.process_time()
    run = scenario.run(num_rounds)
    used_s = (time.process_time() - before_s) * 100 / num_rounds
    messages = sum(scenario.world.network.num_messages.values())
    report(
        "simulated_64_peers_cpu_s",
        used_s,
        "CPU-s per 100 rounds",
        repeats=num_rounds,
        messages=messages,
        simulated_s=run.simulated_s,
        commit_rate=run.commit_rate,
    )


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    few = parser.parse_args().quick
    report_utilisation("utilisation_usa_only", "intellect1-usa", 2 if few else 5)
    report_utilisation("utilisation_usa_eu", "intellect1-usa-eu", 2 if few else 5)
    report_utilisation("utilisation_global", "intellect1-global", 2 if few else 5)
    report_speeds(5 if few else 40)
    report_churn(5 if few else 40)
    report_mass_loss()
    report_joiner(8)
    report_speed(5 if few else 100)


if __name__ == "__main__":
    main()
