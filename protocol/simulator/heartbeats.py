"""Heartbeats of simulated nodes, and the ticks that go with them: most of what happens in a world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..identity import PeerId
from ..messages import Heartbeat
from ..round_machine import PeerView, Received, Tick, is_routine
from .nodes import Node, state_hash

if TYPE_CHECKING:
    from .world import World

_TICKS_PER_HEARTBEAT = 2


class Heartbeats:
    """Lets every node of a world that has begun beat and tick, for ever; one that is down or asleep only skips."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._interval_s = world.genesis.timing.heartbeat_interval_s

    def begin(self, peer: PeerId, number: int) -> None:
        """A node appears; ``number`` sets it apart from the others, so that they do not all beat at once."""
        first_s = self._world.now + self._interval_s / 2 * ((number * 0.618) % 1.0)
        self._world.at(first_s, self._beat, peer)
        self._world.at(first_s, self._tick, peer)

    def say_to(self, node: Node, peer: PeerId) -> None:
        """A heartbeat to one peer, out of turn."""
        self._world.mail.post(node, (peer,), _heartbeat_of(node))

    def _beat(self, peer: PeerId) -> None:
        world = self._world
        node = world.nodes[peer]
        world.at(world.now + self._interval_s, self._beat, peer)
        if node.is_running and node.is_honest:
            self._spread(peer, _heartbeat_of(node))
        elif node.is_running:
            world.mail.post(node, world.nodes, _heartbeat_of(node))

    def _spread(self, sender: PeerId, body: Heartbeat) -> None:
        """A heartbeat to everybody, in one delivery per path: there are more of these than of all other messages."""
        world, network = self._world, self._world.network
        arriving: dict[float, list[PeerId]] = {}
        for receiver in world.nodes:
            if world.passes(sender, receiver, body) and network.delivers(sender, receiver):
                arriving.setdefault(network.path_latency_s(sender, receiver), []).append(receiver)
        jitter_s = world.random.uniform(*network.model.latency_s)
        raw = world.mail.envelope(world.nodes[sender])
        for latency_s, receivers in arriving.items():
            world.at(world.now + latency_s + jitter_s, self._hear, receivers, sender, body, raw)

    def _hear(self, receivers: list[PeerId], sender: PeerId, body: Heartbeat, raw: bytes) -> None:
        world = self._world
        now, nodes, lets_in = world.now, world.nodes, world.mail.lets_in
        for receiver in receivers:
            node = nodes[receiver]
            state = node.state
            if state is None:
                continue
            view = node.heard.get(sender) or state.peers.get(sender)
            here = now + node.clock_offset_s
            if not (node.is_asleep or lets_in(node, sender, body, raw)):
                continue
            if not node.is_asleep and view is not None and is_routine(state, view, body, here):
                node.heard[sender] = PeerView(here, body)
            else:
                world.feed(node, Received(sender, body, raw))

    def _tick(self, peer: PeerId) -> None:
        world = self._world
        node = world.nodes[peer]
        world.at(world.now + self._interval_s / _TICKS_PER_HEARTBEAT, self._tick, peer)
        if node.is_running:
            world.feed(node, Tick())


def _heartbeat_of(node: Node) -> Heartbeat:
    """What a node says of itself now: the same value as last time if nothing has changed."""
    facts = {
        "round": node.round - 1,
        "phase": node.told_phase,
        "reachable": node.reachable,
        "abstains": node.abstains,
        **node.progress,
    }
    if node.heartbeat is None or facts != node.told:
        node.told = facts
        node.heartbeat = Heartbeat.model_validate({**facts, "state_hash": state_hash(node.disk.commits)})
    return node.heartbeat
