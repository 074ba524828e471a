"""Agreeing over libp2p on a direct connection, and making it: the asker's side and the answerer's.

Whoever is to be dialled gives the other a ticket, over the stream that libp2p has authenticated and encrypted. It is
dialled at the address that this stream comes from, never at one that it names: a peer cannot make others connect to
a third party. Each side gets the other's certificate before the first byte of TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

from ... import transport as contract
from ...allowance import Allowances
from ...identity import PeerId
from ...parsing import Unreadable, parse
from .. import addresses
from ..streams import OpenRaw, SwarmStream, welcome
from .bundle import Carrier
from .handover import MAX_REASON_CHARS, Answer, Handover, Handovers, Offer, Ticket
from .handshake import Declined, HandshakeFailed, Party, dial_as_needed
from .outcomes import Way

PROTOCOL = "direct"
MAX_TICKET_BYTES = 256
_ANSWERS_PER_S, _ANSWERS_AT_ONCE = 0.5, 32
"""To one peer; an honest one asks once per connection and then keeps it."""


@dataclass(frozen=True)
class Here:
    """What the negotiation needs to know of this node."""

    party: Party
    handovers: Handovers
    port: Callable[[], int]
    """At which others can dial this node; 0 if they cannot."""
    refusal: Callable[[PeerId], str]
    """Why no connection is accepted from a peer now; empty if one is."""
    serve: Callable[[Carrier, PeerId], None]
    """Take over a connection on which the peer opens the streams."""
    dial_timeout_s: float

    @property
    def answer_timeout_s(self) -> float:
        """For the answer to an offer; a peer that takes longer gets the stream over libp2p, with libp2p's patience."""
        return 2 * self.dial_timeout_s


