"""What comes in from others in a gossip run: heartbeats, and changes of the run's rules. Nothing else has a meaning."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from ..amending import Amending, Learned, parsed
from ..amendments import Amendment, RunRules
from ..contact import Contact
from ..driver import DriverSetup
from ..envelope import InvalidMessage
from ..identity import PeerId
from ..messages import Amendments, AmendmentsRequest, Heartbeat, Message, Refused
from ..peers import MAX_PEERS
from ..sealing import ClockApart
from ..tickets import Ticket
from ..transport import RemoteProtocolError

_WAITING_AMENDMENTS = 64
"""Messages with amendments that wait to be looked at; what is lost is asked for again."""


_MAX_ANNOUNCED = 8
"""Last states of a peer that count as announced: its own may move on while it is asked for it."""


class Hearing:
    """`take` is a `transport.MessageHandler`; `learn` runs for as long as the driver lives."""

    def __init__(
        self, setup: DriverSetup, contact: Contact, on_heard: Callable[[], None], on_rules: Callable[[RunRules], None]
    ) -> None:
        self._setup, self._contact = setup, contact
        self._on_heard, self._on_rules = on_heard, on_rules
        interval_s = setup.rules.timing.heartbeat_interval_s
        self._amending = Amending(setup.book, contact.mail, contact.points.observe, interval_s, setup.clock)
        self._learned: asyncio.Queue[Learned] = asyncio.Queue()
        self.tickets: dict[PeerId, Ticket] = {} if setup.facts.ticket is None else {setup.me: setup.facts.ticket}
        """Invites that peers have shown, our own among them."""
        self._announced: dict[PeerId, deque[tuple[int, str]]] = {}

    def amend(self, amendments: Iterable[Amendment]) -> None:
        """Amendments of this node's operator."""
        self._learned.put_nowait(Learned(tuple(amendments)))

    def announced(self, peer: PeerId) -> tuple[tuple[int, str], ...]:
        """Rounds and state hashes that a peer has signed lately."""
        return tuple(self._announced.get(peer, ()))

    def _note_announced(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        if peer not in self._announced and len(self._announced) >= MAX_PEERS:
            return
        said, known = (
            (heartbeat.round, heartbeat.state_hash),
            self._announced.setdefault(peer, deque(maxlen=_MAX_ANNOUNCED)),
        )
        if said not in known:
            known.append(said)

    async def take(self, remote: PeerId, raw: bytes) -> None:
        """A message of ``remote``. What is no message of this run is rejected, with a point in the journal."""
        contact, setup = self._contact, self._setup
        try:
            body = contact.mail.open(remote, raw).body
        except InvalidMessage as error:
            if isinstance(error, ClockApart):
                contact.peers.clock_apart(remote, error.offset_s, setup.clock())
            contact.points.reject(RemoteProtocolError(remote, "message", str(error)))
            return
        except RemoteProtocolError as error:
            contact.points.reject(error)
            return
        if not contact.peers.is_met(remote):
            contact.heartbeats.say_to(remote)  # it may have started after our last one
        heartbeat = body if isinstance(body, Heartbeat) else None
        contact.peers.heard(remote, heartbeat, setup.clock(), setup.wall_clock())
        self._handle(remote, body)

    def _handle(self, remote: PeerId, body: Message) -> None:
        match body:
            case Heartbeat():
                self._amending.hear(remote, body)
                self._note_announced(remote, body)
                if body.ticket is not None and (remote in self.tickets or len(self.tickets) < MAX_PEERS):
                    self.tickets[remote] = body.ticket
                self._on_heard()
            case AmendmentsRequest():
                self._amending.answer(remote, body)
            case Amendments():
                self._hear_amendments(remote, body)
            case Refused():
                self._contact.points.observe("invite.refused", {"peer": remote, "why": body.why})
            case _:
                what = f"a {body.kind} has no meaning in a gossip run"
                self._contact.points.reject(RemoteProtocolError(remote, "message", what))

    def _hear_amendments(self, remote: PeerId, body: Amendments) -> None:
        try:
            learned = parsed(remote, body.amendments)
        except RemoteProtocolError as error:
            self._contact.points.reject(error)
            return
        if self._learned.qsize() < _WAITING_AMENDMENTS:
            self._learned.put_nowait(learned)

    async def learn(self) -> None:
        """Put what is new into the book, for ever."""
        while True:
            rules = await self._amending.learn(await self._learned.get())
            if rules is not None:
                self._setup.book.take(rules)
                self._on_rules(rules)
                self._contact.heartbeats.say_now()
