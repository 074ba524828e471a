"""A run spec laid over a trace: builds the world, lets happen what the trace says, and reports.

The round machine, the quorum rule, the limits and times are the spec's; sizes are those of its model unless the trace
has others. A seed replays everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...kernels.chunk_grid import ChunkGrid
from ...kernels.codec import codec
from ..identity import PeerId
from ..messages import Commit
from ..spec import Genesis, SpecError
from .behaviours import BEHAVIOURS
from .network import Link, NetworkModel, Path
from .nodes import Node, people
from .report import Recorder, Report, RoundRow
from .steps import StepRuleName, step_rule
from .traces import EventConfig, PeerGroup, Trace
from .trainers import InnerLoop, Trainers
from .world import World

_MAX_SPARE = 16
"""Peers beyond the roster that a trace may let join."""
_PATIENCE_ROUNDS = 20
"""A run without a commit for so many rounds' time is over."""


@dataclass(frozen=True)
class Workload:
    """What a run spec's training tables come to."""

    num_parameters: int
    num_steps: int
    max_steps: int
    tokens_per_step: int
    samples_per_step: int


class Scenario:
    """A world with a trace's peers, trainers and faults. ``on_round`` is called at each round's first decision."""

    def __init__(
        self,
        genesis: Genesis,
        workload: Workload,
        trace: Trace,
        *,
        num_peers: int,
        seed: int = 0,
        steps: StepRuleName = "fixed",
        on_round: Callable[[RoundRow], None] = lambda _row: None,
    ) -> None:
        self.trace, self._num_peers, self._on_round = trace, num_peers, on_round
        peers = people(num_peers + _MAX_SPARE)
        self.spare = peers[num_peers:]
        self.genesis = with_peers(genesis, peers[:num_peers], self.spare, trace)
        self.grid = grid_of(self.genesis, workload, trace)
        self.world = World(
            self.genesis,
            seed=seed,
            network=NetworkModel(),
            num_chunks=self.grid.num_chunks,
            contribution_bytes=self.grid.total_encoded,
            state_bytes=8.0 * self.grid.num_elements,  # weights and momentum, float32
            lease_samples=workload.max_steps * workload.samples_per_step,
        )
        groups = self._deal(peers[:num_peers])
        self._connect(groups)
        loop = inner_loop(workload, trace)
        self.trainers = Trainers(self.world, loop, step_rule(steps, loop), self._speeds(groups), trace.compute.drift)
        self.expected_round_s = loop.num_steps * loop.step_s + loop.encode_s
        self.recorder = Recorder(self.world, self.trainers)
        self._hook()
        self._begin_days()
        self._round_began(1)

    # --- building -----------------------------------------------------------------------------------------------------

    def _deal(self, peers: list[PeerId]) -> dict[PeerId, PeerGroup]:
        """Which peer is of which group: neighbours in the roster are of the same."""
        counts = self.trace.counts(len(peers))
        dealt = [group for group, count in zip(self.trace.groups, counts, strict=True) for _ in range(count)]
        return dict(zip(peers, dealt, strict=True))

    def _connect(self, groups: dict[PeerId, PeerGroup]) -> None:
        network, draw = self.trace.network, self.world.random.uniform
        model = NetworkModel(
            latency_s=network.latency_s,
            loss=network.loss,
            duplication=network.duplication,
            links={
                peer: Link(
                    up_bps=draw(*group.up_bps) * network.efficiency,
                    down_bps=draw(*group.down_bps) * network.efficiency,
                    is_dial_out_only=group.dial_out_only,
                    region=group.name,
                )
                for peer, group in groups.items()
            },
            paths={path.between: Path(path.latency_s, path.bps * network.efficiency) for path in self.trace.paths},
            has_relay=network.relay,
        )
        self.world.set_network(model)
        for peer, group in groups.items():
            self.world.nodes[peer].behaviour = BEHAVIOURS[group.behaviour]()

    def _speeds(self, groups: dict[PeerId, PeerGroup]) -> dict[PeerId, float]:
        members: dict[str, int] = {}
        speeds: dict[PeerId, float] = {}
        for peer, group in groups.items():
            place = members[group.name] = members.get(group.name, -1) + 1
            speeds[peer] = group.speeds[place % len(group.speeds)]
        return speeds

    def _hook(self) -> None:
        give_up = self.world.on_give_up

        def on_give_up(node: Node, tokens: int) -> None:
            self.recorder.on_give_up(node)
            give_up(node, tokens)

        def on_decide(_node: Node, commit: Commit) -> None:
            if self.recorder.on_decide(commit):
                self._on_round(self.recorder.rows[-1])
                self._round_began(commit.record.plan.round + 1)

        self.world.on_give_up, self.world.on_decide = on_give_up, on_decide

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, num_rounds: int) -> Report:
        """Until so many rounds are decided, or none has been for a long time."""
        self._goal = num_rounds
        while len(self.recorder.rows) < num_rounds:
            before = len(self.recorder.rows)
            self.world.run(_PATIENCE_ROUNDS * (self.expected_round_s + self.genesis.timing.quorum_timeout_s))
            if len(self.recorder.rows) == before:
                break
        return self.recorder.report()

    _goal = 0

    def _round_began(self, number: int) -> None:
        if self._goal and number > self._goal:
            self.world.stop()
            return
        for event in self.trace.events:
            if event.round == number:
                self.world.at(self.world.now + event.after_s, self._happen, event)
        self._churn()

    def _churn(self) -> None:
        churn, world = self.trace.churn, self.world
        if not churn.leaving_per_round:
            return
        for peer in list(world.nodes):
            if world.random.random() < churn.leaving_per_round:
                world.at(world.now + world.random.uniform(0, self.expected_round_s), self._leave, peer, churn.away_s)

    def _leave(self, peer: PeerId, away_s: tuple[float, float]) -> None:
        if self.world.nodes[peer].is_up:
            self.world.crash(peer)
            self.world.at(self.world.now + self.world.random.uniform(*away_s), self._return, peer)

    def _return(self, peer: PeerId) -> None:
        if not self.world.nodes[peer].is_up:
            self.world.start(peer)

    def _begin_days(self) -> None:
        """Each peer keeps hours of its own: the mornings are spread evenly over the day."""
        churn, world = self.trace.churn, self.world
        if not churn.day_s or churn.awake_share >= 1:
            return
        for place, peer in enumerate(world.nodes):
            since_s = churn.day_s * place / len(world.nodes)  # how long ago its morning was
            left_s = churn.awake_share * churn.day_s - since_s
            if left_s > 0:
                world.at(left_s, self._evening, peer)
            else:
                world.crash(peer)
                world.at(churn.day_s - since_s, self._morning, peer)

    def _evening(self, peer: PeerId) -> None:
        self.world.crash(peer)
        churn = self.trace.churn
        self.world.at(self.world.now + (1 - churn.awake_share) * churn.day_s, self._morning, peer)

    def _morning(self, peer: PeerId) -> None:
        self._return(peer)
        churn = self.trace.churn
        self.world.at(self.world.now + churn.awake_share * churn.day_s, self._evening, peer)

    def _happen(self, event: EventConfig) -> None:
        """One of the trace's events, to peers drawn from those whom it can befall."""
        world, count = self.world, event.num_peers
        nodes = world.nodes
        match event.what:
            case "crash" | "sleep":
                running = [peer for peer in nodes if nodes[peer].is_running]
                for peer in world.random.sample(running, min(count, len(running))):
                    (world.crash if event.what == "crash" else world.sleep)(peer)
            case "start":
                for peer in [peer for peer in nodes if not nodes[peer].is_up][:count]:
                    world.start(peer)
            case "wake":
                for peer in [peer for peer in nodes if nodes[peer].is_asleep][:count]:
                    world.wake(peer)
            case "join":
                for peer in [peer for peer in self.spare if peer not in nodes][:count]:
                    world.network.set_link(peer, world.network.link_of(next(iter(nodes))))
                    world.join(peer)
            case "partition":
                peers = world.random.sample(list(nodes), len(nodes))
                world.partition(peers[:count], peers[count:])
            case "heal":
                world.heal()


