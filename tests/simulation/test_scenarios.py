"""What the project promises of rounds, on the traces that ship; and runs of thousands."""

from __future__ import annotations

import math

import pytest

from atoll.protocol.simulator import world_genesis
from atoll.protocol.simulator.aggregate import simulate_many
from atoll.protocol.simulator.report import Report
from atoll.protocol.simulator.scenario import Scenario, Workload
from atoll.protocol.simulator.traces import Trace
from atoll.protocol.spec import SpecError, TimingConfig

GENESIS = world_genesis(1).amended({"timing": TimingConfig().model_dump(mode="json")})
WORKLOAD = Workload(139_584, num_steps=50, max_steps=100, tokens_per_step=512, samples_per_step=8)


def simulated(name: str, num_peers: int, num_rounds: int, **more) -> Report:
    return Scenario(GENESIS, WORKLOAD, Trace.load(name), num_peers=num_peers, seed=1, **more).run(num_rounds)


@pytest.mark.parametrize(("name", "published"), [("usa", 0.957), ("usa-eu", 0.856), ("global", 0.83)])
def test_utilisation_on_the_published_links_is_at_or_above_the_published(name, published):
    report = simulated(f"intellect1-{name}", 12, 1)
    assert report.utilisation >= published
    assert report.sent_bytes_per_peer_and_round == pytest.approx(2 * 11 / 12 * 10e9 * 8.0625 / 8, rel=0.001)


def test_slow_paths_between_continents_cost_a_butterfly_less_than_slow_lines():
    assert simulated("intellect1-global-paths", 12, 1).round_s < simulated("intellect1-global", 12, 1).round_s - 200


def test_with_a_third_of_the_peers_lost_at_once_the_next_round_commits_and_is_no_slower():
    rows = simulated("mass-failure", 12, 5).rounds
    assert [row.num_members for row in rows] == [12, 12, 8, 8, 8]
    assert rows[2].duration_s < rows[1].duration_s + 5
    assert {why for row in rows[2:] for _, why in row.excluded} == {"down"}


def test_under_heavy_churn_every_round_commits():
    report = simulated("churn-30", 12, 8)
    assert (len(report.rounds), report.num_aborted) == (8, 0)


def test_a_joiner_delays_no_round_and_counts_from_the_round_after_its_admission():
    rows = simulated("joiner", 6, 5).rounds
    assert [row.num_members for row in rows] == [6, 6, 6, 7, 7]
    assert max(row.duration_s for row in rows) < min(row.duration_s for row in rows) + 2.5


def test_speeds_of_one_to_six_give_nine_tenths_of_the_summed_throughput():
    assert simulated("speeds-1-2-4-6", 8, 60, steps="budget").throughput >= 0.9


def test_waiting_for_the_slowest_wastes_most_of_the_throughput():
    assert simulated("speeds-1-2-4-6", 8, 3).throughput == pytest.approx(
        0.29, abs=0.04
    )  # 4 / 13, less what a round takes


def test_homes_behind_routers_take_part():
    rows = simulated("homes", 10, 3).rounds
    assert all(row.num_members == 10 for row in rows)


def test_the_same_seed_gives_the_same_report():
    assert simulated("diurnal", 6, 4).as_json() == simulated("diurnal", 6, 4).as_json()


def test_more_peers_than_a_roster_holds_are_refused():
    with pytest.raises(SpecError, match="max_peers is 128"):
        simulated("lan", 129, 1)


# --- thousands --------------------------------------------------------------------------------------------------------


def many(topology: str, **more):
    return simulate_many(GENESIS, WORKLOAD, Trace.load("homes"), topology=topology, **more)


def test_gossip_halves_the_variance_between_those_that_meet():
    run = many("gossip", num_peers=10_000, num_rounds=10)
    met = 1 - run.unpaired
    assert run.contraction == pytest.approx(1 - met / 2, abs=0.02)
    assert run.spread == pytest.approx(run.contraction / (1 - run.contraction), rel=0.05)


def test_two_tiers_commit_with_everybody_of_a_thousand_in_the_mean():
    run = many("two_tier", num_peers=1000, num_rounds=3, group_size=100)
    assert (run.num_groups, run.num_rounds) == (10, 3)
    assert run.members_per_round > 950
    assert math.isfinite(run.round_s)


def test_two_tiers_need_groups_and_delegates_that_fit_a_roster():
    with pytest.raises(SpecError, match=r"500 groups of 20"):
        many("two_tier", num_peers=10_000, num_rounds=1, group_size=20)
