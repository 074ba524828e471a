"""A swarm under a fault schedule: a world with links that fail, disks that forget, clocks that jump, and trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import outcomes, sealing, votes
from ..identity import PeerId
from ..messages import Commit
from ..round_machine import Action, Event, GiveUp, PeerView, Received, Rules, Tick
from .charter import Charter
from .courts import Courts
from .doors import Doors
from .faults import FaultSchedule
from .guarded import GuardedMail
from .mail import Mail
from .nodes import Disk, Node, people
from .remembering import Remembering
from .samples import NOTHING, Offer, Trainer
from .statutes import Statutes
from .world import World

CALM_LATENCY_S = (0.01, 0.1)
TRAINING_S = (0.5, 2.5)
"""How long a contribution takes to train, before a slow peer's factor."""
_RETRY_S = 1.0
_LOOK_AGAIN_S = 0.1
_KEPT_VOTES = 16


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
    event: list[Callable[[Node, Event], None]] = field(default_factory=list[Callable[[Node, Event], None]])
    """Before a node's machine gets an event."""
    lineage: list[Callable[[Node], None]] = field(default_factory=list[Callable[[Node], None]])
    """A node leaves its lineage for the one that its rules name now."""


class FaultySwarm(World):
    """Nodes with trainers on a network that can be cut, and whatever else faults need. `Injector` drives it."""

    def __init__(self, schedule: FaultSchedule) -> None:
        self.schedule, self.charter = schedule, Charter(schedule)
        genesis = self.charter.genesis
        self.people = tuple(people(schedule.num_peers + schedule.num_joiners))
        self.statutes, self.doors = Statutes(self, self.charter), Doors(self)
        self.courts, self.remembering = Courts(self), Remembering(self)
        self.remembering.unsure.update(dict.fromkeys(genesis.membership.roster, 1))
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
        self.num_writes = 0
        """How often chains and rules on disks have changed."""
        self.lost_disks: set[PeerId] = set()
        """Peers whose folder is gone; the next start finds it empty."""
        super().__init__(genesis, seed=schedule.seed, latency_s=CALM_LATENCY_S)
        self.on_action, self.on_begin = self._tell_action, self._begin_training
        for node in self.nodes.values():
            self._begin_training(node)

    def _make_mail(self) -> Mail:
        return GuardedMail(self)

    def feed(self, node: Node, event: Event) -> None:
        self.handled = event
        if node.is_running:
            for ear in self.ears.event:
                ear(node, event)
        super().feed(node, event)
        if isinstance(event, Tick) and node.is_running:
            self.statutes.tick(node)
            self.remembering.ask(node)

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
        self.num_writes += 1
        for ear in self.ears.start:
            ear(node)
        self.doors.start(node)
        self.statutes.start(node)
        self.remembering.start(node, node.num_starts + 1)
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
        node.disk = Disk(commits=list(donor.disk.commits), rules=donor.disk.rules, lineage=donor.disk.lineage)
        node.progress["num_amendments"] = len(self.statutes.rules_of(node).amendments)
        self.lost_disks.discard(peer)
        self.remembering.lose(peer)
        self.trainers[peer].checkpoint = None
        roster = self.statutes.facts_of(node)["standing"].roster
        self.abstentions[peer] = votes.abstention_at_open(node.round, len(roster), is_member=peer in roster)
        if peer in roster and node.round == 1:
            self.remembering.unsure[peer] = node.num_starts + 1
        self.start(peer)

    def enter(self, peer: PeerId) -> None:
        """A joiner appears, with its invite if the run takes them."""
        self.nodes[peer] = Node(peer)
        place = self.people.index(peer) - self.schedule.num_peers
        if 0 <= place < len(self.schedule.invites):
            self.doors.invitations[peer] = self.charter.invitation(self.schedule.invites[place])
        self.restart_empty(peer)
        self.heartbeats.begin(peer, len(self.nodes))

    def _facts_of(self, node: Node) -> dict[str, Any]:
        facts, peer = super()._facts_of(node) | self.statutes.facts_of(node), node.peer
        is_forgotten = votes.is_forgotten(node.round, node.disk.acceptors, self.abstentions.get(peer))
        is_settled = self.statutes.rules_of(node).is_settled(node.round)
        node.abstains = is_forgotten or is_settled
        return facts | {
            "abstain": node.abstains or peer in self.remembering.unsure,
            "open_vote": partial(self.checks.open_vote, lineage=facts["genesis"].lineage),
            "began_unix_s": self.now + self.wall_offset_s.get(peer, 0.0),
            "proven": frozenset(node.disk.proofs),
        }

    def recollect(self, node: Node, *, has_forgotten: bool) -> None:
        """It is known now, as far as it can be, whether a founder has spoken before (`votes.VoteStore.recollect`)."""
        peer, state = node.peer, node.state
        if peer not in self.remembering.unsure or state is None:
            return  # a commit has told meanwhile
        del self.remembering.unsure[peer]
        if has_forgotten:
            self.abstentions[peer] = votes.abstention_after_loss(1, len(state.rules.roster))
        elif not self.statutes.rules_of(node).is_settled(node.round):
            node.state = replace(state, rules=replace(state.rules, abstain=False))

    # --- rules --------------------------------------------------------------------------------------------------------

    def cancel_attempt(self, node: Node) -> None:
        """Stop the exchange that goes on at a node, if any."""
        if node.state is not None and node.state.attempt is not None:
            self._exchanges.cancel(node, node.state.attempt.plan_id)

    def begin_round(self, node: Node, peers: dict[PeerId, PeerView]) -> None:
        """Begin the node's round anew, under the rules that it knows now; what was offered in it is offered again."""
        if not node.is_up:
            return
        self._begin(node, peers)
        pending = self.trainers[node.peer].pending
        if pending is not None and node.is_up and node.round == pending.round:
            self.contribute(node.peer, tokens=max(1, len(pending.samples)))

    def leave_lineage(self, node: Node) -> None:
        """What was being trained belongs to another state."""
        for ear in self.ears.lineage:
            ear(node)
        self.trainers[node.peer].restart()
        self.trainers[node.peer].checkpoint = None

    # --- training -----------------------------------------------------------------------------------------------------

    def _begin_training(self, node: Node) -> None:
        self.doors.begin(node)
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
        if node.state is None or node.state.decided is not commit:
            return  # its lineage has been left while its bytes were on their way
        if votes.is_alive_in(commit, node.peer, node.num_starts):
            self._end_abstention(node.peer, number)
        outcome = outcomes.committed(commit, "", node.peer)
        for ear in self.ears.decision:
            ear(node, commit, outcome.counted)
        trainer.missed = trainer.after_commit(number, counted=outcome.counted)
        self.num_writes += 1
        super()._apply(node, commit)
        trainer.missed = NOTHING
        for past in [past for past in node.disk.acceptors if past <= number - _KEPT_VOTES]:
            del node.disk.acceptors[past]

    def _end_abstention(self, peer: PeerId, number: int) -> None:
        """As `votes.VoteStore.end_abstention`: a commit holds work of this life."""
        abstention = self.abstentions.get(peer)
        if peer in self.remembering.unsure or (abstention is not None and abstention.until_counted):
            self.remembering.unsure.pop(peer, None)
            self.abstentions[peer] = votes.Abstention(number, until_counted=False)