class Negotiator:
    """Both sides."""

    def __init__(self, here: Here, open_raw: OpenRaw, name: str) -> None:
        """``name``: the libp2p protocol on which peers agree."""
        self._here, self._open_raw, self._name = here, open_raw, name
        self._certificate = here.party.credentials.certificate.hex()
        self._awaited: dict[bytes, asyncio.Future[Carrier]] = {}
        """Connections that this node has asked for and that its listener will accept, by number."""
        self._answers = Allowances(_ANSWERS_PER_S, _ANSWERS_AT_ONCE, time.monotonic)

    def arrive(self, connection: Carrier, handover: Handover) -> None:
        """A peer has shown a ticket at the listener: it came because we asked, or to ask us."""
        awaited = self._awaited.get(handover.number)
        if awaited is None:
            self._here.serve(connection, handover.peer)
        elif awaited.done():
            connection.abort()
        else:
            awaited.set_result(connection)

    # --- the asker

    async def ask(self, peer: PeerId, way: Way) -> Carrier:
        """A connection on which this node opens streams.

        Raises `HandshakeFailed`, and `PeerUnreachable` if libp2p does not reach the peer.
        """
        offer = Offer(certificate=self._certificate, dialler="asker" if way == "out" else "answerer")
        stream, payload = await self._open_raw(peer, self._name, offer.canonical(), self._here.answer_timeout_s)
        try:
            answer, certificate = _read_answer(peer, payload)
            if way == "in":
                return await self._be_dialled(stream, certificate)
            if answer.ticket is None:
                raise HandshakeFailed("it gives no ticket")
            return await self._dial(stream, certificate, answer.ticket)
        except (contract.StreamClosed, contract.RemoteProtocolError) as error:
            raise HandshakeFailed(str(error)) from None
        finally:
            await stream.close()

    async def _dial(self, stream: SwarmStream, certificate: bytes, ticket: Ticket) -> Carrier:
        host = host_of(stream.address)
        if host is None:
            raise HandshakeFailed("it is connected through a relay")
        handover, here = Handover.of(stream.remote, certificate, ticket), self._here
        try:
            return await dial_as_needed(host, ticket.port, handover, here.party, here.dial_timeout_s)
        except HandshakeFailed as error:
            raise HandshakeFailed(f"port {ticket.port}: {error}") from None

    async def _be_dialled(self, stream: SwarmStream, certificate: bytes) -> Carrier:
        port = self._here.port()
        handover = self._here.handovers.issue(stream.remote, certificate, time.monotonic()) if port else None
        if handover is None:
            raise Declined("neither side can be dialled")
        awaited = self._awaited[handover.number] = asyncio.get_running_loop().create_future()
        limit_s = 3 * self._here.dial_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await stream.write(handover.ticket(port).canonical())
                if verdict := await stream.read(4 * MAX_REASON_CHARS):
                    raise HandshakeFailed(f"it cannot dial us: {_said(verdict.decode('utf-8', 'replace'))}")
                return await awaited
        except BaseException as error:
            if awaited.done() and not awaited.cancelled():  # it came, and nobody takes it
                awaited.result().abort()
            if isinstance(error, TimeoutError):
                raise HandshakeFailed(f"it did not dial us within {limit_s:g} s") from None
            raise
        finally:
            del self._awaited[handover.number]
            self._here.handovers.cancel(handover)

    # --- the answerer

    async def answer(self, stream: SwarmStream, hello: bytes, address: str) -> None:
        """Serve one negotiation. Raises `RemoteProtocolError` for an offer that no honest peer makes."""
        peer = stream.remote
        try:
            offer = parse(Offer, hello)
            certificate = offer.certificate_of(peer)
        except (Unreadable, ValueError) as error:
            raise contract.RemoteProtocolError(peer, "malformed offer of a direct connection", str(error)) from None
        refusal = self._here.refusal(peer) or ("" if self._answers.take(peer) else "too many connections")
        if refusal:
            await self._conclude(stream, Answer(certificate=self._certificate, refusal=refusal))
        elif offer.dialler == "asker":
            await self._conclude(stream, self._invite(peer, certificate))
        else:
            await self._come(stream, certificate, host_of(address))

    def _invite(self, peer: PeerId, certificate: bytes) -> Answer:
        port = self._here.port()
        handover = self._here.handovers.issue(peer, certificate, time.monotonic()) if port else None
        if handover is None:
            return Answer(certificate=self._certificate, refusal="it cannot be dialled")
        return Answer(certificate=self._certificate, ticket=handover.ticket(port))

    async def _conclude(self, stream: SwarmStream, answer: Answer) -> None:
        await welcome(stream, answer.canonical())
        await _until_closed(stream, self._here.dial_timeout_s)

    async def _come(self, stream: SwarmStream, certificate: bytes, host: str | None) -> None:
        """Dial the asker, at the address that its stream comes from."""
        if host is None:
            answer = Answer(certificate=self._certificate, refusal="it is connected through a relay")
            return await self._conclude(stream, answer)
        await welcome(stream, Answer(certificate=self._certificate).canonical())
        ticket = _read_ticket(stream.remote, await stream.read(MAX_TICKET_BYTES))
        try:
            connection = await self._dial(stream, certificate, ticket)
        except HandshakeFailed as error:
            await stream.write(str(error)[:MAX_REASON_CHARS].encode())
            return await _until_closed(stream, self._here.dial_timeout_s)
        self._here.serve(connection, stream.remote)
        await stream.write(b"")
        return await _until_closed(stream, self._here.dial_timeout_s)


def _read_answer(peer: PeerId, payload: bytes) -> tuple[Answer, bytes]:
    """The answer and the peer's certificate. Raises `HandshakeFailed`."""
    try:
        answer = parse(Answer, payload)
        certificate = answer.certificate_of(peer)
    except (Unreadable, ValueError) as error:
        raise HandshakeFailed(f"its answer cannot be used: {error}") from None
    if answer.refusal:
        raise Declined(f"it says: {_said(answer.refusal)}")
    return answer, certificate


def _said(text: str) -> str:
    """A peer's words, as a part of ours."""
    return "".join(filter(str.isprintable, text))[:MAX_REASON_CHARS]


def _read_ticket(peer: PeerId, frame: bytes) -> Ticket:
    try:
        return parse(Ticket, frame)
    except Unreadable as error:
        raise contract.RemoteProtocolError(peer, "malformed ticket", str(error)) from None


async def _until_closed(stream: SwarmStream, limit_s: float) -> None:
    """The asker closes first, when it has read what was sent."""
    with contextlib.suppress(contract.StreamClosed, contract.RemoteProtocolError, TimeoutError):
        async with asyncio.timeout(limit_s):
            await stream.read(0)


def host_of(address: str) -> str | None:
    """The IP address at the other end of a libp2p connection; None for a relayed one."""
    try:
        where = addresses.endpoint(address) if address else None
        return str(ipaddress.ip_address(where.host)) if where is not None else None
    except ValueError:
        return None
