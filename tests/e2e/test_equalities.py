"""What a swarm computes equals what its definition says, computed without a swarm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.kernels.hash_tree import root
from atoll.node.replica import leaf_digests, state_context
from atoll.node.run_spec import RunSpec, load_run_spec
from atoll.protocol.messages import Commit
from atoll.training.alone import train_alone
from atoll.training.checkpoint import CheckpointStore
from atoll.training.config import TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import FlatLayout, initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.local import LocalReducer
from atoll.training.model import Parts, build_model, cross_entropy
from atoll.training.reducer import Event, PseudoGradient
from atoll.training.session import Session

from .lab import Node, hashes_by_round, journalled_commits, swarm

pytestmark = pytest.mark.e2e

FloatVector = NDArray[np.float32]
SMALL = ("inner.num_steps=5", "data.validation_batches=1")
AVERAGED_GRADIENTS = (
    *("inner.optimizer=sgd", "inner.num_steps=1", "inner.lr=0.1", "inner.weight_decay=0", "inner.clip_norm=0"),
    *("inner.warmup_steps=0", "outer.optimizer=sgd", "outer.lr=1.0", "outer.momentum=0.0", "exchange.codec=float32"),
    *("outer.momentum_warmup_rounds=0", "data.validation_batches=1", "inner.adaptive_steps=false"),
)
TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def run_to_the_end(nodes: list[Node]) -> None:
    for node in nodes:
        node.start()
    for node in nodes:
        assert node.wait_for_exit(120) == 0, node.log_tail()


def committed_state(node: Node) -> tuple[FloatVector, FloatVector]:
    """(anchor, momentum) of the newest checkpoint of a stopped node."""
    checkpoint = CheckpointStore(node.folder / "state", "state").load_latest()
    assert checkpoint is not None
    return checkpoint.tensors["anchor"], checkpoint.tensors["momentum"]


class HashingReducer(LocalReducer):
    """Plain DiLoCo on one machine that notes the state hash of every round, as a node would state it."""

    def __init__(self, config: TrainingConfig, grid: ChunkGrid, num_rounds: int) -> None:
        super().__init__(config, grid, num_rounds, initial_state(config.model))
        self.hashes: dict[int, set[str]] = {}

    def reduce(self, contribution: PseudoGradient) -> Event:
        event = super().reduce(contribution)
        context = state_context(self.round, self.round * self.config.inner.lease_samples)
        self.hashes[self.round] = {root(leaf_digests(self.anchor, self.momentum), context)}
        return event


def test_a_lone_node_computes_the_bits_of_plain_diloco_on_one_machine(tmp_path: Path) -> None:
    num_rounds = 4
    with swarm(tmp_path, 1, num_rounds=num_rounds, settings=SMALL) as nodes:
        run_to_the_end(nodes)
        spec = load_run_spec(nodes[0].spec_path)
        anchor, momentum = committed_state(nodes[0])
        assert hashes_by_round(nodes) == diloco_hashes(spec, num_rounds)
    exchange = spec.genesis.exchange
    alone = train_alone(
        spec.training, None, num_rounds, codec=exchange.codec, chunk_elements=exchange.chunk_elements, device="cpu"
    )
    assert np.array_equal(anchor, alone.anchor)
    assert np.array_equal(momentum, alone.momentum)
    assert not np.array_equal(anchor, initial_state(spec.training.model))


def diloco_hashes(spec: RunSpec, num_rounds: int) -> dict[int, set[str]]:
    config, exchange = spec.training, spec.genesis.exchange
    grid = ChunkGrid(FlatLayout.of(config.model).num_elements, exchange.chunk_elements, codec(exchange.codec))
    reducer = HashingReducer(config, grid, num_rounds)
    Session(InnerLoop(config, TextData.load(config.data, config.model.sequence_length)), reducer).run()
    return reducer.hashes


def test_a_swarm_with_one_sgd_step_a_round_is_averaged_gradient_training(tmp_path: Path) -> None:
    num_rounds = 6
    with swarm(tmp_path, 3, num_rounds=num_rounds, settings=AVERAGED_GRADIENTS) as nodes:
        run_to_the_end(nodes)
        commits = journalled_commits(nodes[0])
        assert [commit.record.plan.round for commit in commits] == list(range(1, num_rounds + 1))
        spec = load_run_spec(nodes[0].spec_path)
        expected = averaged_gradient_training(spec, commits)
        for node in nodes:
            anchor, _ = committed_state(node)
            assert np.abs(anchor - expected).max() <= TOLERANCE
    moved = np.abs(expected - initial_state(spec.training.model)).max()
    assert moved > 1000 * TOLERANCE, "the weights hardly moved, so that the comparison says nothing"


def averaged_gradient_training(spec: RunSpec, commits: list[Commit]) -> FloatVector:
    """SGD on the mean loss over all members' batches of each round: one model, one optimizer, no swarm."""
    config = spec.training
    layout = FlatLayout.of(config.model)
    weights = torch.from_numpy(initial_state(config.model).copy())
    gradient = torch.zeros_like(weights)
    model = build_model(config.model, layout, weights, gradient, Parts())
    data = TextData.load(config.data, config.model.sequence_length)
    cursor = 0
    for commit in commits:
        plan = commit.record.plan
        batches = []
        for member in plan.members:
            lease = Lease(cursor + plan.roster.index(member.peer) * config.inner.lease_samples, config.inner.batch_size)
            indices = lease.batch(0, config.inner.batch_size)
            assert indices is not None
            batches.append(data.batch(indices))
        tokens = torch.from_numpy(np.concatenate(batches)).long()
        gradient.zero_()
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        weights -= config.inner.lr * gradient
        cursor = plan.data_cursor
    return weights.numpy()
