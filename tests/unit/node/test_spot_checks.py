"""Drivers in memory whose members really train a small model: who does not is found, and nobody else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.protocol import suspicions
from atoll.protocol.amendments import RunRules
from atoll.protocol.chunks import Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Commit, Suspected
from atoll.protocol.outcomes import RoundEvent
from atoll.protocol.recomputer import Recomputed, Work
from atoll.protocol.round_driver import RoundDriver
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import Genesis, MembershipConfig, TimingConfig, TrustConfig
from atoll.protocol.standing import Standing
from atoll.protocol.suspicions import Breach, Suspicion
from atoll.protocol.transport import Buffer
from atoll.training.config import InnerConfig, ModelConfig, TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.inner_state import InnerState, InnerStates, continuity, sizes
from atoll.training.model import cross_entropy
from atoll.training.outer import apply_mean
from atoll.training.recompute import recompute

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 5)]
CONFIG = TrainingConfig(
    model=ModelConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, hidden_dim=24, sequence_length=16),
    inner=InnerConfig(lr=1e-2, warmup_steps=3, batch_size=2, num_steps=8),
)
DATA = TextData.load(CONFIG.data, CONFIG.model.sequence_length)
INITIAL = initial_state(CONFIG.model)
GRID = ChunkGrid(INITIAL.size, 512, codec("int8"))
STEPS, LEASE = CONFIG.inner.num_steps, CONFIG.inner.lease_samples
CHEAT = PEOPLE[3]


class FlippedLoop(InnerLoop):
    """Trains on targets 255 − y."""

    def _backward(self, tokens):
        batch = torch.from_numpy(tokens).to(torch.long)
        self._gradient.zero_()
        loss = cross_entropy(self._model(batch[:, :-1]), 255 - batch[:, 1:])
        loss.backward()
        return loss.item()


class TrainedReplica:
    """A model that takes the outer steps; for its hash the last record serves."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis, self.anchor, self.momentum = genesis, INITIAL.copy(), np.zeros_like(INITIAL)
        self.chain: list[Commit] = []
        self.state_hash = genesis.initial_state

    @property
    def head_round(self) -> int:
        return len(self.chain)

    @property
    def standing(self) -> Standing:
        return Standing.after(self.chain[-1]) if self.chain else Standing.of_genesis(self.genesis)

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        settings = CONFIG.outer.at(commit.record.plan.round)
        apply_mean(self.anchor, self.momentum, np.frombuffer(bytes(mean), np.uint8), GRID, settings)
        self.chain.append(commit)
        self.state_hash = commit.record.content_id()
        return self.state_hash

    def commits(self, first: int, count: int) -> list[Commit]:
        return self.chain[max(first, 1) - 1 : first - 1 + count] if first >= 1 else []

    async def begin_lineage(self) -> None:
        raise NotImplementedError


@dataclass
class InProcess:
    """A `Recomputer` without a process of its own."""

    replica: TrainedReplica
    states: InnerStates
    folder: Path
    sizes: tuple[int, int] = sizes(INITIAL.size)
    kept: dict[int, np.ndarray] = field(default_factory=dict)

    def own_state(self, round_number: int) -> Path:
        return self.states.path(round_number)

    async def keep_anchor(self, round_number: int) -> bool:
        self.kept = {round_number: self.replica.anchor.copy()}
        return self.replica.head_round == round_number

    async def recompute(self, work: Work) -> Recomputed | None:
        state = InnerState.decode(work.inner_state.read_bytes(), INITIAL.size, CONFIG.inner)
        lease = Lease(work.first_sample, LEASE)
        loop = InnerLoop(CONFIG, DATA)
        steps = recompute(loop, self.kept[work.round - 1], lease, work.num_steps, state)
        out = np.empty(GRID.total_encoded, np.uint8)
        GRID.encode(steps.delta, out)
        end = self.folder / "end"
        end.write_bytes(steps.end.encode())
        encoded = tuple(out[GRID.encoded_range(chunk)].tobytes() for chunk in work.chunks)
        return Recomputed(encoded, steps.num_tokens, end)

    def continuity(self, end: Path, start: Path) -> float | None:
        return continuity(end.read_bytes(), start.read_bytes(), INITIAL.size)


