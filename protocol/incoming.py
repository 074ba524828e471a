"""What comes in from others: opened, its sender noted; a question is answered here, the rest waits for the round loop.

A new kind of message is handled here by one case, or by the round machine if it belongs to a round's decisions.
"""

from __future__ import annotations

from .commit_server import CommitServer
from .contact import Contact
from .driver import DriverSetup
from .envelope import InvalidMessage
from .identity import PeerId
from .memories import Memories
from .messages import (
    AmendmentsRequest,
    Attest,
    CommitRequest,
    Heartbeat,
    Memory,
    MemoryRequest,
    Message,
    Refused,
    Suspected,
)
from .round_loop import RoundLoop
from .round_machine import Received
from .sealing import ClockApart, OtherLineage
from .spot_checks import SpotChecks
from .topology import Topology
from .transport import RemoteProtocolError


class Incoming:
    """`take` is a `transport.MessageHandler`."""

    def __init__(
        self,
        setup: DriverSetup,
        contact: Contact,
        loop: RoundLoop,
        memories: Memories,
        commits: CommitServer,
        topology: Topology,
        spot_checks: SpotChecks,
    ) -> None:
        self._mail, self._peers, self._points = contact.mail, contact.peers, contact.points
        self._heartbeats = contact.heartbeats
        self._loop, self._memories, self._commits = loop, memories, commits
        self._topology, self._spot_checks = topology, spot_checks
        self._clock, self._wall_clock = setup.clock, setup.wall_clock

    async def take(self, remote: PeerId, raw: bytes) -> None:
        """A message of ``remote``. What is no message of this run is rejected, with a point in the journal."""
        try:
            body = self._mail.open(remote, raw).body
            self._note_sender(remote, body, raw)
            self._handle(remote, body, raw)
        except OtherLineage as error:
            self._mind_the_gap(remote, error)
        except InvalidMessage as error:
            if isinstance(error, ClockApart):
                self._peers.clock_apart(remote, error.offset_s, self._clock())
            self._points.reject(RemoteProtocolError(remote, "message", str(error)))
        except RemoteProtocolError as error:
            self._points.reject(error)

    def _mind_the_gap(self, remote: PeerId, error: OtherLineage) -> None:
        """Whoever is in the older lineage has missed an amendment."""
        if error.is_newer:
            self._loop.amending.ask(remote)
        elif self._mail.lineage:
            self._heartbeats.say_to(remote)  # then it asks

    def _note_sender(self, remote: PeerId, body: Message, raw: bytes) -> None:
        heartbeat = body if isinstance(body, Heartbeat) else None
        if not self._peers.is_met(remote):
            self._heartbeats.say_to(remote)  # it may have started after our last one
        self._peers.heard(remote, heartbeat, self._clock(), self._wall_clock())
        if heartbeat is not None:
            self._loop.amending.hear(remote, heartbeat)
            self._memories.hear(remote, raw)

    def _handle(self, remote: PeerId, body: Message, raw: bytes) -> None:
        match body:
            case AmendmentsRequest():
                self._loop.amending.answer(remote, body)
            case CommitRequest():
                self._commits.send(remote, body.round)
            case MemoryRequest():
                self._memories.answer(remote, body)
            case Memory():
                self._memories.note(remote, body)
            case Attest():
                self._loop.agreement.add(remote, body, raw)
            case Suspected():
                self._spot_checks.hear(body.suspicion, remote)
            case Refused():
                self._points.observe("invite.refused", {"peer": remote, "why": body.why})
            case _ if self._topology.takes(remote, body):
                self._topology.hear(remote, body, raw)
            case _:
                self._loop.queue.put_message(Received(remote, body, raw))
