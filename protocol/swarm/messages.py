"""Control messages over one persistent stream per peer and direction.

A sender opens its stream when it first has something to say and keeps it. Each message carries the sender's session and
a number; the receiver answers each with its number, after its handler has returned. Messages that a dying connection
left unanswered are sent again over the next one, and the receiver drops those it has seen, so that a restart of p2pd
loses and doubles nothing. After a failure further sends fail at once until a growing pause is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from .. import transport as contract
from ..identity import PeerId
from ._hivemind import log
from .streams import OpenStream, SwarmStream

PROTOCOL = "message"
_SESSION_BYTES = 8
_NUMBER_BYTES = 8
MAX_UNANSWERED = 256
MAX_UNANSWERED_BYTES = 16 << 20
RESEND_AGE_S = 60.0
"""An older message is not repeated: the round it belonged to has moved on."""
MAX_SESSIONS = 4096
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0


@dataclass
class _Unanswered:
    number: int
    message: bytes
    sent_s: float


class Outbox:
    """Ordered messages to one peer."""

    def __init__(self, peer: PeerId, session: bytes, open_stream: OpenStream, progress_timeout_s: float) -> None:
        self._peer = peer
        self._session = session
        self._open_stream = open_stream
        self._progress_timeout_s = progress_timeout_s
        self._turn = asyncio.Lock()
        self._stream: SwarmStream | None = None
        self._answers: asyncio.Task[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self.all_answered = asyncio.Event()
        """Set while the peer has handled everything."""
        self.all_answered.set()
        self._number = 0
        self._pause_s = 0.0
        self._retry_at_s = 0.0
        self._why = ""

    async def send(self, message: bytes) -> None:
        """Write ``message`` to the peer's stream. Raises `PeerUnreachable`; then the message is not kept."""
        async with self._turn:
            if self._stream is None:
                await self._connect()
            await self._wait_for_room()
            self._number += 1
            entry = _Unanswered(self._number, message, time.monotonic())
            self._remember(entry)
            try:
                await self._write(entry)
            except contract.StreamClosed:
                # The stream had died unnoticed: one new attempt, which repeats this message too.
                self._drop_stream()
                try:
                    await self._connect()
                except contract.PeerUnreachable:
                    self._forget(entry)
                    self._start_recovery()
                    raise

    async def _connect(self) -> None:
        """Open the stream and repeat what was not answered."""
        left_s = self._retry_at_s - time.monotonic()
        if left_s > 0:
            raise contract.PeerUnreachable(self._peer, f"{self._why} (next attempt in {left_s:.1f} s)")
        try:
            stream, _ = await self._open_stream(self._peer, PROTOCOL, self._session)
            self._stream = stream
            self._answers = asyncio.create_task(self._read_answers(stream))
            self._forget_old()
            for entry in list(self._unanswered):
                await self._write(entry)
        except (contract.PeerUnreachable, contract.StreamClosed) as error:
            self._drop_stream()
            self._pause(error.why)
            raise contract.PeerUnreachable(self._peer, error.why) from None
        self._pause_s = 0.0

    def _pause(self, why: str) -> None:
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._retry_at_s = time.monotonic() + self._pause_s
        self._why = why

    def retry_now(self) -> None:
        """Something changed (the peer was heard of, p2pd is back): the next send tries again."""
        self._retry_at_s = self._pause_s = 0.0

    async def _write(self, entry: _Unanswered) -> None:
        assert self._stream is not None
        await self._stream.write(entry.number.to_bytes(_NUMBER_BYTES, "big") + entry.message)

    async def _wait_for_room(self) -> None:
        """Back-pressure: a peer that answers nothing cannot make us keep more than the limits."""
        if self._room.is_set():
            return
        try:
            async with asyncio.timeout(self._progress_timeout_s):
                await self._room.wait()
        except TimeoutError:
            self._drop_stream()
            self._pause("it answers no messages")
            self._clear()
            raise contract.PeerUnreachable(self._peer, self._why) from None

    def _remember(self, entry: _Unanswered) -> None:
        self._unanswered.append(entry)
        self.all_answered.clear()
        self._unanswered_bytes += len(entry.message)
        if len(self._unanswered) >= MAX_UNANSWERED or self._unanswered_bytes >= MAX_UNANSWERED_BYTES:
            self._room.clear()

    def _forget(self, entry: _Unanswered) -> None:
        with contextlib.suppress(ValueError):
            self._unanswered.remove(entry)
            self._unanswered_bytes -= len(entry.message)
        self._room.set()
        if not self._unanswered:
            self.all_answered.set()

    def _forget_old(self) -> None:
        oldest_s = time.monotonic() - RESEND_AGE_S
        for entry in list(self._unanswered):
            if entry.sent_s < oldest_s:
                self._forget(entry)

    def _clear(self) -> None:
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self._room.set()
        self.all_answered.set()

    async def _read_answers(self, stream: SwarmStream) -> None:
        """Drop answered messages; notice the stream's end, and a peer that has stopped answering."""
        while True:
            try:
                answer = await stream.read(_NUMBER_BYTES)
            except contract.StreamClosed:
                if self._stream is stream:
                    self._stream = self._answers = None
                    self._start_recovery()
                return
            except contract.RemoteProtocolError as error:
                log.info("%s", error)
                return
            number = int.from_bytes(answer, "big")
            while self._unanswered and self._unanswered[0].number <= number:
                self._forget(self._unanswered[0])

    def _start_recovery(self) -> None:
        if self._unanswered and (self._recovery is None or self._recovery.done()):
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        """The connection died with messages unanswered: repeat them as soon as the peer is back, while they matter."""
        while self._unanswered:
            await asyncio.sleep(max(0.0, self._retry_at_s - time.monotonic()))
            async with self._turn:
                self._forget_old()
                if self._stream is not None:
                    return
                with contextlib.suppress(contract.PeerUnreachable):
                    await self._connect()

    def _drop_stream(self) -> None:
        if self._answers is not None:
            self._answers.cancel()
        if self._stream is not None:
            self._stream.abort()
        self._stream = self._answers = None

    async def close(self) -> None:
        """End the stream; unanswered messages are lost."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        if self._stream is not None:
            await self._stream.close()
        if self._answers is not None:
            self._answers.cancel()
            await asyncio.gather(self._answers, return_exceptions=True)
        self._stream = self._answers = None


def new_session() -> bytes:
    """Tells one run of this program from the next one with the same identity."""
    return os.urandom(_SESSION_BYTES)


@dataclass
class Inbox:
    """Remembers per sender what was received, so that repeated messages are dropped."""

    _seen: OrderedDict[PeerId, tuple[bytes, int]] = field(default_factory=OrderedDict[PeerId, tuple[bytes, int]])

    def is_new(self, peer: PeerId, session: bytes, number: int) -> bool:
        """Whether message ``number`` of ``session`` is the first of its number; marks it as received."""
        last_session, last_number = self._seen.get(peer, (session, 0))
        if last_session == session and number <= last_number:
            return False
        self._seen[peer] = (session, number)
        self._seen.move_to_end(peer)
        if len(self._seen) > MAX_SESSIONS:
            self._seen.popitem(last=False)
        return True

    async def receive(self, stream: SwarmStream, session: bytes, handler: contract.MessageHandler) -> None:
        """Hand every new message of ``stream`` to ``handler``, in order, until the stream ends."""
        if len(session) != _SESSION_BYTES:
            raise contract.RemoteProtocolError(stream.remote, "malformed hello of a message stream")
        while True:
            frame = await stream.read(_NUMBER_BYTES + contract.MAX_MESSAGE_BYTES)
            if len(frame) < _NUMBER_BYTES:
                raise contract.RemoteProtocolError(stream.remote, "message without a number")
            number, message = int.from_bytes(frame[:_NUMBER_BYTES], "big"), frame[_NUMBER_BYTES:]
            if self.is_new(stream.remote, session, number):
                await _handle(handler, stream.remote, message)
            await stream.write(number.to_bytes(_NUMBER_BYTES, "big"))


async def _handle(handler: contract.MessageHandler, peer: PeerId, message: bytes) -> None:
    try:
        await handler(peer, message)
    except Exception as error:
        log.warning("handling a message of …%s failed: %s: %s", peer[-5:], type(error).__name__, error)
        log.debug("details", exc_info=True)
