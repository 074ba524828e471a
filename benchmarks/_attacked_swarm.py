"""Ten peers, some of them malicious, that train together in one process.

Everything between training and the outer step is the code that nodes run: encoding, commitments, admission, copies,
weights, aggregation, outer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from _attackers import ATTACKS, FlippedLoop, Round, Vector
from numpy.typing import NDArray

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import InvalidEncoding, NonFiniteError, codec
from atoll.protocol import admission
from atoll.protocol.aggregation import reduce_chunk
from atoll.protocol.chunks import Contribution
from atoll.protocol.exchange.copies import SpanSamples
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.recent import Recent
from atoll.protocol.record import Member, Plan, Span
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.weights import weights
from atoll.training.config import DataConfig, InnerConfig, ModelConfig, TrainingConfig
from atoll.training.data import Lease, TextData
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.outer import OuterConfig, apply_mean

NO_DEFENCE = TrustConfig(clip_factor=0, aggregation="mean", max_share=1.0, copy_cosine=0.0)
LIMITS = LimitsConfig(max_tokens_per_round=2**40)
PEERS = [Identity.from_seed(bytes([1 + i]) * 32).peer_id for i in range(32)]


@dataclass(frozen=True)
class Setting:
    """How large an experiment is."""

    num_peers: int = 10
    num_rounds: int = 12
    num_steps: int = 10
    batch_size: int = 8
    speeds: tuple[int, ...] = (1,)
    """Inner steps of the peers, in turn, in multiples of ``num_steps``."""

    def training(self, seed: int) -> TrainingConfig:
        """The demo's recipe with shorter rounds."""
        return TrainingConfig(
            model=ModelConfig(init_seed=seed, dim=32, hidden_dim=96, sequence_length=32),
            data=DataConfig(seed=seed),
            inner=InnerConfig(num_steps=self.num_steps, batch_size=self.batch_size, max_steps=6 * self.num_steps),
            outer=OuterConfig(momentum_warmup_rounds=10),
        )

    def steps_of(self, peer: int) -> int:
        return self.num_steps * self.speeds[peer % len(self.speeds)]


@cache
def text(seed: int, sequence_length: int) -> TextData:
    return TextData.load(DataConfig(seed=seed), sequence_length)


