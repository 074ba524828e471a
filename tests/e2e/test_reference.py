"""The swarm computes what one process computes that does the same work in the same order, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from atoll.kernels.chunk_grid import ChunkGrid, mean_of
from atoll.kernels.codec import codec
from atoll.kernels.hash_tree import root
from atoll.node.replica import initial_state_hash, leaf_digests, state_context
from atoll.node.run_spec import RunSpec, load_run_spec
from atoll.protocol.chunks import Contribution
from atoll.protocol.messages import Commit
from atoll.protocol.record import Member, Plan
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.outer import apply_mean

from .lab import can_make_namespaces, hashes_by_round, journalled_commits, swarm

pytestmark = pytest.mark.e2e

NUM_ROUNDS = 5


@dataclass
class Reference:
    """One process that plays all peers, one after another."""

    spec: RunSpec
    loops: dict[str, InnerLoop] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, exchange = self.spec.training, self.spec.genesis.exchange
        self.data = TextData.load(config.data, config.model.sequence_length)
        self.anchor = initial_state(config.model)
        self.momentum = np.zeros_like(self.anchor)
        self.grid = ChunkGrid(len(self.anchor), exchange.chunk_elements, codec(exchange.codec))
        self.data_cursor = 0

    def contribution(self, plan: Plan, member: Member) -> NDArray[np.uint8]:
        """Encoded pseudo-gradient of one peer's round, trained here."""
        inner = self.spec.training.inner
        loop = self.loops.setdefault(member.peer, InnerLoop(self.spec.training, self.data))
        first = self.data_cursor + plan.roster.index(member.peer) * inner.lease_samples
        lease = Lease(first=first, count=inner.lease_samples)
        loop.load(self.anchor)
        for step in range(member.num_inner_steps):  # they follow measured speeds
            indices = lease.batch(step, inner.batch_size)
            assert indices is not None
            loop.step(self.data.batch(indices))
        encoded = np.empty(self.grid.total_encoded, np.uint8)
        self.grid.encode(loop.pseudo_gradient(self.anchor), encoded)
        return encoded

    def replay(self, commit: Commit) -> str:
        """Do the round's work and return the state hash after it."""
        plan = commit.record.plan
        encoded = [self.contribution(plan, member) for member in plan.members]
        for member, data in zip(plan.members, encoded, strict=True):
            rebuilt = Contribution.of(self.grid, data.data, round_number=plan.round, tokens=member.tokens)
            assert rebuilt.commitment == member.commitment, f"round {plan.round}: another contribution of {member.peer}"
        assert all(all(result.included) for result in commit.record.results)
        mean = np.empty(self.grid.total_encoded, np.uint8)
        mean_of(encoded, [member.tokens for member in plan.members], self.grid, mean)
        apply_mean(self.anchor, self.momentum, mean, self.grid, self.spec.training.outer.at(plan.round))
        self.data_cursor = plan.data_cursor
        return root(leaf_digests(self.anchor, self.momentum), state_context(plan.round, plan.data_cursor))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_swarm_ends_with_the_bits_of_a_single_process_replay(tmp_path: Path) -> None:
    settings = ("inner.num_steps=20", "data.validation_batches=1")
    with swarm(tmp_path, 3, num_rounds=NUM_ROUNDS, settings=settings, isolate=can_make_namespaces()) as nodes:
        for node in nodes:
            node.start()
        for node in nodes:
            assert node.wait_for_exit(150) == 0, node.log_tail()
        reference = Reference(load_run_spec(nodes[0].spec_path))
        assert initial_state_hash(reference.anchor) == reference.spec.genesis.initial_state
        replayed = {commit.record.plan.round: {reference.replay(commit)} for commit in journalled_commits(nodes[0])}
        assert len(replayed) == NUM_ROUNDS
        assert replayed == hashes_by_round(nodes)
