"""The control channel between a daemon and its trainer: one JSON message per line over a socket pair.

Both ends are here, so that they cannot disagree: `TrainerChannel` blocks, `DaemonChannel` awaits. The messages are the
events and reports of `training.reducer`. End of file means that the other process is gone.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from .reducer import (
    Aborted,
    Committed,
    Evaluate,
    Evaluation,
    Event,
    Failed,
    Hello,
    Progress,
    Ready,
    Report,
    Save,
    Saved,
    Start,
    Stop,
    Warned,
    Withheld,
)

MAX_MESSAGE_BYTES = 1 << 20
"""Both ends are ours, so this only bounds what a bug can do."""

_EVENTS: TypeAdapter[Event] = TypeAdapter(
    Annotated[Start | Committed | Aborted | Stop | Evaluate | Save, Field(discriminator="kind")]
)
_REPORTS: TypeAdapter[Report] = TypeAdapter(
    Annotated[Hello | Progress | Ready | Evaluation | Withheld | Saved | Warned | Failed, Field(discriminator="kind")]
)


class ChannelClosed(ConnectionError):
    """The other process is gone."""


class ChannelError(ValueError):
    """A line that is no message of this channel: the two ends are of different versions."""


def encode(message: Event | Report) -> bytes:
    """One message as a line."""
    return message.model_dump_json().encode() + b"\n"


def decode_event(line: bytes) -> Event:
    """A line for the trainer. Raises `ChannelError`."""
    try:
        return _EVENTS.validate_json(line)
    except ValidationError as error:
        raise ChannelError(f"not an event for a trainer: {line[:200]!r}") from error


def decode_report(line: bytes) -> Report:
    """A line for the daemon. Raises `ChannelError`."""
    try:
        return _REPORTS.validate_json(line)
    except ValidationError as error:
        raise ChannelError(f"not a report of a trainer: {line[:200]!r}") from error


class TrainerChannel:
    """The trainer's end, blocking. Raises `ChannelClosed` once the daemon is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(True)
        self._partial = bytearray()
        self._events: deque[Event] = deque()

    def send(self, report: Report) -> None:
        """Write one report."""
        try:
            self._socket.sendall(encode(report))
        except OSError as error:
            raise ChannelClosed("the daemon is gone") from error

    def poll(self) -> Event | None:
        """The next event if there is one, without waiting."""
        while not self._events and self._is_readable():
            self._read()
        return self._events.popleft() if self._events else None

    def wait(self) -> Event:
        """The next event."""
        while not self._events:
            self._read()
        return self._events.popleft()

    def _is_readable(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def _read(self) -> None:
        try:
            data = self._socket.recv(65_536)
        except OSError as error:
            raise ChannelClosed("the daemon is gone") from error
        if not data:
            raise ChannelClosed("the daemon is gone")
        *lines, rest = (bytes(self._partial) + data).split(b"\n")
        self._partial = bytearray(rest)
        if len(rest) > MAX_MESSAGE_BYTES:
            raise ChannelError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes")
        self._events.extend(decode_event(line) for line in lines)


class DaemonChannel:
    """The daemon's end. Made with `open`, which takes the socket over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, connection: socket.socket) -> DaemonChannel:
        """Over one end of a `socket.socketpair`."""
        connection.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=MAX_MESSAGE_BYTES))

    async def send(self, event: Event) -> None:
        """Write one event. Raises `ChannelClosed`."""
        try:
            self._writer.write(encode(event))
            await self._writer.drain()
        except OSError as error:
            raise ChannelClosed("the trainer is gone") from error

    async def receive(self) -> Report:
        """The next report. Raises `ChannelClosed` when the trainer is gone, also if it died within a line."""
        try:
            line = await self._reader.readline()
        except OSError as error:
            raise ChannelClosed("the trainer is gone") from error
        if not line.endswith(b"\n"):
            raise ChannelClosed("the trainer is gone")
        return decode_report(line)

    def close(self) -> None:
        """Close this end; the trainer ends when it notices."""
        self._writer.close()
