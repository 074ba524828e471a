"""Messages between simulated nodes: what a node says on its way, and which of its parts takes what it hears."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..identity import PeerId
from ..messages import OF_THE_UNDECIDED, Commit, CommitRequest, Heartbeat, Message, Vote, round_of
from ..round_machine import Event, Received
from .nodes import Node

if TYPE_CHECKING:
    from .world import World


class Mail:
    """A world's post. Signatures are stubs: `World.checks` knows which votes were truly given."""

    def __init__(self, world: World) -> None:
        self._world = world

    def post(self, node: Node, to: Iterable[PeerId], body: Message) -> None:
        """Send a message; one to ourselves arrives at once, whatever the network does."""
        world, sender = self._world, node.peer
        honest = Received(sender, body, self._seal(node, body))
        for receiver in to:
            event = honest if node.is_honest else self._as_said(node, receiver, body)
            if event is None or receiver not in world.nodes:
                continue
            if receiver == sender:
                world.at(world.now, world.deliver, receiver, event)
            elif world.passes(sender, receiver, event.body):
                for delay_s in world.network.delays_s(sender, receiver):
                    world.at(world.now + delay_s, world.deliver, receiver, event)

    def _as_said(self, node: Node, receiver: PeerId, body: Message) -> Received | None:
        said = node.behaviour.says(receiver, body)
        return None if said is None else Received(node.peer, said, self._seal(node, said))

    def envelope(self, node: Node) -> bytes:
        """The stub of an envelope of a node that says something now."""
        return b""

    def lets_in(self, node: Node, sender: PeerId, body: Message, raw: bytes) -> bool:
        """Whether a message gets past the receiver's gate, its guard, and whatever else looks at all messages."""
        return True

    def _seal(self, node: Node, body: Message) -> bytes:
        """Only votes' envelopes are ever quoted."""
        if not isinstance(body, Vote):
            return self.envelope(node)
        self._world.checks.check_vote(node, body)
        return self._world.checks.paper(node.peer, body)

    def take(self, node: Node, event: Event) -> None:
        """Messages of this round go to the machine, those of the next wait, those of past ones get the commit."""
        if not isinstance(event, Received) or isinstance(event.body, Heartbeat):
            self._world.feed(node, event)
            return
        number, body = round_of(event.body), event.body
        if isinstance(body, CommitRequest):
            self._send_commit(node, event.sender, number)
        elif number == node.round:
            self._world.feed(node, event)
        elif number < node.round and isinstance(body, OF_THE_UNDECIDED):
            self._send_commit(node, event.sender, number)
        elif number > node.round and isinstance(body, Commit):
            self.post(node, (event.sender,), CommitRequest(fragment=0, round=node.round))
        elif number == node.round + 1:
            node.early[event.sender, body.kind] = event

    def _send_commit(self, node: Node, to: PeerId, number: int) -> None:
        if number < node.round:
            self.post(node, (to,), node.disk.commits[number - 1])
