"""Who is let in at each simulated node, by the real doorkeeper's judgement, and what joiners show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..doorkeeper import Doorkeeper
from ..identity import PeerId
from ..invites import InviteFile
from ..messages import Heartbeat, Message
from ..standing import Standing
from ..transport import RemoteProtocolError
from .nodes import Node

if TYPE_CHECKING:
    from .faulty import FaultySwarm


class Doors:
    """The gates of one swarm (`gate.Gate`, without its allowances)."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        self._keepers: dict[PeerId, Doorkeeper] = {}
        self._shut_out: dict[PeerId, frozenset[PeerId]] = {}
        self._known: dict[PeerId, set[PeerId]] = {}
        """Whom each node lets in for the rest of its round, whatever they show."""
        self.invitations: dict[PeerId, InviteFile] = {}
        """What joiners have been given."""

    def start(self, node: Node) -> None:
        """The process is new: what strangers have shown is forgotten."""
        self._keepers.pop(node.peer, None)
        self._known.pop(node.peer, None)

    def begin(self, node: Node) -> None:
        """A round begins: go by its rules, and show an invite as long as the run needs to see it."""
        assert node.state is not None
        rules = node.state.rules
        self._shut_out[node.peer], self._known[node.peer] = frozenset(rules.standing.ejected), set()
        node.greeted = {}
        self._keeper_of(node).obey(rules.genesis)
        given = self.invitations.get(node.peer)
        is_known = given is None or rules.standing.admits(rules.genesis, node.peer)
        node.progress["ticket"] = None if is_known or given is None else given.ticket(node.peer)

    def admits(self, node: Node, sender: PeerId, body: Message) -> bool:
        """Whether a message passes a node's gate. A stranger's heartbeat may show an invite."""
        if sender in (known := self._known.setdefault(node.peer, set())):
            return True
        if sender in self._shut_out.get(node.peer, ()):
            return False
        keeper = self._keeper_of(node)
        if self._standing_of(node).admits(self._swarm.statutes.genesis_of(node), sender):
            known.add(sender)
            return True
        if keeper.admits(sender):
            return True
        if not keeper.takes_invites or not isinstance(body, Heartbeat) or body.ticket is None:
            return False
        try:
            keeper.present(sender, body.ticket)
        except RemoteProtocolError:
            return False
        return True

    def _keeper_of(self, node: Node) -> Doorkeeper:
        keeper = self._keepers.get(node.peer)
        if keeper is None:
            keeper = self._keepers[node.peer] = Doorkeeper(
                self._swarm.statutes.genesis_of(node),
                lambda: self._standing_of(node),
                lambda: self._swarm.now + self._swarm.wall_offset_s.get(node.peer, 0.0),
            )
        return keeper

    def _standing_of(self, node: Node) -> Standing:
        return node.state.rules.standing if node.state is not None else self._swarm.statutes.facts_of(node)["standing"]