@dataclass
class Swarm:
    """Peers that train together under ``trust``; ``num_malicious`` of them send what ``attack`` says."""

    setting: Setting
    trust: TrustConfig
    attack: str | None
    num_malicious: int
    seed: int
    num_refused: dict[str, float] = field(default_factory=dict[str, float])
    """Rule -> malicious contributions (or shares of their chunks) that it kept out."""
    num_honest_left_out: int = 0

    def __post_init__(self) -> None:
        self.config = self.setting.training(self.seed)
        self.data = text(self.seed, self.config.model.sequence_length)
        flips = [self.attack == "label_flip" and self._is_malicious(peer) for peer in self.peers]
        self.loops = [(FlippedLoop if each else InnerLoop)(self.config, self.data) for each in flips]
        self.anchor = initial_state(self.config.model)
        self.momentum = np.zeros_like(self.anchor)
        self.grid = ChunkGrid(self.anchor.size, 8192, codec("int8"))
        self.recent = Recent(self.grid)
        self.previous_mean: Vector | None = None
        self.previous_honest: list[Vector] = []
        self.firsts: dict[int, Vector] = {}

    @property
    def peers(self) -> range:
        return range(self.setting.num_peers)

    @property
    def malicious(self) -> list[int]:
        return [peer for peer in self.peers if self._is_malicious(peer)]

    def _is_malicious(self, peer: int) -> bool:
        # Spread over the plan: neither all first nor all last.
        return self.attack is not None and (peer * self.num_malicious) % self.setting.num_peers < self.num_malicious

    def run(self) -> float:
        """Final validation loss, nats per byte. Raises `NonFiniteError` when the run is lost."""
        for number in range(1, self.setting.num_rounds + 1):
            self._round(number)
            if not np.isfinite(self.anchor).all():
                raise NonFiniteError("the weights are not finite any more")
        return self.loops[0].evaluate(self.anchor).loss

    def _round(self, number: int) -> None:
        trained = [self._train(number, peer) for peer in self.peers]
        honest = [delta for peer, delta in zip(self.peers, trained, strict=True) if not self._is_malicious(peer)]
        offered = [self._offer(self._sent(number, peer, trained, honest), number, peer) for peer in self.peers]
        present = [(peer, contribution) for peer, contribution in enumerate(offered) if contribution is not None]
        mean = self._reduce(number, present)
        apply_mean(self.anchor, self.momentum, mean, self.grid, self.config.outer.at(number))
        self.previous_mean, self.previous_honest = np.empty_like(self.anchor), honest
        self.grid.decode(mean, self.previous_mean)

    # --- members ------------------------------------------------------------------------------------------------------

    def _train(self, number: int, peer: int) -> Vector:
        inner, loop = self.config.inner, self.loops[peer]
        lease = Lease(((number - 1) * self.setting.num_peers + peer) * inner.lease_samples, inner.lease_samples)
        loop.load(self.anchor)
        for step in range(self.setting.steps_of(peer)):
            indices = lease.batch(step, inner.batch_size)
            assert indices is not None
            loop.step(self.data.batch(indices))
        return np.asarray(loop.pseudo_gradient(self.anchor))

    def _offer(self, values: Vector, number: int, peer: int) -> Contribution | None:
        encoded = self._encode(values)
        if not self._is_valid(encoded):
            if self.trust == NO_DEFENCE:
                raise NonFiniteError("a mean with a NaN")
            self._count("invalid encoding", 1)
            return None
        tokens = self.setting.steps_of(peer) * self.setting.batch_size * self.config.model.sequence_length
        if self._is_malicious(peer) and self.attack == "weight_inflation":
            tokens = 2**40
        return Contribution.of(self.grid, encoded.data, round_number=number, tokens=tokens)

    def _sent(self, number: int, peer: int, trained: Sequence[Vector], honest: Sequence[Vector]) -> Vector:
        own = trained[peer]
        if self.attack is None or not self._is_malicious(peer):
            return own
        known = Round(
            honest=list(honest),
            own=own,
            mean=np.mean(np.stack(honest), axis=0).astype(np.float32),
            previous_mean=self.previous_mean,
            previous_honest=self.previous_honest,
            first_own=self.firsts.get(peer),
            rank=self.malicious.index(peer),
            accomplice=trained[self.malicious[0]],
            random=np.random.default_rng([self.seed, number, peer]),
            shared=np.random.default_rng([self.seed, number]),
        )
        self.firsts.setdefault(peer, own)
        return ATTACKS[self.attack](known).astype(np.float32)

    def _encode(self, values: Vector) -> NDArray[np.uint8]:
        encoded = np.empty(self.grid.total_encoded, np.uint8)
        if np.isfinite(values).all():
            self.grid.encode(values, encoded)
        else:
            encoded[:] = 0xFF  # no encoder writes a NaN: its scales are NaN, too
        return encoded

    def _is_valid(self, encoded: NDArray[np.uint8]) -> bool:
        try:
            for chunk in range(self.grid.num_chunks):
                self.grid.codec.check(encoded[self.grid.encoded_range(chunk)], self.grid.chunk_length(chunk))
        except InvalidEncoding:
            return False
        return True

    # --- the owner ----------------------------------------------------------------------------------------------------

    def _reduce(self, number: int, present: Sequence[tuple[int, Contribution]]) -> NDArray[np.uint8]:
        plan = self._plan(number, present)
        self.recent.begin(plan)
        samples = SpanSamples(self.recent, plan, range(self.grid.num_chunks), self.trust)
        encoded = [contribution.encoded for _, contribution in present]
        members = self._fit(plan, encoded, samples)
        each = self._weigh(plan, members)
        mean = np.empty(self.grid.total_encoded, np.uint8)
        for chunk in range(self.grid.num_chunks):
            part = self.grid.encoded_range(chunk)
            datas = [encoded[i][part] for i in members]
            reduced = reduce_chunk(self.grid, chunk, datas, [each[i] for i in members], self.trust.aggregation)
            mean[part] = reduced.encoded
            for left_out in reduced.left_out:
                self._count("disagreement", 1 / self.grid.num_chunks, plan.members[members[left_out.contribution]].peer)
        self._remember(plan, samples, members, mean)
        return mean

    def _fit(self, plan: Plan, encoded: Sequence[memoryview], samples: SpanSamples) -> list[int]:
        """Who of the plan's members, by index, is in: as an owner finds out, one chunk after another."""
        refused = admission.refusals(plan.members) if self.trust != NO_DEFENCE else {}
        chunk = 0
        while self.trust.copy_cosine and chunk < self.grid.num_chunks:
            members = [i for i in range(len(encoded)) if i not in refused]
            part = self.grid.encoded_range(chunk)
            copies = samples.look(chunk, {i: encoded[i][part] for i in members}, members)
            refused |= copies
            chunk = 0 if copies else chunk + 1
        for member, refusal in refused.items():
            self._count(refusal.rule, 1, plan.members[member].peer)
        return [i for i in range(len(encoded)) if i not in refused]

    def _weigh(self, plan: Plan, members: Sequence[int]) -> Sequence[float]:
        return weights(plan, [i in members for i in range(len(plan.members))], self.trust, LIMITS)

    def _remember(self, plan: Plan, samples: SpanSamples, members: Sequence[int], mean: NDArray[np.uint8]) -> None:
        if self.trust.copy_cosine:
            parts = ((c, mean[self.grid.encoded_range(c)]) for c in range(self.grid.num_chunks))
            means = [self.recent.sampler.sample(chunk, part.data) for chunk, part in parts]
            self.recent.offer(plan, samples.finish(members, means))
            self.recent.decide(plan)

    def _count(self, rule: str, share: float, peer: PeerId | None = None) -> None:
        if peer is not None and not self._is_malicious(PEERS.index(peer)):
            self.num_honest_left_out += 1
        else:
            self.num_refused[rule] = self.num_refused.get(rule, 0) + share

    def _plan(self, number: int, present: Sequence[tuple[int, Contribution]]) -> Plan:
        peers = tuple(PEERS[peer] for peer, _ in present)
        return Plan(
            lineage=0,
            fragment=0,
            round=number,
            ballot=0,
            leader=peers[0],
            parent="0" * 64,
            parent_state="0" * 64,
            members=tuple(
                Member(peer=PEERS[peer], tokens=c.tokens, commitment=c.commitment, squared_norm=c.squared_norm)
                for peer, c in present
            ),
            spans=(Span(first_chunk=0, num_chunks=self.grid.num_chunks, owner=peers[0]),),
            roster=peers,
            next_roster=peers,
            data_cursor=0,
            rules="0" * 64,
            attempt_timeout_s=60.0,
        )