@dataclass
class Member:
    """A driver with a model in training."""

    identity: Identity
    replica: TrainedReplica
    driver: RoundDriver
    states: InnerStates
    loop: InnerLoop
    events: list[RoundEvent] = field(default_factory=list)
    sent: np.ndarray | None = None

    def points(self, name: str) -> list[dict[str, object]]:
        return [dict(event.fields) for event in self.events if event.point == name]

    @property
    def lease(self) -> Lease:
        standing = self.replica.standing
        return Lease(standing.data_cursor + standing.roster.index(self.identity.peer_id) * LEASE, LEASE)

    def invent_state(self) -> None:
        """A momentum of one's own choice, under the true number of steps."""
        values = np.random.default_rng(self.driver.round).standard_normal(INITIAL.size).astype(np.float32)
        moments = {"exp_avg": values * np.float32(1e-3), "exp_avg_sq": np.square(values * np.float32(1e-2))}
        if self.loop.num_steps_done:
            self.loop.restore_optimizer(moments, self.loop.num_steps_done)

    def keep_state(self) -> str:
        state = InnerState(self.loop.num_steps_done, 0, self.loop.optimizer_tensors())
        return self.states.keep(self.driver.round, state)

    def train(self, num_steps: int = STEPS) -> np.ndarray:
        self.loop.load(self.replica.anchor)
        for step in range(num_steps):
            indices = self.lease.batch(step, CONFIG.inner.batch_size)
            assert indices is not None
            self.loop.step(DATA.batch(indices))
        return np.asarray(self.loop.pseudo_gradient(self.replica.anchor))


Behaviour = Callable[[Member], np.ndarray]


def honest(member: Member) -> np.ndarray:
    return member.train()


def stale(member: Member) -> np.ndarray:
    """Once trained, ever sent."""
    return member.train() if member.sent is None else member.sent


