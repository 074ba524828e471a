"""A swarm under a fault schedule: a world with links that fail, disks that forget, clocks that jump, and trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .. import outcomes, sealing, votes
from ..identity import PeerId
from ..messages import Commit
from ..round_machine import Action, Event, GiveUp, Received, Rules
from ..spec import Genesis, TimingConfig
from .faults import FaultSchedule
from .nodes import Disk, Node, world_genesis
from .samples import NOTHING, Offer, Trainer
from .world import World

CALM_LATENCY_S = (0.01, 0.1)
TRAINING_S = (0.5, 2.5)
"""How long a contribution takes to train, before a slow peer's factor."""
_RETRY_S = 1.0
_LOOK_AGAIN_S = 0.1
_KEPT_VOTES = 16

TIMING = TimingConfig(
    heartbeat_interval_s=1,
    heartbeat_timeout_s=4,
    drop_after_s=16,
    ready_grace_s=5,
    progress_timeout_s=3,
    attempt_timeout_s=10,
    quorum_timeout_s=60,
)
"""Short, so that a storm of a minute can break everything."""


@dataclass
class Ears:
    """Who wants to know what happens; every callable is called before the thing is done."""

    action: list[Callable[[Node, Action], None]] = field(default_factory=list[Callable[[Node, Action], None]])
    offer: list[Callable[[Node, Offer], None]] = field(default_factory=list[Callable[[Node, Offer], None]])
    decision: list[Callable[[Node, Commit, bool], None]] = field(
        default_factory=list[Callable[[Node, Commit, bool], None]]
    )
    """Node, commit, and whether it counts for the node by the node's own judgement."""
    start: list[Callable[[Node], None]] = field(default_factory=list[Callable[[Node], None]])


def genesis_of(schedule: FaultSchedule) -> Genesis:
    """The run of a schedule: its founders are the roster, its joiners are allowed."""
    genesis = world_genesis(schedule.num_peers)
    membership = genesis.membership.model_copy(update={"fault_tolerance": schedule.fault_tolerance})
    return genesis.model_copy(update={"timing": TIMING, "membership": membership})


