"""Runs of thousands of peers: topologies beyond one roster, with transfers added up instead of played one by one."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..spec import Genesis, SpecError
from .gossip import Gossip, gossip
from .nodes import people
from .scenario import Workload, grid_of, inner_loop, with_peers
from .traces import Trace
from .two_tier import TwoTier, TwoTierRun

Topology: TypeAlias = Literal["two_tier", "gossip"]


def simulate_many(
    genesis: Genesis,
    workload: Workload,
    trace: Trace,
    *,
    topology: Topology,
    num_peers: int,
    num_rounds: int,
    group_size: int = 100,
    seed: int = 0,
) -> TwoTier | Gossip:
    """Run a spec over a trace with ``num_peers`` peers. Raises `SpecError` if its limits leave no room for that."""
    grid, loop = grid_of(genesis, workload, trace), inner_loop(workload, trace)
    if topology == "gossip":
        return gossip(
            trace, loop, num_peers=num_peers, num_rounds=num_rounds, contribution_bytes=grid.total_encoded, seed=seed
        )
    limit, num_groups = genesis.limits.max_peers, -(-num_peers // group_size)
    if max(group_size, num_groups) > limit:
        lines = f"{num_groups} groups of {group_size}: limits.max_peers is {limit} for groups and for their delegates"
        raise SpecError([f"{genesis.name}: {lines}; choose --group-size nearer to the root of --peers"])
    run = TwoTierRun(
        with_peers(genesis, people(num_groups), [], trace),
        trace,
        loop,
        num_peers=num_peers,
        group_size=group_size,
        contribution_bytes=grid.total_encoded,
        num_chunks=grid.num_chunks,
        seed=seed,
    )
    return run.run(num_rounds)
