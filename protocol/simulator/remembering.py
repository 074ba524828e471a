"""Founders whose disks are empty ask what they have said before, as `memories.Memories` does at a real node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..identity import PeerId
from ..messages import Memory, MemoryRequest
from ..quorum import quorum_of
from ..recollection import Recollection, Verdict
from ..round_machine import Received
from .nodes import Node

if TYPE_CHECKING:
    from .faulty import FaultySwarm

_LIFE_BYTES = 4


class Remembering:
    """Of one swarm. A life is told by `Node.num_starts`, which stands for the sequence numbers of its messages."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        self.unsure: dict[PeerId, int] = {}
        """On their disks: who may have spoken in an earlier life than the one in which the disk was empty."""
        self._first_words: dict[PeerId, dict[PeerId, int]] = {}
        """On their disks: listener → founder → life in which it was first heard from."""
        self._asking: dict[PeerId, Recollection] = {}

    def start(self, node: Node, life: int) -> None:
        """The process is new."""
        self._asking.pop(node.peer, None)
        if node.peer not in self.unsure:
            return
        genesis = self._swarm.statutes.genesis_of(node)
        standing, own = self._swarm.statutes.facts_of(node)["standing"], range(self.unsure[node.peer], life + 1)
        self._asking[node.peer] = Recollection(
            node.peer,
            quorum_of(genesis, standing.roster, node.round),
            lambda raw: int.from_bytes(raw, "big") not in own,
            began_s=self._swarm.now + node.clock_offset_s,
            patience_s=genesis.timing.heartbeat_timeout_s,
        )

    def lose(self, peer: PeerId) -> None:
        """Its disk is gone, with what it had heard."""
        self._first_words.pop(peer, None)

    def hear(self, node: Node, sender: PeerId, life: int) -> None:
        """A heartbeat has come."""
        words = self._first_words.setdefault(node.peer, {})
        if sender not in words and sender in self._swarm.genesis.membership.roster:
            words[sender] = life

    def take(self, node: Node, event: Received) -> None:
        """A question is answered; an answer is noted."""
        asking = self._asking.get(node.peer)
        match event.body:
            case MemoryRequest():
                life = self._first_words.get(node.peer, {}).get(event.sender)
                words = None if life is None else life.to_bytes(_LIFE_BYTES, "big").hex()
                self._swarm.mail.post(node, (event.sender,), Memory(round=event.body.round, envelope=words))
            case Memory(envelope=words) if asking is not None and event.sender in self._swarm.genesis.membership.roster:
                asking.note(event.sender, None if words is None else bytes.fromhex(words))
                self._conclude(node)
            case _:
                pass

    def ask(self, node: Node) -> None:
        """Ask who has not answered yet; once it is clear, vote or abstain."""
        self._conclude(node)
        asking = self._asking.get(node.peer)
        if asking is not None and (unasked := asking.unasked(self._alive(node))):
            self._swarm.mail.post(node, unasked, MemoryRequest(round=node.round))

    def _conclude(self, node: Node) -> None:
        asking = self._asking.get(node.peer)
        if asking is None:
            return
        verdict = asking.verdict(self._alive(node), self._swarm.now + node.clock_offset_s)
        if verdict is not Verdict.UNSURE:
            del self._asking[node.peer]
            self._swarm.recollect(node, has_forgotten=verdict is Verdict.FORGOT)

    def _alive(self, node: Node) -> set[PeerId]:
        state = node.state
        if state is None:
            return set()
        now, timeout_s = self._swarm.now + node.clock_offset_s, state.rules.genesis.timing.heartbeat_timeout_s
        views = {**state.peers, **node.heard}
        return {peer for peer, view in views.items() if view.is_met and now - view.heard_s <= timeout_s}
