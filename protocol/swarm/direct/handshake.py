"""From a TCP connection to an authenticated one, on either side; each step is bounded by one time limit of the caller.

dialler: preamble in clear (magic, the ticket's number)
both:    TLS 1.3, each with the certificate that the other has pinned
dialler: its proof of the ticket's secret; then the accepting side: its own
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ...identity import PeerId
from .certificates import Credentials, Role
from .connection import TlsConnection, prepare
from .handover import MAGIC, PREAMBLE_BYTES, PROOF_BYTES, Handover


class HandshakeFailed(ConnectionError):
    """No authenticated connection came about; the message is a short reason."""


class Declined(HandshakeFailed):
    """The other side did not want this way round: nothing was dialled, and no time lost."""


@dataclass(frozen=True)
class Party:
    """Who we are in a handshake."""

    run_id: str
    credentials: Credentials

    @property
    def me(self) -> PeerId:
        return self.credentials.peer_id


async def dial(host: str, port: int, handover: Handover, party: Party) -> TlsConnection:
    """Connect to ``host``, an IP address. Raises `HandshakeFailed`; cancelled, it leaves nothing open."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            prepare(sock)
            await loop.sock_connect(sock, (host, port))
            await loop.sock_sendall(sock, MAGIC + handover.number)
        except OSError as error:
            raise HandshakeFailed(_reason(error)) from None
        return await _authenticate(sock, handover, party, "dials")


async def accept(
    sock: socket.socket, redeem: Callable[[bytes], Handover | None], party: Party
) -> tuple[TlsConnection, Handover]:
    """The accepting side; ``redeem`` turns a ticket's number into the hand-over, once. Closes ``sock`` if it fails."""
    with sock:
        try:
            prepare(sock)
            preamble = await _read_preamble(sock)
        except OSError as error:
            raise HandshakeFailed(_reason(error)) from None
        handover = redeem(preamble[len(MAGIC) :]) if preamble.startswith(MAGIC) else None
        if handover is None:
            raise HandshakeFailed("it shows no ticket of ours")
        return await _authenticate(sock, handover, party, "accepts"), handover


async def _read_preamble(sock: socket.socket) -> bytes:
    loop, preamble = asyncio.get_running_loop(), b""
    while len(preamble) < PREAMBLE_BYTES:
        piece = await loop.sock_recv(sock, PREAMBLE_BYTES - len(preamble))
        if not piece:
            raise ConnectionResetError("it ended the connection")
        preamble += piece
    return preamble


async def _authenticate(sock: socket.socket, handover: Handover, party: Party, role: Role) -> TlsConnection:
    try:
        context = party.credentials.context(role, handover.certificate)
        wrapped = context.wrap_socket(sock, server_side=role == "accepts", do_handshake_on_connect=False)
    except (OSError, ValueError) as error:
        raise HandshakeFailed(_reason(error)) from None
    connection = TlsConnection(wrapped)
    try:
        await connection.handshake()
        # OpenSSL has checked both already; what everything rests on is looked at twice.
        if connection.version != "TLSv1.3" or connection.certificate != handover.certificate:
            raise HandshakeFailed("another certificate or TLS version than agreed on")
        await _prove(connection, handover, party, role)
    except BaseException as error:
        connection.abort()
        if isinstance(error, OSError) and not isinstance(error, HandshakeFailed):
            raise HandshakeFailed(_reason(error)) from None
        raise
    return connection


async def _prove(connection: TlsConnection, handover: Handover, party: Party, role: Role) -> None:
    own = handover.proof(party.run_id, party.me, handover.peer)
    if role == "dials":
        await connection.send(own)
    shown = await _read_exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(shown, handover.proof(party.run_id, handover.peer, party.me)):
        raise HandshakeFailed("it does not know the ticket's secret")
    if role == "accepts":
        await connection.send(own)


async def _read_exactly(connection: TlsConnection, num_bytes: int) -> bytes:
    got = b""
    while len(got) < num_bytes:
        pieces = await connection.receive(num_bytes - len(got))
        if not pieces:
            raise ConnectionResetError("it ended the connection")
        got += b"".join(pieces)
    return got


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        text = error.reason or "the TLS handshake failed"
    else:  # the loop's own texts name addresses
        text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return (text or type(error).__name__).replace("_", " ").lower()[:100]
