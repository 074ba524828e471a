"""From a TCP connection to an authenticated one, on either side; each step is bounded by one time limit of the caller.

dialler: preamble in clear (magic, the ticket's number)
both:    TLS 1.3, each with the certificate that the other has pinned
dialler: its proof of the ticket's secret; then the accepting side: its own
    dialler: how many further connections belong to this one, in a byte. If any do, the accepting side echoes it, and
             each is made in the same way up to the proofs, with a ticket that both sides derive from the first
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from ...identity import PeerId
from . import bundle
from .bundle import Carrier
from .certificates import Credentials, Role
from .connection import TlsConnection, prepare
from .handover import MAGIC, PREAMBLE_BYTES, PROOF_BYTES, Handover

T = TypeVar("T")


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


async def dial_as_needed(host: str, port: int, handover: Handover, party: Party, limit_s: float) -> Carrier:
    """One connection, or more if the first shows that the way is long. Raises `HandshakeFailed`.

    ``limit_s`` bounds the first connection, and then again all others together.
    """
    first = await _in_time(dial(host, port, handover, party), limit_s)
    num_more = bundle.NUM_CONNECTIONS - 1 if first.round_trip_s >= bundle.LONG_ROUND_TRIP_S else 0
    made = [first]
    try:
        await first.send(bytes((num_more,)))
        if num_more:
            await _in_time(_read_exactly(first, 1), limit_s)
            parts = (handover.part(index) for index in range(num_more))
            made += await _in_time(_all_of([dial(host, port, part, party) for part in parts]), limit_s)
    except BaseException as error:
        for connection in made:
            connection.abort()
        if isinstance(error, OSError) and not isinstance(error, HandshakeFailed):
            raise HandshakeFailed(_reason(error)) from None
        raise
    return bundle.Bundle(made) if num_more else first


async def _all_of(dials: list[Coroutine[None, None, TlsConnection]]) -> list[TlsConnection]:
    """The connections; if one fails or this is cancelled, none of them is left."""
    tasks = [asyncio.create_task(each) for each in dials]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(made, TlsConnection):
                made.abort()
        raise


async def _in_time(work: Awaitable[T], limit_s: float) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise HandshakeFailed(f"no answer within {limit_s:g} s") from None


async def read_count(connection: TlsConnection) -> int:
    """How many further connections the dialler announces. Raises `HandshakeFailed` for more than anybody needs."""
    try:
        (count,) = await _read_exactly(connection, 1)
    except OSError as error:
        raise HandshakeFailed(_reason(error)) from None
    if count >= bundle.NUM_CONNECTIONS:
        raise HandshakeFailed(f"it announces {count} further connections")
    return count


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