class FaultySwarm(World):
    """Nodes with trainers on a network that can be cut, and whatever else faults need. `Injector` drives it."""

    def __init__(self, schedule: FaultSchedule) -> None:
        genesis = genesis_of(schedule)
        founders = genesis.membership.roster
        self.people: tuple[PeerId, ...] = (*founders, *genesis.membership.allowed[: schedule.num_joiners])
        self.ears = Ears()
        self.offers: dict[str, Offer] = {}
        """Every contribution that was ever offered, by commitment."""
        self.trainers = {peer: Trainer(peer) for peer in self.people}
        self.held_back: set[PeerId] = set()
        """Trainers that do not contribute until they are let go."""
        self.slowness_s: dict[PeerId, float] = {}
        self.training_factor: dict[PeerId, float] = {}
        self.wall_offset_s: dict[PeerId, float] = {}
        """How far wall clocks are off; nothing but the expiry of messages goes by them."""
        self.abstentions: dict[PeerId, votes.Abstention | None] = {}
        """On each disk: the rounds in which its owner must not vote."""
        self.handled: Event | None = None
        """What the node that acts at present acts upon."""
        self.left_s: dict[PeerId, float] = {}
        """When a peer said last that it leaves."""
        self.lost_disks: set[PeerId] = set()
        """Peers whose folder is gone; the next start finds it empty."""
        super().__init__(genesis, seed=schedule.seed, latency_s=CALM_LATENCY_S, rules_type=self._rules)  # pyright: ignore[reportArgumentType]
        self.on_action, self.on_begin = self._tell_action, self._begin_training
        for node in self.nodes.values():
            self._begin_training(node)

    def feed(self, node: Node, event: Event) -> None:
        self.handled = event
        super().feed(node, event)

    # --- messages -----------------------------------------------------------------------------------------------------

    def deliver(self, receiver: PeerId, event: Received) -> None:
        extra_s = self.slowness_s.get(event.sender, 0.0) + self.slowness_s.get(receiver, 0.0)
        if event.sender == receiver or not extra_s:
            self._deliver_now(receiver, event)
        else:
            self.at(self.now + self.random.uniform(0.0, extra_s), self._deliver_now, receiver, event)

    def _deliver_now(self, receiver: PeerId, event: Received) -> None:
        if self._is_timely(event.sender, receiver):
            super().deliver(receiver, event)

    def _is_timely(self, sender: PeerId, receiver: PeerId) -> bool:
        """What `Guard` and `Envelope.open` say of the expiry in the header, given how far the two clocks are apart."""
        ahead_s = self.wall_offset_s.get(sender, 0.0) - self.wall_offset_s.get(receiver, 0.0)
        return -sealing.LIFETIME_S <= ahead_s <= sealing.LIFETIME_S

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, peer: PeerId) -> None:
        """Start or restart a node from its disk, with its trainer from the checkpoint."""
        node = self.nodes[peer]
        self.trainers[peer].restart()
        for ear in self.ears.start:
            ear(node)
        super().start(peer)

    def restart_empty(self, peer: PeerId) -> None:
        """Start with an empty folder: load the newest state that somebody reachable has, before taking part."""
        donors = [node for node in self.nodes.values() if node.is_running and self.connects(node.peer, peer)]
        if not donors:
            self.at(self.now + _RETRY_S, self.restart_empty, peer)
            return
        donor = max(donors, key=lambda node: len(node.disk.commits))
        node = self.nodes[peer]
        if node.is_up:
            return
        node.disk = Disk(commits=list(donor.disk.commits))
        self.lost_disks.discard(peer)
        self.trainers[peer].checkpoint = None
        roster = node.disk.commits[-1].record.plan.next_roster if node.disk.commits else self.genesis.membership.roster
        self.abstentions[peer] = votes.abstention_at_open(node.round, len(roster), is_member=peer in roster)
        self.start(peer)

    def enter(self, peer: PeerId) -> None:
        """A joiner appears."""
        self.nodes[peer] = Node(peer)
        self.restart_empty(peer)
        self.heartbeats.begin(peer, len(self.nodes))

    def _rules(self, **facts: Any) -> Rules:
        rules = Rules(**facts)
        acceptors = self.nodes[rules.me].disk.acceptors
        return replace(rules, abstain=votes.is_forgotten(rules.round, acceptors, self.abstentions.get(rules.me)))

    # --- training -----------------------------------------------------------------------------------------------------

    def _begin_training(self, node: Node) -> None:
        trainer = self.trainers[node.peer]
        if node.state is not None and (trainer.position is None or trainer.position.round != node.round):
            trainer.begin(node.state.rules, trainer.missed)
        self._train(node)

    def _train(self, node: Node) -> None:
        trainer = self.trainers[node.peer]
        generation, factor = trainer.generation, self.training_factor.get(node.peer, 1.0)
        self.at(self.now + factor * self.random.uniform(*TRAINING_S), self._end_training, node, generation)

    def _end_training(self, node: Node, generation: int) -> None:
        trainer = self.trainers[node.peer]
        if trainer.generation != generation or not node.is_up or trainer.pending is not None:
            return
        if node.peer in self.held_back or node.is_asleep:
            self.at(self.now + _LOOK_AGAIN_S, self._end_training, node, generation)
            return
        offer = trainer.train()
        if self.random.random() < 0.5:
            trainer.save()
        if offer is not None and node.state is not None and node.state.rules.round == offer.round:
            self._offer(node, offer)

    def contribute_now(self, peer: PeerId) -> None:
        """End the training that goes on, if any."""
        node, trainer = self.nodes[peer], self.trainers[peer]
        trainer.generation += 1
        self._end_training(node, trainer.generation)

    def _offer(self, node: Node, offer: Offer) -> None:
        for ear in self.ears.offer:
            ear(node, offer)
        self.offers[offer.commitment] = offer
        self.contribute(node.peer, tokens=max(1, len(offer.samples)))

    def commitment_of(self, node: Node, rules: Rules) -> str:
        pending = self.trainers[node.peer].pending
        return super().commitment_of(node, rules) if pending is None else pending.commitment

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def _tell_action(self, node: Node, action: Action) -> None:
        for ear in self.ears.action:
            ear(node, action)

    def perform(self, node: Node, action: Action) -> None:
        super().perform(node, action)
        if isinstance(action, GiveUp):
            self.trainers[node.peer].aborted()
            self._train(node)

    def _apply(self, node: Node, commit: Commit) -> None:
        trainer, number = self.trainers[node.peer], commit.record.plan.round
        if votes.is_alive_in(commit, node.peer, node.num_starts):
            self.abstentions[node.peer] = None
        outcome = outcomes.committed(commit, "", node.peer)
        for ear in self.ears.decision:
            ear(node, commit, outcome.counted)
        trainer.missed = trainer.after_commit(number, counted=outcome.counted)
        super()._apply(node, commit)
        trainer.missed = NOTHING
        for past in [past for past in node.disk.acceptors if past <= number - _KEPT_VOTES]:
            del node.disk.acceptors[past]
