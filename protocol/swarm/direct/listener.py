"""The port on which peers with a ticket are let in. Everybody else costs it a look at 32 bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

from .. import addresses
from .._hivemind import log
from .bundle import Bundle, Carrier
from .connection import TlsConnection
from .handover import Handover, Handovers
from .handshake import HandshakeFailed, Party, accept, read_count

MAX_HALF_OPEN = 64
"""Connections that have not shown who they are; further ones are closed at once."""
HANDSHAKE_TIMEOUT_S = 5.0
_NUM_TRIES = 8
"""To find a port that is free in both families."""

OnConnection = Callable[[Carrier, Handover], None]


class Listener:
    """Accepts on one TCP port, of IPv4 and IPv6 as asked for."""

    def __init__(self, party: Party, handovers: Handovers, on_connection: OnConnection) -> None:
        self._party, self._handovers, self._on_connection = party, handovers, on_connection
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts: dict[bytes, asyncio.Future[TlsConnection]] = {}
        """Further connections of one that is being accepted, by number."""
        self._num_half_open = 0
        self.port = 0
        """0 while it does not listen."""

    def start(self, hosts: Sequence[str], ports: Sequence[int]) -> None:
        """Listen on the first of ``ports`` that is free on all ``hosts``. Raises `DirectPortInUse` if none is."""
        self._sockets = bind_first(hosts, ports)
        self.port = self._sockets[0].getsockname()[1] if self._sockets else 0
        for listening in self._sockets:
            self._spawn(self._accept_all(listening))

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor is left, or the dialler is gone already
                log.debug("cannot accept: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._num_half_open >= MAX_HALF_OPEN:
                sock.close()
                continue
            self._num_half_open += 1
            self._spawn(self._admit(sock))

    async def _admit(self, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                connection, handover = await accept(sock, self._redeem, self._party)
                part = self._parts.get(handover.number)
                if part is None:
                    self._on_connection(await self._complete(connection, handover), handover)
                elif part.done():  # too late
                    connection.abort()
                else:
                    part.set_result(connection)
        except (OSError, TimeoutError) as error:
            log.debug("a connection to the direct port was refused: %s", error)
        finally:
            self._num_half_open -= 1

    async def _complete(self, first: TlsConnection, handover: Handover) -> Carrier:
        """With the further connections that its dialler announces. Raises `OSError`, and nothing is left open."""
        parts: list[Handover] = []
        try:
            if not (count := await read_count(first)):
                return first
            parts = self._handovers.issue_parts(handover, count, time.monotonic()) or []
            if not parts:
                raise HandshakeFailed("too many connections")
            futures = [asyncio.get_running_loop().create_future() for _ in parts]
            self._parts |= {part.number: future for part, future in zip(parts, futures, strict=True)}
            await first.send(bytes((count,)))
            return Bundle([first, *await asyncio.gather(*futures)])
        except BaseException:
            first.abort()
            for future in (self._parts.get(part.number) for part in parts):
                if future is not None and future.done() and not future.cancelled():
                    future.result().abort()
            raise
        finally:
            for part in parts:
                self._parts.pop(part.number, None)
                self._handovers.cancel(part)

    def _redeem(self, number: bytes) -> Handover | None:
        return self._handovers.redeem(number, time.monotonic())

    def _spawn(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        self._sockets, self.port = [], 0


def bind_first(hosts: Sequence[str], ports: Sequence[int]) -> list[socket.socket]:
    """Listening sockets, one per host, on the first of ``ports`` that can be had. Raises `DirectPortInUse`."""
    if not hosts:
        return []
    for port in ports:
        for _ in range(1 if port else _NUM_TRIES):
            with contextlib.suppress(OSError):
                return _bind_all(hosts, port)
    raise addresses.DirectPortInUse(f"tcp port {ports[-1]} for direct connections is already in use by another program")


def _bind_all(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Raises `OSError` if one of them cannot be bound, but for a family that this machine does not have."""
    with contextlib.ExitStack() as stack:
        found: list[socket.socket] = []
        for host in hosts:
            try:
                made = stack.enter_context(_bind(host, port))
            except OSError as error:
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(hosts) > 1:
                    continue
                raise
            port = made.getsockname()[1]
            found.append(made)
        stack.pop_all()
        return found


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not held up by TIME_WAIT after a restart
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind((host, port))
        made.listen(MAX_HALF_OPEN)
    except OSError:
        made.close()
        raise
    return made
