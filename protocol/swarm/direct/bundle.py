"""Several TLS connections that carry one stream of bytes, for links that are fast and long.

One TCP connection has at most as much under way as the kernel buffers, 4 MB by default: over 150 ms that is 200 Mbit/s,
less with losses. Measured over a link of 400 Mbit/s with 100 ms there and back: one connection 25 MB/s, four 28-42.
Bytes go in blocks to one connection after the other, so that both sides know from their position alone where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...transport import Buffer
from .connection import TlsConnection

BLOCK_BYTES = 256 << 10
NUM_CONNECTIONS = 4
LONG_ROUND_TRIP_S = 0.03
"""From here on more than one connection is made: at 1 Gbit/s this is the kernel's 4 MB."""


class Carrier(Protocol):
    """What streams need of whatever carries them; see `connection.TlsConnection`."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def num_sockets(self) -> int: ...

    async def send(self, data: Buffer) -> bool: ...

    async def receive(self, max_bytes: int, patience_bytes: int = 1) -> list[bytes]: ...

    async def wait_until_readable(self) -> None: ...

    def abort(self) -> None: ...


class Bundle:
    """A `Carrier` of several. Both sides must have the connections in the same order."""

    def __init__(self, connections: Sequence[TlsConnection]) -> None:
        self._connections = tuple(connections)
        self._num_sent = self._num_received = 0

    @property
    def is_closed(self) -> bool:
        return any(connection.is_closed for connection in self._connections)

    @property
    def num_sockets(self) -> int:
        return len(self._connections)

    async def send(self, data: Buffer) -> bool:
        view, waited = memoryview(data), False
        while view:
            connection, room = self._place(self._num_sent)
            waited |= await connection.send(view[:room])
            self._num_sent += min(room, view.nbytes)
            view = view[room:]
        return waited

    async def receive(self, max_bytes: int, patience_bytes: int = 1) -> list[bytes]:
        connection, room = self._place(self._num_received)
        pieces = await connection.receive(min(max_bytes, room), min(patience_bytes, room))
        self._num_received += sum(map(len, pieces))
        return pieces

    async def wait_until_readable(self) -> None:
        await self._place(self._num_received)[0].wait_until_readable()

    def _place(self, position: int) -> tuple[TlsConnection, int]:
        """The connection that carries the byte at ``position``, and how many more belong to the same block."""
        block, offset = divmod(position, BLOCK_BYTES)
        return self._connections[block % len(self._connections)], BLOCK_BYTES - offset

    def abort(self) -> None:
        for connection in self._connections:
            connection.abort()
