"""Who is let in beside libp2p, and by what: wrong certificates, replayed hand-overs and downgrades are refused."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import time
from collections.abc import AsyncIterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from atoll.protocol.identity import Identity
from atoll.protocol.swarm.direct import bundle, certificates, handover, handshake, negotiation
from atoll.protocol.swarm.direct.bundle import Carrier
from atoll.protocol.swarm.direct.certificates import Credentials
from atoll.protocol.swarm.direct.handover import MAGIC, Answer, Handover, Handovers, Offer, Ticket
from atoll.protocol.swarm.direct.handshake import HandshakeFailed, Party
from atoll.protocol.swarm.direct.listener import Listener

from .direct_lab import RUN, Libp2p, Node

A, B, C = (Identity.from_seed(bytes((number,)) * 32) for number in (1, 2, 3))
CREDENTIALS = {identity.peer_id: Credentials.of(identity) for identity in (A, B, C)}


def party(identity: Identity, run_id: str = RUN) -> Party:
    return Party(run_id, CREDENTIALS[identity.peer_id])


class Host:
    """B's listener, and who got in."""

    def __init__(self) -> None:
        self.handovers, self.arrived = Handovers(), list[tuple[Carrier, Handover]]()
        self.listener = Listener(party(B), self.handovers, lambda *found: self.arrived.append(found))
        self.listener.start(["127.0.0.1"], [0])

    def ticket_for(self, identity: Identity, *, age_s: float = 0.0) -> Handover:
        """What ``identity`` makes of the ticket that B has given it."""
        certificate = CREDENTIALS[identity.peer_id].certificate
        made = self.handovers.issue(identity.peer_id, certificate, time.monotonic() - age_s)
        assert made is not None
        return Handover.of(B.peer_id, CREDENTIALS[B.peer_id].certificate, made.ticket(self.listener.port))

    async def dial(self, ticket: Handover, who: Party) -> Carrier:
        return await handshake.dial_as_needed("127.0.0.1", self.listener.port, ticket, who, 5.0)

    async def refuses(self, ticket: Handover, who: Party) -> str:
        with pytest.raises(HandshakeFailed) as caught:
            await self.dial(ticket, who)
        await asyncio.sleep(0.02)
        assert not self.arrived
        return str(caught.value)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    made = Host()
    yield made
    await made.listener.stop()
    for connection, _ in made.arrived:
        connection.abort()


async def test_a_peer_with_its_own_certificate_and_ticket_is_let_in_once(host: Host) -> None:
    connection = await host.dial(host.ticket_for(A), party(A))
    assert connection.version == "TLSv1.3"  # type: ignore[attr-defined]
    await asyncio.sleep(0.02)
    assert [found.peer for _, found in host.arrived] == [A.peer_id]
    connection.abort()


async def test_a_dialler_with_the_wrong_certificate_is_refused(host: Host) -> None:
    assert "unknown ca" in await host.refuses(host.ticket_for(A), party(C))


async def test_a_listener_with_the_wrong_certificate_is_refused(host: Host) -> None:
    expected = dataclasses.replace(host.ticket_for(A), peer=C.peer_id, certificate=CREDENTIALS[C.peer_id].certificate)
    assert "certificate verify failed" in await host.refuses(expected, party(A))


async def test_a_certificate_without_its_key_is_refused(host: Host) -> None:
    """Certificates are no secret; OpenSSL itself refuses to combine one with another key, and so does the handshake."""
    key_of_c = CREDENTIALS[C.peer_id]._pem.partition(b"-----BEGIN CERTIFICATE")[0]
    certificate_of_a = CREDENTIALS[A.peer_id]._pem.partition(b"-----END PRIVATE KEY-----\n")[2]
    forged = Credentials(A.peer_id, CREDENTIALS[A.peer_id].certificate, key_of_c + certificate_of_a)
    assert "key values mismatch" in await host.refuses(host.ticket_for(A), Party(RUN, forged))


