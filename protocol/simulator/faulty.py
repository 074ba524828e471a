"""A swarm under a fault schedule: the soup, with links that fail, disks that forget, clocks that jump, and trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import envelopes, outcomes, votes
from ..identity import PeerId
from ..messages import Commit, Member, Message
from ..round_machine import Action, Event, GiveUp, PeerView, Rules, Tick, Woke
from ..spec import Genesis, TimingConfig
from .faults import FaultSchedule
from .nodes import Disk, Node, Violation, soup_genesis
from .soup import Soup
from .trainers import NOTHING, Offer, Trainer

CALM_LATENCY_S = (0.01, 0.1)
TRAINING_S = (0.5, 2.5)
"""How long a contribution takes to train, before a slow peer's factor."""
LEASE_SAMPLES = 10
_RETRY_S = 1.0
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
    genesis = soup_genesis(schedule.num_peers)
    membership = genesis.membership.model_copy(update={"fault_tolerance": schedule.fault_tolerance})
    return genesis.model_copy(update={"timing": TIMING, "membership": membership})


class FaultySwarm(Soup):
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
        self.cut: set[tuple[PeerId, PeerId]] = set()
        self.slowness_s: dict[PeerId, float] = {}
        self.training_factor: dict[PeerId, float] = {}
        self.clock_offset_s: dict[PeerId, float] = {}
        self.asleep: dict[PeerId, list[Event]] = {}
        """Sleeping peers, with what they will hear when they wake."""
        self.abstained: dict[PeerId, int | None] = {}
        """On each disk: the round in which its owner must not vote."""
        self.lost_disks: set[PeerId] = set()
        """Peers whose folder is gone; the next start finds it empty."""
        super().__init__(genesis, seed=schedule.seed, latency_s=CALM_LATENCY_S, rules_type=self._rules)  # pyright: ignore[reportArgumentType]
        self.on_action = self._tell_action
        self.passes = lambda sender, receiver, _body: self.connects(sender, receiver)
        self.passes_bulk = self._passes_bulk

    # --- links --------------------------------------------------------------------------------------------------------

    def connects(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether anything gets from one to the other; two peers that only dial out never meet."""
        is_cut = (sender, receiver) in self.cut
        return not is_cut and (self.nodes[sender].reachable or self.nodes[receiver].reachable)

    def _passes_bulk(self, sender: PeerId, receiver: PeerId) -> bool:
        """A stream needs both directions, and a peer that answers."""
        if sender == receiver:
            return True
        is_awake = sender not in self.asleep and receiver not in self.asleep
        return is_awake and self.connects(sender, receiver) and self.connects(receiver, sender)

    def _deliver(self, sender: PeerId, receiver: PeerId, body: Message) -> None:
        extra_s = self.slowness_s.get(sender, 0.0) + self.slowness_s.get(receiver, 0.0)
        if sender == receiver or not extra_s:
            self._deliver_now(sender, receiver, body)
            return
        self.later(lambda: self._deliver_now(sender, receiver, body), self.random.uniform(0.0, extra_s))

    def _deliver_now(self, sender: PeerId, receiver: PeerId, body: Message) -> None:
        if self._is_timely(sender, receiver):
            super()._deliver(sender, receiver, body)

    def _is_timely(self, sender: PeerId, receiver: PeerId) -> bool:
        """What `Guard` and `Envelope.open` say of the expiry in the header, given how far the two clocks are apart."""
        ahead_s = self.clock_offset_s.get(sender, 0.0) - self.clock_offset_s.get(receiver, 0.0)
        return -envelopes.LIFETIME_S <= ahead_s <= envelopes.LIFETIME_S

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, peer: PeerId) -> None:
        """Start or restart a node from its disk, with its trainer from the checkpoint."""
        node = self.nodes[peer]
        self.trainers[peer].restart()
        for ear in self.ears.start:
            ear(node)
        super().start(peer)

    def crash(self, peer: PeerId) -> None:
        super().crash(peer)
        self.asleep.pop(peer, None)

    def sleep(self, peer: PeerId) -> None:
        """Stop the process; its memory stays."""
        if self.nodes[peer].is_up:
            self.asleep.setdefault(peer, [])

    def wake(self, peer: PeerId) -> None:
        """Go on: the gap is noticed first, then what has queued up is read."""
        queued = self.asleep.pop(peer, None)
        if queued is None:
            return
        for event in (Woke(), Tick(), *queued):
            self.feed(self.nodes[peer], event)

    def feed(self, node: Node, event: Event) -> None:
        if node.peer not in self.asleep:
            super().feed(node, event)
        elif not isinstance(event, Tick):
            self.asleep[node.peer].append(event)

    def restart_empty(self, peer: PeerId) -> None:
        """Start with an empty folder: load the newest state that somebody reachable has, before taking part."""
        donors = [node for node in self.nodes.values() if node.is_up and self._passes_bulk(node.peer, peer)]
        if not donors:
            self.later(lambda: self.restart_empty(peer), _RETRY_S)
            return
        donor = max(donors, key=lambda node: len(node.disk.commits))
        node = self.nodes[peer]
        if node.is_up:
            return
        node.disk = Disk(commits=list(donor.disk.commits))
        self.lost_disks.discard(peer)
        self.trainers[peer].checkpoint = None
        roster = node.disk.commits[-1].record.plan.next_roster if node.disk.commits else self.genesis.membership.roster
        self.abstained[peer] = votes.abstained_at_open(node.round, is_member=peer in roster)
        self.start(peer)

    def enter(self, peer: PeerId) -> None:
        """A joiner appears."""
        self.nodes[peer] = Node(peer)
        self.restart_empty(peer)
        self._beat(peer)

    def _rules(self, **facts: Any) -> Rules:
        disk = self.nodes[facts["me"]].disk
        abstain = votes.is_forgotten(facts["round"], disk.acceptors, self.abstained.get(facts["me"]))
        return Rules(**facts, abstain=abstain)

    def _begin(self, node: Node, peers: dict[PeerId, PeerView]) -> None:
        super()._begin(node, peers)
        trainer = self.trainers[node.peer]
        if node.state is not None and (trainer.position is None or trainer.position.round != node.state.rules.round):
            trainer.begin(node.state.rules, trainer.missed)
        self._train(node)

    # --- training -----------------------------------------------------------------------------------------------------

    def _train(self, node: Node) -> None:
        trainer = self.trainers[node.peer]
        generation, factor = trainer.generation, self.training_factor.get(node.peer, 1.0)
        self.later(lambda: self._end_training(node, generation), factor * self.random.uniform(*TRAINING_S))

    def _end_training(self, node: Node, generation: int) -> None:
        trainer = self.trainers[node.peer]
        if trainer.generation != generation or not node.is_up or trainer.pending is not None:
            return
        if node.peer in self.held_back or node.peer in self.asleep:
            self.later(lambda: self._end_training(node, generation), 0.1)
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
        self.contribute(node.peer, tokens=max(1, len(offer.samples)), commitment=offer.commitment)

    def _sends(self, member: Member, owner: PeerId, plan_id: str) -> bool:
        """A member whose contribution is another one by now is refused: the bytes do not match the commitment."""
        pending = self.trainers[member.peer].pending
        is_offered = pending is not None and pending.commitment == member.commitment
        return is_offered and super()._sends(member, owner, plan_id)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def _tell_action(self, node: Node, action: Action) -> None:
        for ear in self.ears.action:
            ear(node, action)

    def perform(self, node: Node, action: Action) -> None:
        super().perform(node, action)
        if isinstance(action, GiveUp):
            self.trainers[node.peer].aborted()
            self._train(node)

    def _decide(self, node: Node, commit: Commit) -> None:
        trainer, number = self.trainers[node.peer], commit.record.plan.round
        outcome = outcomes.committed(commit, "", node.peer)
        for ear in self.ears.decision:
            ear(node, commit, outcome.counted)
        trainer.missed = trainer.after_commit(number, counted=outcome.counted)
        super()._decide(node, commit)
        trainer.missed = NOTHING
        for past in [past for past in node.disk.acceptors if past <= number - _KEPT_VOTES]:
            del node.disk.acceptors[past]


__all__ = ["FaultySwarm", "Violation", "genesis_of"]
