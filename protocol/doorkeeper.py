"""Who is let in: listed peers, those whom a commit has let in, and strangers who show a valid invite.

What a stranger shows is remembered here until its invite is used, expires, or is shown by another peer: one peer at a
time stands for one invite, so that a leaked one opens the gate to a single stranger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from . import invites
from .envelope import Envelope, InvalidMessage
from .identity import PeerId
from .messages import Heartbeat
from .quotas import MAX_PRESENTED
from .spec import Genesis
from .standing import Standing
from .tickets import Ticket
from .transport import RemoteProtocolError


class Doorkeeper:
    """Decides for the gate. ``standing`` is what the last commit applied here leaves in force."""

    def __init__(self, genesis: Genesis, standing: Callable[[], Standing], wall_clock: Callable[[], float]) -> None:
        self._genesis, self._standing, self._wall_clock = genesis, standing, wall_clock
        self._shown: OrderedDict[str, tuple[PeerId, Ticket]] = OrderedDict()
        """By the invite's digest: who shows it."""
        self._bearers: dict[PeerId, str] = {}

    @property
    def takes_invites(self) -> bool:
        """Whether a stranger may show one."""
        return self._genesis.membership.mode == "invite"

    def obey(self, genesis: Genesis) -> None:
        """From now on these rules hold, and what they or a new commit make void lets nobody in any more."""
        self._genesis = genesis
        for peer, ticket in list(self._shown.values()):
            if self._standing().admits(genesis, peer) or self._refusal(peer, ticket) is not None:
                self._forget(peer)

    def admits(self, peer: PeerId) -> bool:
        """Whether a peer is let in as things stand. Cheap: nothing is parsed or verified."""
        if self._genesis.admits(peer):
            return True
        return self.takes_invites and (peer in self._bearers or self._standing().admits(self._genesis, peer))

    def receive(self, peer: PeerId, message: bytes) -> None:
        """A stranger's first message: let it in if that shows a valid invite. Raises `RemoteProtocolError`."""
        try:
            envelope = Envelope.open(message, run_id=self._genesis.run_id, now_unix_s=self._wall_clock())
        except InvalidMessage as error:
            raise RemoteProtocolError(peer, "message", str(error)) from None
        body = envelope.body
        if envelope.header.sender != peer or not isinstance(body, Heartbeat) or body.ticket is None:
            raise RemoteProtocolError(peer, "membership", "this run does not list it, and it shows no invite")
        self.present(peer, body.ticket)

    def present(self, peer: PeerId, ticket: Ticket) -> None:
        """Let ``peer`` in by ``ticket``. Raises `RemoteProtocolError` with the reason if it is not valid."""
        if (why := self._refusal(peer, ticket)) is not None:
            raise RemoteProtocolError(peer, "invite", why)
        name = invites.digest(ticket.invite)
        self._forget(peer)
        if name in self._shown:
            self._forget(self._shown[name][0])
        self._shown[name] = (peer, ticket)
        self._bearers[peer] = name
        if len(self._shown) > MAX_PRESENTED:
            self._forget(next(iter(self._shown.values()))[0])

    def _forget(self, peer: PeerId) -> None:
        if (name := self._bearers.pop(peer, None)) is not None:
            del self._shown[name]

    def _refusal(self, peer: PeerId, ticket: Ticket) -> str | None:
        return refusal(self._genesis, self._standing(), peer, ticket, self._wall_clock())


def refusal(genesis: Genesis, standing: Standing, peer: PeerId, ticket: Ticket, now_unix_s: float) -> str | None:
    """Why an invite lets ``peer`` not in at present; None if it does, or the peer is in already."""
    if standing.admits(genesis, peer):
        return None
    try:
        invites.check(genesis, standing, peer, ticket)
        invites.check_seat(genesis, standing, peer, ticket.invite.owner)
    except invites.InviteRefused as error:
        return str(error)
    if invites.is_over(ticket.invite, now_unix_s, invites.CLOCK_TOLERANCE_S):
        return "the invite has expired"
    return None