async def test_a_certificate_that_a_trusted_one_has_issued_is_refused(host: Host) -> None:
    """OpenSSL would follow such a chain; what counts is the one certificate that was agreed on."""
    name = x509.Name([])
    key = Ed25519PrivateKey.generate()
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(2)
    builder = builder.not_valid_before(certificates._NOT_BEFORE).not_valid_after(certificates._NOT_AFTER)
    issued = builder.public_key(key.public_key()).sign(A.private_key, None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + issued.public_bytes(Encoding.PEM)
    forged = Credentials(A.peer_id, CREDENTIALS[A.peer_id].certificate, pem)
    await host.refuses(host.ticket_for(A), Party(RUN, forged))


async def test_a_replayed_hand_over_is_refused(host: Host) -> None:
    ticket = host.ticket_for(A)
    (await host.dial(ticket, party(A))).abort()
    await asyncio.sleep(0.02)
    host.arrived.pop()[0].abort()
    assert "reset" in await host.refuses(ticket, party(A))


async def test_further_connections_need_tickets_of_their_own(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow from the first one's secret, which never leaves the encrypted stream on which it was told."""
    ticket = host.ticket_for(A)
    monkeypatch.setattr(bundle, "LONG_ROUND_TRIP_S", 0.0)
    monkeypatch.setattr(Handover, "part", lambda self, _index: dataclasses.replace(self, number=bytes(16)))
    assert "reset" in await host.refuses(ticket, party(A))


async def test_more_further_connections_than_anybody_needs_are_refused(host: Host) -> None:
    connection = await handshake.dial("127.0.0.1", host.listener.port, host.ticket_for(A), party(A))
    await connection.send(b"\xff")
    with contextlib.suppress(OSError):
        assert await connection.receive(1) == []
    assert not host.arrived
    connection.abort()


async def test_a_hand_over_that_failed_cannot_be_tried_again(host: Host) -> None:
    ticket = host.ticket_for(A)
    await host.refuses(ticket, party(C))
    await host.refuses(ticket, party(A))


async def test_an_old_hand_over_is_refused(host: Host) -> None:
    await host.refuses(host.ticket_for(A, age_s=handover.LIFETIME_S), party(A))


async def test_anothers_ticket_is_of_no_use(host: Host) -> None:
    await host.refuses(host.ticket_for(A), party(C))


async def test_a_number_without_its_secret_is_of_no_use(host: Host) -> None:
    ticket = dataclasses.replace(host.ticket_for(A), secret=bytes(32))
    await host.refuses(ticket, party(A))


async def test_a_listener_that_does_not_know_the_secret_is_refused() -> None:
    ours = Handover(B.peer_id, CREDENTIALS[B.peer_id].certificate, bytes(16), bytes(32))
    theirs = Handover(A.peer_id, CREDENTIALS[A.peer_id].certificate, bytes(16), bytes([1]) * 32)
    left, right = socket.socketpair()
    accepting = asyncio.create_task(handshake._authenticate(_nonblocking(right), theirs, party(B), "accepts"))
    with pytest.raises(HandshakeFailed):
        await handshake._authenticate(_nonblocking(left), ours, party(A), "dials")
    with pytest.raises(HandshakeFailed, match="does not know"):
        await accepting


async def test_a_hand_over_of_one_run_is_of_no_use_in_another(host: Host) -> None:
    await host.refuses(host.ticket_for(A), party(A, run_id="cd" * 32))


@pytest.mark.parametrize("changed", ["run", "speaker", "listener", "number", "secret"])
def test_a_proof_is_bound_to_run_peers_and_ticket(changed: str) -> None:
    one = Handover(B.peer_id, b"", bytes(16), bytes(32))
    other = dataclasses.replace(one, number=bytes([changed == "number"]) * 16, secret=bytes([changed == "secret"]) * 32)
    run = "cd" * 32 if changed == "run" else RUN
    speaker = C.peer_id if changed == "speaker" else A.peer_id
    listener = C.peer_id if changed == "listener" else B.peer_id
    assert one.proof(RUN, A.peer_id, B.peer_id) != other.proof(run, speaker, listener)


def _nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


# --- downgrades


async def test_a_dialler_that_offers_no_tls_1_3_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Credentials, "context", _older(Credentials.context, "dials"))
    assert "protocol version" in await host.refuses(host.ticket_for(A), party(A))


async def test_a_listener_that_offers_no_tls_1_3_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Credentials, "context", _older(Credentials.context, "accepts"))
    assert "protocol" in await host.refuses(host.ticket_for(A), party(A))


def _older(original, role):
    def context(self, which, pinned):
        made = original(self, which, pinned)
        if which == role:
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            made.maximum_version = ssl.TLSVersion.TLSv1_2
        return made

    return context


async def test_plain_text_is_refused_by_a_listener(host: Host) -> None:
    ticket = host.ticket_for(A)
    reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
    writer.write(MAGIC + ticket.number + ticket.proof(RUN, A.peer_id, B.peer_id))
    answer = await _all_of(reader)
    writer.close()
    assert B.peer_id.encode() not in answer
    assert not host.arrived


async def test_plain_text_is_refused_by_a_dialler() -> None:
    ticket = Handover(B.peer_id, CREDENTIALS[B.peer_id].certificate, bytes(16), bytes(32))

    async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(MAGIC) + 16)
        writer.write(ticket.proof(RUN, B.peer_id, A.peer_id))
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(speak_plainly, "127.0.0.1", 0)
    with pytest.raises(HandshakeFailed):
        await handshake.dial("127.0.0.1", server.sockets[0].getsockname()[1], ticket, party(A))
    server.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", MAGIC + bytes(16), bytes(64)])
