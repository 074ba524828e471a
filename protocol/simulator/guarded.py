"""The mail of a swarm with rules: gates, guards against other lineages, and messages that belong to no round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import sealing
from ..identity import PeerId
from ..messages import (
    Amendments,
    AmendmentsRequest,
    Heartbeat,
    Memory,
    MemoryRequest,
    Message,
    Vote,
    round_of,
)
from ..round_machine import Event, Received
from .mail import Mail
from .nodes import Node

if TYPE_CHECKING:
    from .faulty import FaultySwarm


class Stamp(bytes):
    """The stub of an envelope: what its header would say."""

    lineage: int
    life: int

    @classmethod
    def of(cls, raw: bytes, lineage: int, life: int) -> Stamp:
        stamp = cls(raw)
        stamp.lineage, stamp.life = lineage, life
        return stamp


class GuardedMail(Mail):
    """What `gate`, `sealing` and `incoming` do at a real node, in their order."""

    def __init__(self, swarm: FaultySwarm) -> None:
        super().__init__(swarm)
        self._swarm = swarm

    def envelope(self, node: Node) -> bytes:
        return Stamp.of(b"", node.disk.lineage, node.num_starts)

    def _seal(self, node: Node, body: Message) -> bytes:
        if not isinstance(body, Vote):
            return self.envelope(node)
        checks, lineage = self._swarm.checks, node.disk.lineage
        checks.check_vote(node, body)
        return Stamp.of(checks.paper(node.peer, body, lineage), lineage, node.num_starts)

    def lets_in(self, node: Node, sender: PeerId, body: Message, raw: bytes) -> bool:
        swarm, is_own = self._swarm, sender == node.peer
        if body is node.greeted.get(sender) and isinstance(raw, Stamp) and raw.lineage == node.disk.lineage:
            return True  # nothing has changed since the same words were let in
        if not isinstance(raw, Stamp) or not (is_own or swarm.doors.admits(node, sender, body)):
            return False
        if sealing.is_left_behind(raw.lineage, node.disk.lineage, body):
            if is_own:
                return False
            swarm.statutes.mind_the_gap(node, sender, raw.lineage)
            return False
        if isinstance(body, Heartbeat) and not is_own:
            swarm.remembering.hear(node, sender, raw.life)
            if not swarm.statutes.hear(node, sender, body):
                node.greeted[sender] = body
        return True

    def take(self, node: Node, event: Event) -> None:
        if not isinstance(event, Received):
            super().take(node, event)
            return
        body = event.body
        if not self.lets_in(node, event.sender, body, event.raw):
            return
        match body:
            case Amendments() | AmendmentsRequest():
                self._swarm.statutes.take(node, event)
            case Memory() | MemoryRequest():
                self._swarm.remembering.take(node, event)
            case Heartbeat():
                super().take(node, event)
            case _ if round_of(body) == node.round and not self._swarm.courts.note(node, event):
                pass  # its sender repeats it; by then we may hold the evidence
            case _:
                super().take(node, event)
