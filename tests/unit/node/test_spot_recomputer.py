"""Another member's steps, recomputed in a real process from a real trainer's contribution and state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.node.spot_recomputer import SpotRecomputer
from atoll.protocol.identity import Identity
from atoll.protocol.recomputer import Work
from atoll.protocol.spec import Genesis, MembershipConfig
from atoll.protocol.suspicions import breach_of
from atoll.training.config import DataConfig, InnerConfig, ModelConfig, TrainerSpec, TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.inner_state import InnerState, InnerStates
from atoll.training.shared_buffers import SharedBuffers

CONFIG = TrainingConfig(
    model=ModelConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=32, sequence_length=16),
    data=DataConfig(validation_batches=1),
    inner=InnerConfig(num_steps=6, batch_size=2),
)
SPEC = TrainerSpec(training=CONFIG, chunk_elements=4096, codec="int8", device="cpu")
INITIAL = initial_state(CONFIG.model)
GRID = ChunkGrid(INITIAL.size, SPEC.chunk_elements, codec("int8"))
PEER = Identity.from_seed(bytes(32)).peer_id
TABLES = {name: getattr(CONFIG, name).model_dump(mode="json") for name in ("model", "data", "inner", "outer")}
RULES = Genesis(
    name="recomputed",
    protocol_version=1,
    initial_state="00" * 32,
    operators=(PEER,),
    membership=MembershipConfig(roster=(PEER,)),
    **TABLES,
)


@pytest.fixture
def buffers():
    buffers = SharedBuffers.create(INITIAL.size, GRID.num_chunks, GRID.total_encoded)
    buffers.open_anchor()[:] = INITIAL
    buffers.seal_anchor(4)
    return buffers


class Peer:
    """Has trained before, and now trains its lease of round 5."""

    def __init__(self, folder: Path) -> None:
        data = TextData.load(CONFIG.data, CONFIG.model.sequence_length)
        self.loop = InnerLoop(CONFIG, data)
        self.train(Lease(first=0, count=100), INITIAL)
        states = InnerStates(folder, pytest.fail)
        states.keep(5, InnerState(self.loop.num_steps_done, 0, self.loop.optimizer_tensors()))
        self.start = states.path(5)
        delta = self.train(Lease(first=500, count=CONFIG.inner.lease_samples), INITIAL)
        states.keep(6, InnerState(self.loop.num_steps_done, 0, self.loop.optimizer_tensors()))
        self.end = states.path(6)
        self.encoded = np.empty(GRID.total_encoded, np.uint8)
        GRID.encode(delta, self.encoded)

    def train(self, lease: Lease, anchor: np.ndarray) -> np.ndarray:
        self.loop.load(anchor)
        for step in range(CONFIG.inner.num_steps):
            indices = lease.batch(step, CONFIG.inner.batch_size)
            assert indices is not None
            self.loop.step(self.loop.data.batch(indices))
        return np.asarray(self.loop.pseudo_gradient(anchor))


async def test_a_process_recomputes_what_a_peer_has_sent(tmp_path, buffers):
    peer, recomputer = Peer(tmp_path), SpotRecomputer(SPEC, tmp_path, buffers)
    assert not await recomputer.keep_anchor(3)  # it is gone
    assert await recomputer.keep_anchor(4)
    buffers.open_anchor()[:] = 0  # the next round has begun
    buffers.seal_anchor(5)
    chunks = (0, GRID.num_chunks - 1)
    work = Work(RULES, 5, PEER, 500, CONFIG.inner.num_steps, chunks, peer.start)
    found = await recomputer.recompute(work)
    assert found is not None
    assert found.fault == ""
    sums = [0.0, 0.0, 0.0]
    for chunk, y in zip(chunks, found.encoded, strict=True):
        x, length = peer.encoded[GRID.encoded_range(chunk)], GRID.chunk_length(chunk)
        products = (GRID.codec.dot(a, b, length) for a, b in ((x, y), (x, x), (y, y)))
        sums = [total + product for total, product in zip(sums, products, strict=True)]
    assert sums[0] / (sums[1] * sums[2]) ** 0.5 > 0.999
    tokens = CONFIG.inner.num_steps * CONFIG.inner.batch_size * CONFIG.model.sequence_length
    assert breach_of((sums[0], sums[1], sums[2]), tokens, found.num_tokens, RULES.trust) is None
    goes_on = recomputer.continuity(found.end, peer.end)
    assert goes_on is not None
    assert goes_on > 0.999
    assert recomputer.continuity(found.end, peer.start) == 0


async def test_a_process_that_fails_finds_nothing(tmp_path, buffers, monkeypatch):
    recomputer = SpotRecomputer(SPEC, tmp_path, buffers)
    monkeypatch.setattr("atoll.node.spot_recomputer.launched", lambda *_: ("/bin/false",))
    (tmp_path / "recompute").mkdir()
    assert await recomputer.recompute(Work(RULES, 5, PEER, 500, 6, (0,), tmp_path / "gone")) is None


async def test_the_process_does_not_outlive_its_check(tmp_path, buffers, monkeypatch):
    recomputer = SpotRecomputer(SPEC, tmp_path, buffers)
    monkeypatch.setattr("atoll.node.spot_recomputer.launched", lambda *_: ("/bin/sleep", "60"))
    monkeypatch.setattr("atoll.node.spot_recomputer._PATIENCE_S", 0.05)
    (tmp_path / "recompute").mkdir()
    assert await recomputer.recompute(Work(RULES, 5, PEER, 500, 6, (0,), tmp_path / "gone")) is None
    assert not [child for child in psutil.Process().children() if "sleep" in child.name()]