async def test_a_stranger_gets_no_byte_and_costs_no_handshake(host: Host, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
    writer.write(said)
    assert await _all_of(reader) == b""
    writer.close()


async def test_strangers_in_numbers_are_turned_away_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.protocol.swarm.direct.listener.MAX_HALF_OPEN", 4)
    silent = [await asyncio.open_connection("127.0.0.1", host.listener.port) for _ in range(4)]
    await asyncio.sleep(0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", host.listener.port)
    async with asyncio.timeout(1.0):
        assert await _all_of(reader) == b""
    for _, other in [*silent, (reader, writer)]:
        other.close()


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(5.0):
            return await reader.read()
    except ConnectionError:
        return b""


# --- certificates and agreements


def test_a_certificate_says_whose_key_it_is_of() -> None:
    assert certificates.peer_of(CREDENTIALS[A.peer_id].certificate) == A.peer_id
    with pytest.raises(ValueError, match="not of"):
        certificates.check(CREDENTIALS[A.peer_id].certificate, B.peer_id)


@pytest.mark.parametrize("data", [b"", b"\x30\x82", bytes(200), bytes(1000)])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        certificates.peer_of(data)


def test_a_key_is_not_shown_and_not_left_in_a_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delattr("os.memfd_create", raising=False)
    made = Credentials.of(Identity("x", Ed25519PrivateKey.generate()))  # type: ignore[arg-type]
    made.context("accepts", CREDENTIALS[A.peer_id].certificate)
    assert "PRIVATE" not in repr(made)
    assert not list(tmp_path.iterdir())


def test_the_number_of_open_agreements_is_bounded_and_they_end_by_themselves() -> None:
    made = Handovers()
    certificate = CREDENTIALS[A.peer_id].certificate
    assert all(made.issue(A.peer_id, certificate, 0.0) for _ in range(handover.MAX_PENDING_PER_PEER))
    assert made.issue(A.peer_id, certificate, 0.0) is None
    assert made.issue(B.peer_id, certificate, 0.0) is not None, "others are not kept out by that"
    assert made.issue(A.peer_id, certificate, handover.LIFETIME_S) is not None


async def test_an_offer_with_anothers_certificate_is_misconduct() -> None:
    a, b = _nodes()
    a.path._negotiator._certificate = CREDENTIALS[C.peer_id].certificate.hex()
    assert await a.path.open(b.me, "span") is None
    assert [error.peer for error in b.errors] == [a.me]
    await _stop(a, b)


async def test_an_answer_with_anothers_certificate_is_not_followed() -> None:
    a, b = _nodes()
    b.path._negotiator._certificate = CREDENTIALS[C.peer_id].certificate.hex()
    assert await a.path.open(b.me, "span") is None
    assert "not of" in a.path._outcomes.reason(b.me)
    await _stop(a, b)


async def test_a_refusals_words_are_shown_without_what_a_terminal_would_obey() -> None:
    a, b = _nodes()
    b.path._negotiator._here = dataclasses.replace(b.path._negotiator._here, refusal=lambda _: "no\x1b[2J \u202eway")
    assert await a.path.open(b.me, "span") is None
    assert a.path._outcomes.reason(b.me) == "it says: no[2J way"
    await _stop(a, b)


async def test_a_peer_is_dialled_where_its_stream_comes_from_and_nowhere_else() -> None:
    """A ticket has no address: nobody can make a node connect to a third party."""
    assert set(Ticket.model_fields) == {"port", "number", "secret"}
    assert negotiation.host_of("/ip4/10.1.2.3/tcp/4001") == "10.1.2.3"
    assert negotiation.host_of("/ip6/::1/udp/4001/quic-v1") == "::1"
    for relayed in ("", "/dns4/example.org/tcp/1", f"/ip4/1.2.3.4/tcp/1/p2p/{A.peer_id}/p2p-circuit"):
        assert negotiation.host_of(relayed) is None


async def test_offers_in_numbers_are_refused() -> None:
    a, b = _nodes()
    for _ in range(negotiation._ANSWERS_AT_ONCE + 1):
        await b.path._negotiator.answer(*(await _offer(a, b)))
    assert "too many" in (await a.open_raw(b.me, "", a_offer(a)))[1].decode()
    await _stop(a, b)


def a_offer(a: Node) -> bytes:
    return Offer(certificate=CREDENTIALS[a.me].certificate.hex(), dialler="asker").canonical()


async def _offer(a: Node, b: Node):
    class Sink:
        remote, address = a.me, a.address

        async def write(self, frame: bytes) -> None:
            self.written = frame

        async def read(self, _max_bytes: int) -> bytes:
            return b""

    return Sink(), a_offer(a), a.address


def _nodes() -> tuple[Node, Node]:
    libp2p = Libp2p()
    return Node(libp2p, 1), Node(libp2p, 2)


async def _stop(*nodes: Node) -> None:
    await asyncio.gather(*(node.stop() for node in nodes))


def test_an_answer_fits_the_frame_that_carries_it() -> None:
    ticket = Ticket(port=65_535, number="f" * 32, secret="f" * 64)
    longest = Answer(certificate="ff" * certificates.MAX_CERTIFICATE_BYTES, ticket=ticket, refusal="x" * 20)
    assert len(longest.canonical()) < 1000