def half_the_steps(member: Member) -> np.ndarray:
    return member.train(STEPS // 2) * np.float32(2)


class Swarm:
    """Four members that train, contribute and check each other in every round."""

    def __init__(self, folder: Path, trust: TrustConfig) -> None:
        roster = tuple(person.peer_id for person in PEOPLE)
        self.network = MemoryNetwork(progress_timeout_s=5)
        self.folder = folder
        self.genesis = Genesis(
            name="spot checks",
            protocol_version=1,
            initial_state="00" * 32,
            operators=roster[:1],
            model={},
            trust=trust,
            timing=TimingConfig(
                heartbeat_interval_s=0.1,
                heartbeat_timeout_s=5,
                ready_grace_s=20,
                progress_timeout_s=10,
                attempt_timeout_s=30,
                quorum_timeout_s=60,
            ),
            membership=MembershipConfig(roster=roster),
        )
        self.members: dict[PeerId, Member] = {}

    async def start(self) -> None:
        for seed, person in enumerate(PEOPLE):
            folder = self.folder / person.peer_id
            folder.mkdir()
            replica, events = TrainedReplica(self.genesis), list[RoundEvent]()
            states = InnerStates(folder / "states", lambda _: None)
            setup = DriverSetup(
                identity=person,
                book=RuleBook(RunRules(self.genesis)),
                transport=self.network.transport(person),
                directory=self.network.directory(person),
                folder=folder / "rounds",
                replica=replica,
                grid=GRID,
                facts=NodeFacts(lease_samples=LEASE),
                observer=events.append,
                recomputer=InProcess(replica, states, folder),
            )
            driver = RoundDriver(setup)
            driver._spot_checks._random = random.Random(seed)
            loop = (FlippedLoop if person is CHEAT and self.flips else InnerLoop)(CONFIG, DATA)
            self.members[person.peer_id] = Member(person, replica, driver, states, loop, events)
        for member in self.members.values():
            await member.driver.start()

    flips = False
    """Whether the cheat trains on false labels."""
    invents = False
    """Whether it begins each round with an optimizer that it has made up."""

    @property
    def present(self) -> list[Member]:
        """In the roster, as the first member knows it."""
        roster = self.members[PEOPLE[0].peer_id].replica.standing.roster
        return [self.members[peer] for peer in roster]

    async def round(self, cheat: Behaviour = honest) -> None:
        """Until all honest members have applied it; who was ejected in it may never hear of its end."""
        works = {
            each.identity: asyncio.create_task(self.contribute(each, cheat if each.identity is CHEAT else honest))
            for each in self.present
        }
        suspect = works.pop(CHEAT, None)
        await asyncio.gather(*works.values())
        if suspect is not None and CHEAT.peer_id in [member.identity.peer_id for member in self.present]:
            await suspect
        elif suspect is not None:
            suspect.cancel()

    async def contribute(self, member: Member, behaviour: Behaviour) -> None:
        if self.invents and member.identity is CHEAT:
            member.invent_state()
        digest = member.keep_state()
        member.sent = behaviour(member)
        out = np.empty(GRID.total_encoded, np.uint8)
        GRID.encode(member.sent, out)
        tokens = STEPS * CONFIG.inner.batch_size * CONFIG.model.sequence_length
        figures = {"tokens": tokens, "num_inner_steps": STEPS, "inner_state": digest}
        number = member.driver.round
        await member.driver.contribute(Contribution.of(GRID, out.data, round_number=number, **figures))

    async def until_ejected(self, cheat: Behaviour, max_rounds: int = 15) -> int:
        for number in range(1, max_rounds + 1):
            await self.round(cheat)
            if CHEAT.peer_id not in [member.identity.peer_id for member in self.present]:
                return number
        raise AssertionError("nobody was ejected")

    def points(self, name: str) -> list[dict[str, object]]:
        return [point for member in self.members.values() for point in member.points(name)]

    async def close(self) -> None:
        for member in self.members.values():
            await member.driver.close()
        await self.network.close()


@pytest.fixture
async def swarm(tmp_path, request):
    torch.set_num_threads(1)
    swarm = Swarm(tmp_path, TrustConfig(spot_checks=1.0, audited_chunks=0))
    swarm.flips = getattr(request, "param", False)
    await swarm.start()
    yield swarm
    await swarm.close()


async def test_honest_members_pass_every_check(swarm):
    for _ in range(5):
        await swarm.round()
    assert len(swarm.points("spot.passed")) >= 4
    for point in ("spot.suspected", "spot.hidden", "spot.failed", "peer.proven", "peer.rejected"):
        assert swarm.points(point) == []


async def test_who_sends_old_work_is_suspected_and_ejected(swarm):
    await swarm.until_ejected(stale)
    assert {point["peer"] for point in swarm.points("spot.suspected")} == {CHEAT.peer_id}
    assert {point["kind"] for point in swarm.points("peer.proven")} == {"verdict"}


async def test_who_takes_half_the_steps_is_suspected_and_ejected(swarm):
    await swarm.until_ejected(half_the_steps)
    assert {point["peer"] for point in swarm.points("spot.suspected")} == {CHEAT.peer_id}


@pytest.mark.parametrize("swarm", [True], indirect=True)
async def test_who_trains_on_false_labels_is_suspected_and_ejected(swarm):
    await swarm.until_ejected(honest)
    assert {point["peer"] for point in swarm.points("spot.suspected")} == {CHEAT.peer_id}


async def test_who_invents_the_state_that_its_steps_begin_with_is_ejected_in_time(swarm, monkeypatch):
    """Its contributions are what its steps give; but no round begins where the one before has led."""
    monkeypatch.setattr(suspicions, "MAX_HIDDEN", 2)
    swarm.invents = True
    await swarm.until_ejected(honest, max_rounds=30)
    assert any("go on from where" in str(point["why"]) for point in swarm.points("spot.hidden"))
    assert {point["peer"] for point in swarm.points("spot.suspected")} == {CHEAT.peer_id}


async def test_who_shows_nothing_is_asked_again_and_then_ejected(swarm):
    server = swarm.members[CHEAT.peer_id].driver._spot_checks._server
    assert server is not None
    server.show = lambda *_: None
    await swarm.until_ejected(honest, max_rounds=20)
    hidden = swarm.points("spot.hidden")
    assert {point["peer"] for point in hidden} == {CHEAT.peer_id}
    assert max(point["count"] for point in hidden) >= 3


async def test_a_lone_accuser_ejects_nobody_and_is_counted(swarm):
    """It accuses somebody honest in every round; the others look for themselves."""
    liar, victim = PEOPLE[2], PEOPLE[1]
    others = [person.peer_id for person in PEOPLE if person not in (liar, victim)]
    driver = swarm.members[liar.peer_id].driver
    for number in range(1, 8):
        await swarm.round()
        suspicion = Suspicion(
            lineage=0,
            round=number,
            record="00" * 32,
            accused=victim.peer_id,
            accuser=liar.peer_id,
            breach=Breach(rule="cosine", value=0.1, limit=0.95),
        ).signed(liar)
        driver._mail.post(others, Suspected(suspicion=suspicion))
    assert swarm.points("peer.proven") == []
    assert len(swarm.present) == len(PEOPLE)
    assert {point["by"] for point in swarm.points("spot.suspected")} == {liar.peer_id}
    assert {point["peer"] for point in swarm.points("spot.unconfirmed")} == {liar.peer_id}
    counts = [swarm.members[peer].driver._spot_checks.suspicions.num_unconfirmed[liar.peer_id] for peer in others]
    assert max(counts) >= 2
