"""All peers of one in-memory run, their links and what is wrong with them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection

from ..identity import Identity, PeerId
from ..transport import (
    MAX_MESSAGE_BYTES,
    MessageHandler,
    PeerUnreachable,
    RemoteProtocolError,
    StreamClosed,
    StreamHandler,
    Traffic,
)
from ..wakeup import Signal
from .faults import CorruptStream, CutStream, Delay, Die, Drop, Fault, StallStream, Unreachable
from .streams import MemoryStream, Pipe

logger = logging.getLogger(__name__)

FRAMING_BYTES = 4


class MemoryNetwork:
    """All peers of one run, their links and what is wrong with them.

    ``window_bytes`` is how much a stream buffers per direction before a writer waits. ``sleep`` and ``now`` can be
    replaced by those of a fake clock; progress limits use the event loop's time.
    """

    def __init__(
        self,
        *,
        progress_timeout_s: float = 5.0,
        window_bytes: int = 1 << 20,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.progress_timeout_s = progress_timeout_s
        self.window_bytes = window_bytes
        self.now = now
        self.published: dict[PeerId, tuple[bytes, float]] = {}
        self.messages: list[tuple[PeerId, PeerId, bytes]] = []
        """Every control message that was sent, in order: sender, receiver, bytes (lost ones included)."""
        self._sleep = sleep
        self._transports: dict[PeerId, MemoryTransport] = {}
        self._faults: list[Fault] = []
        self._num_dropped: dict[int, int] = {}
        self._groups: list[frozenset[PeerId]] = []
        self._frozen: set[PeerId] = set()
        self._links: dict[tuple[PeerId, PeerId], deque[bytes]] = {}
        self._busy_links: set[tuple[PeerId, PeerId]] = set()
        self._streams: list[tuple[MemoryStream, MemoryStream]] = []
        self._stream_bytes: dict[PeerId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = Signal()

    # Peers

    def transport(self, peer: PeerId | Identity) -> MemoryTransport:
        """A transport for ``peer``. Asked again, it restarts the peer: the former transport is dead."""
        peer_id = peer.peer_id if isinstance(peer, Identity) else peer
        self.kill(peer_id)
        transport = self._transports[peer_id] = MemoryTransport(self, peer_id)
        return transport

    def directory(self, peer: PeerId | Identity) -> MemoryDirectory:
        return MemoryDirectory(self, peer.peer_id if isinstance(peer, Identity) else peer)

    def kill(self, peer: PeerId) -> None:
        """The peer's process dies: its streams end, messages on their way from and to it are lost."""
        self._transports.pop(peer, None)
        self._frozen.discard(peer)
        for link, messages in self._links.items():
            if peer in link:
                messages.clear()
        for stream, other in self._streams:
            if peer in (stream.remote, other.remote):
                stream.end("connection reset")
        self._changed.fire()

    def freeze(self, peer: PeerId) -> None:
        """The peer stays connected, but nothing from or to it moves until `thaw`."""
        self._frozen.add(peer)

    def thaw(self, peer: PeerId) -> None:
        self._frozen.discard(peer)
        self._wake()

    def partition(self, *groups: Collection[PeerId]) -> None:
        """Peers of different groups lose each other (streams included); peers in no group are alone."""
        self._groups = [frozenset(group) for group in groups]
        for stream, other in self._streams:
            if self._separated(stream.remote, other.remote):
                stream.end("connection reset")

    def heal(self) -> None:
        """Remove every fault, partition and freeze. Dead peers stay dead."""
        self._groups = []
        self._faults = []
        self._frozen.clear()
        self._wake()

    def inject(self, *faults: Fault) -> None:
        self._faults.extend(faults)

    def remove(self, fault: Fault) -> None:
        self._faults.remove(fault)

    async def settle(self) -> None:
        """Wait until every control message that can be delivered has been handled."""
        while self._busy_links:
            await self._changed.wait()

    # Messages

    def post(self, transport: MemoryTransport, receiver: PeerId, message: bytes) -> None:
        """Queue a message of ``transport``; raises `PeerUnreachable`."""
        sender = transport.peer_id
        self._check_reachable(transport, receiver)
        self.messages.append((sender, receiver, message))
        transport.traffic.count_sent(receiver, len(message) + FRAMING_BYTES)
        if self._is_dropped(sender, receiver, message):
            return
        self._links.setdefault((sender, receiver), deque()).append(message)
        self._start_link((sender, receiver))

    def _is_dropped(self, sender: PeerId, receiver: PeerId, message: bytes) -> bool:
        dropped = False
        for fault in self._faults:
            if isinstance(fault, Drop) and fault.concerns(sender, receiver) and fault.matches(message):
                number = self._num_dropped.get(id(fault), 0)
                self._num_dropped[id(fault)] = number + 1
                dropped |= number >= fault.first and (fault.count is None or number < fault.first + fault.count)
        return dropped

    def _start_link(self, link: tuple[PeerId, PeerId]) -> None:
        if link not in self._busy_links and self._frozen.isdisjoint(link):
            self._busy_links.add(link)
            self._start(self._run_link(link))

    async def _run_link(self, link: tuple[PeerId, PeerId]) -> None:
        messages = self._links[link]
        try:
            while messages and self._frozen.isdisjoint(link):
                await self._delay(*link)
                if messages:
                    await self._handle(link, messages.popleft())
        finally:
            self._busy_links.discard(link)
            self._changed.fire()

    async def _handle(self, link: tuple[PeerId, PeerId], message: bytes) -> None:
        transport = self._transports.get(link[1])
        if transport is None or transport.message_handler is None:
            return
        transport.traffic.count_received(link[0], len(message) + FRAMING_BYTES)
        try:
            await transport.message_handler(link[0], message)
        except Exception:
            logger.exception("handler of a message from …%s failed", link[0][-5:])

    # Streams

    async def connect(self, transport: MemoryTransport, receiver: PeerId, protocol: str) -> MemoryStream:
        """Open a stream and start the receiver's handler; raises `PeerUnreachable`."""
        sender = transport.peer_id
        await self._delay(sender, receiver)
        self._check_reachable(transport, receiver)
        await self._wait_for_answer(sender, receiver)
        handler = self._check_reachable(transport, receiver).stream_handlers.get(protocol)
        if handler is None:
            raise PeerUnreachable(receiver, f"it does not serve {protocol!r}")
        there, back = Pipe(sender, receiver, protocol), Pipe(receiver, sender, protocol)
        near, far = MemoryStream(self, there, back), MemoryStream(self, back, there)
        self._streams.append((near, far))
        self._start(self._serve(handler, near, far))
        return near

    async def _wait_for_answer(self, sender: PeerId, receiver: PeerId) -> None:
        try:
            async with asyncio.timeout(self.progress_timeout_s):
                while not self._frozen.isdisjoint((sender, receiver)):
                    await self._changed.wait()
        except TimeoutError:
            raise PeerUnreachable(receiver, f"no answer for {self.progress_timeout_s:g} s") from None

    async def _serve(self, handler: StreamHandler, near: MemoryStream, far: MemoryStream) -> None:
        try:
            await handler(far)
        except (StreamClosed, RemoteProtocolError) as error:
            logger.info("stream handler ended: %s", error)
        except Exception:
            logger.exception("stream handler failed")
        finally:
            await far.close()
            self._streams.remove((near, far))

    async def pass_faults(self, pipe: Pipe, num_bytes: int) -> None:
        """Apply cuts, stalls, deaths and delays to a frame that is about to be written."""
        await self._delay(pipe.sender, pipe.receiver)
        for fault in self._faults:
            if isinstance(fault, (CutStream, StallStream)) and self._strikes(fault, pipe, num_bytes):
                self._break(fault, pipe)
            if isinstance(fault, Die) and fault.sender == pipe.sender:
                transport = self._transports.get(pipe.sender)
                if transport and self._stream_bytes.get(pipe.sender, 0) + num_bytes > fault.after_bytes:
                    self.kill(pipe.sender)

    def _strikes(self, fault: CutStream | StallStream, pipe: Pipe, num_bytes: int) -> bool:
        protocol = fault.protocol in (None, pipe.protocol)
        return (
            protocol
            and fault.concerns(pipe.sender, pipe.receiver)
            and pipe.written_bytes + num_bytes > fault.after_bytes
        )

    def _break(self, fault: CutStream | StallStream, pipe: Pipe) -> None:
        if isinstance(fault, StallStream):
            pipe.stalled = True
            return
        for stream, _ in self._streams:
            if stream.uses(pipe):
                stream.end("connection reset")

    def deliver(self, pipe: Pipe, frame: bytes) -> None:
        """Put a frame into its pipe, corrupted if a fault says so."""
        for fault in self._faults:
            if isinstance(fault, CorruptStream) and fault.concerns(pipe.sender, pipe.receiver):
                position = fault.offset - pipe.written_bytes
                if fault.protocol in (None, pipe.protocol) and 0 <= position < len(frame):
                    frame = frame[:position] + bytes((frame[position] ^ 1,)) + frame[position + 1 :]
        if transport := self._transports.get(pipe.sender):
            transport.traffic.count_sent(pipe.receiver, len(frame) + FRAMING_BYTES)
        self._stream_bytes[pipe.sender] = self._stream_bytes.get(pipe.sender, 0) + len(frame)
        pipe.put(frame)

    def count_received(self, pipe: Pipe, frame: bytes) -> None:
        if transport := self._transports.get(pipe.receiver):
            transport.traffic.count_received(pipe.sender, len(frame) + FRAMING_BYTES)

    def is_frozen(self, pipe: Pipe) -> bool:
        return pipe.sender in self._frozen or pipe.receiver in self._frozen

    # Helpers

    def _check_reachable(self, transport: MemoryTransport, receiver: PeerId) -> MemoryTransport:
        sender = transport.peer_id
        if self._transports.get(sender) is not transport:
            raise PeerUnreachable(receiver, "this transport is closed")
        remote = self._transports.get(receiver)
        if remote is None or self._separated(sender, receiver):
            raise PeerUnreachable(receiver, "connection refused")
        if any(isinstance(fault, Unreachable) and fault.concerns(sender, receiver) for fault in self._faults):
            raise PeerUnreachable(receiver, "no route")
        return remote

    def _separated(self, first: PeerId, second: PeerId) -> bool:
        if not self._groups or first == second:
            return False
        return not any(first in group and second in group for group in self._groups)

    async def _delay(self, sender: PeerId, receiver: PeerId) -> None:
        for fault in self._faults:
            if isinstance(fault, Delay) and fault.concerns(sender, receiver):
                await self._sleep(fault.delay_s)

    def _wake(self) -> None:
        self._changed.fire()
        for near, far in self._streams:
            near.wake()
            far.wake()
        for link in list(self._links):
            self._start_link(link)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Kill every peer and wait for the handlers to end."""
        for peer in list(self._transports):
            self.kill(peer)
        while self._tasks:
            await asyncio.wait(set(self._tasks))


class MemoryTransport:
    """A peer's access to the network (`transport.Transport`)."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId) -> None:
        self._network = network
        self._peer_id = peer_id
        self._traffic = Traffic()
        self.message_handler: MessageHandler | None = None
        self.stream_handlers: dict[str, StreamHandler] = {}

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    async def send(self, peer: PeerId, message: bytes) -> None:
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(message)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        self._network.post(self, peer, bytes(message))

    def on_message(self, handler: MessageHandler) -> None:
        self.message_handler = handler

    async def open(self, peer: PeerId, protocol: str) -> MemoryStream:
        return await self._network.connect(self, peer, protocol)

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        self.stream_handlers[protocol] = handler


class MemoryDirectory:
    """A peer's access to the discovery records (`transport.Directory`)."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId) -> None:
        self._network = network
        self._peer_id = peer_id
        self._admits: Callable[[PeerId], bool] = lambda _: True

    async def publish(self, record: bytes, expires_unix_s: float) -> None:
        self._network.published[self._peer_id] = (record, expires_unix_s)

    def admit(self, admits: Callable[[PeerId], bool]) -> None:
        self._admits = admits

    async def records(self) -> list[bytes]:
        now, published = self._network.now(), self._network.published.items()
        return [record for peer, (record, expires) in published if expires > now and self._admits(peer)]