def grid_of(genesis: Genesis, workload: Workload, trace: Trace) -> ChunkGrid:
    """The chunk grid of the trace's model, or of the spec's."""
    exchange = genesis.exchange
    num_parameters = int(trace.num_parameters or workload.num_parameters)
    return ChunkGrid(num_parameters, exchange.chunk_elements, codec(exchange.codec))


def inner_loop(workload: Workload, trace: Trace) -> InnerLoop:
    """What a round's training takes at speed 1."""
    compute = trace.compute
    num_steps = compute.num_steps or workload.num_steps
    max_steps = max(workload.max_steps * num_steps // workload.num_steps, num_steps)
    return InnerLoop(num_steps, max_steps, workload.tokens_per_step, compute.step_s, compute.encode_s)


def with_peers(genesis: Genesis, roster: list[PeerId], spare: list[PeerId], trace: Trace) -> Genesis:
    """``genesis`` with simulated peers instead of its own. Raises `SpecError` if it has no room for them."""
    limit = genesis.limits.max_peers
    if len(roster) > limit:
        raise SpecError([f"{genesis.name}: limits.max_peers is {limit}; simulate fewer, or use --topology two_tier"])
    membership = {**genesis.membership.model_dump(mode="json"), "roster": roster, "allowed": spare, "mode": "listed"}
    changes: dict[str, object] = {"membership": membership}
    if trace.timing is not None:
        changes["timing"] = trace.timing.model_dump(mode="json")
    return genesis.amended(changes)
