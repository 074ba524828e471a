"""Evidence in a simulated swarm: symbolic, and true. It spreads, is asked for and is judged as `docket.Docket` does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ..identity import PeerId
from ..messages import PlanMessage, Proposal
from ..record import Plan
from ..round_machine import Proven, Received
from .nodes import Node, Proof

if TYPE_CHECKING:
    from .faulty import FaultySwarm


class Courts:
    """The dockets of one swarm's nodes; what each holds is on its disk."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        self.guilty: set[PeerId] = set()
        """Peers against whom there is true evidence somewhere."""

    def find(self, node: Node, accused: PeerId, *, is_lie: bool) -> None:
        """A node has evidence now: kept, and spread to its roster."""
        state = node.state
        if state is None or accused == node.peer or accused not in state.rules.roster:
            return
        proof = Proof(accused, state.rules.genesis.rules_id if is_lie else None, state.rules.round)
        self.guilty.add(accused)
        self._accept(node, proof)
        others = (peer for peer in state.rules.roster if peer not in (node.peer, accused))
        for peer in others:
            self._swarm.later(partial(self._offer, node, peer, proof))

    def note(self, node: Node, event: Received) -> bool:
        """As `oversight.Oversight.note`: ask for what a plan's ejections rest on. False: do not act on it now."""
        body = event.body
        if not isinstance(body, PlanMessage | Proposal) or node.state is None:
            return True
        plan = body.plan if isinstance(body, PlanMessage) else body.record.plan
        if event.sender not in node.state.rules.roster:
            return True
        if isinstance(body, PlanMessage):
            self._remind(node, event.sender, plan)
        return self._is_justified(node, event.sender, plan)

    def _remind(self, node: Node, leader: PeerId, plan: Plan) -> None:
        """As `oversight.Oversight`: give a leader what it lacks that counts on somebody who is proven to lie."""
        assert node.state is not None
        for accused in sorted({leader, *(PeerId(span.owner) for span in plan.spans)} & node.disk.proofs.keys()):
            receivers = (leader,) if leader != accused else node.state.rules.roster
            for peer in (peer for peer in receivers if peer not in (node.peer, accused)):
                self._swarm.later(partial(self._offer, node, peer, node.disk.proofs[accused]))

    def _is_justified(self, node: Node, sender: PeerId, plan: Plan) -> bool:
        assert node.state is not None
        rules = node.state.rules
        missing = set(plan.ejected) - set(rules.standing.ejected) - node.disk.proofs.keys()
        for accused in sorted(missing.intersection(rules.roster)):
            self._swarm.later(partial(self._seek, node, accused, (sender, *rules.roster)))
        return not missing

    def _seek(self, node: Node, accused: PeerId, peers: Iterable[PeerId]) -> None:
        for peer in peers:
            other = self._swarm.nodes.get(peer)
            if other is None or peer in (node.peer, accused) or not self._meets(other, node):
                continue
            proof = other.disk.proofs.get(accused)
            if proof is not None and self._accept(node, proof):
                return

    def _offer(self, sender: Node, peer: PeerId, proof: Proof) -> None:
        receiver = self._swarm.nodes.get(peer)
        if receiver is not None and self._meets(sender, receiver):
            self._accept(receiver, proof)

    def _meets(self, sender: Node, receiver: Node) -> bool:
        """Whether a stream moves between two nodes, both ways."""
        connects = self._swarm.connects
        is_linked = connects(sender.peer, receiver.peer) and connects(receiver.peer, sender.peer)
        return sender.is_running and receiver.is_running and is_linked

    def _accept(self, node: Node, proof: Proof) -> bool:
        """Judge and keep, then tell the machine. False: it cannot be judged here."""
        state = node.state
        if state is None or proof.accused not in state.rules.roster:
            return False
        if proof.accused in node.disk.proofs:
            return True
        rules = self._swarm.statutes.rules_of(node)
        if proof.rules is not None and rules.once(proof.rules, proof.round) is None:
            return False  # `evidence.OtherRules`
        node.disk.proofs[proof.accused] = proof
        self._swarm.feed(node, Proven(proof.accused))
        return True
