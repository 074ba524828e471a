"""`transport.Transport` over whichever p2pd is running at the moment."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from .. import transport as contract
from ..allowance import Allowances
from ..bandwidth import BandwidthCap, Caps
from ..identity import PeerId
from . import addresses, messages
from ._hivemind import log
from .direct import DirectPath, DirectStream
from .p2pd import P2pd, P2pdError
from .paths import Paths
from .settings import SwarmEvent, SwarmSettings
from .streams import FramedStream, ServeRaw, SwarmStream, greet, receive_hello, refuse, welcome

STREAMS = "stream"
"""libp2p protocol of all bulk streams; the hello names the application's protocol."""
MAX_KNOWN_PEERS = 4096
_UNRELAYED_POLL_S = 0.25
_REFUSALS_SAID_PER_S, _REFUSALS_SAID_AT_ONCE = 0.1, 16
"""Of one peer. A flood of bad streams must not become a flood of log lines."""


class Libp2pTransport:
    """Messages and streams to the run's peers.

    While p2pd is being restarted, calls wait for it within their time limits; what was open before is closed.
    """

    def __init__(self, peer_id: PeerId, settings: SwarmSettings, emit: Callable[[SwarmEvent], None]) -> None:
        self._peer_id = peer_id
        self._settings = settings
        self._emit = emit
        self._traffic = contract.Traffic()
        self.caps = Caps(BandwidthCap(settings.upload_bytes_per_s), BandwidthCap(settings.download_bytes_per_s))
        self._control_caps = self.caps.bypassed()
        self.paths = Paths(settings.direct_timeout_s)
        self.direct: DirectPath | None = None
        """Tried first for streams."""
        self._daemon: asyncio.Future[P2pd] = asyncio.get_running_loop().create_future()
        self._addresses: collections.OrderedDict[PeerId, tuple[str, ...]] = collections.OrderedDict()
        self._served: dict[str, contract.StreamHandler] = {}
        self._raw_served: dict[str, ServeRaw] = {}
        self._num_streams: collections.Counter[PeerId] = collections.Counter()
        self._refused_until_s: dict[PeerId, float] = {}
        self._refusals_said = Allowances(_REFUSALS_SAID_PER_S, _REFUSALS_SAID_AT_ONCE, time.monotonic)
        self._session = messages.new_session()
        self._outboxes: dict[PeerId, messages.Outbox] = {}
        self._inbox = messages.Inbox()
        self._message_handler: contract.MessageHandler | None = None
        self._has_handler = asyncio.Event()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.serve_raw(self.protocol_name(messages.PROTOCOL), self._receive_messages)
        self.serve_raw(self.protocol_name(STREAMS), self._serve_stream)

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def traffic(self) -> contract.Traffic:
        """Bytes at the sockets: framing included, encryption and multiplexing (libp2p's about 1 %, TLS 0.2 %) not."""
        return self._traffic

    def protocol_name(self, name: str) -> str:
        """libp2p protocol id; carries the run, so that peers of two runs cannot open streams to each other."""
        return f"{protocol_prefix(self._settings.run_id)}{name}"

    # --- what others do to us

    def on_message(self, handler: contract.MessageHandler) -> None:
        self._message_handler = handler
        self._has_handler.set()

    def serve(self, protocol: str, handler: contract.StreamHandler) -> None:
        # Not a libp2p protocol each, so that registering is immediate and a restart of p2pd has little to restore.
        self._served[protocol] = handler

    async def _serve_stream(self, stream: FramedStream, hello: bytes, _address: str) -> None:
        handler = self._served.get(hello.decode("ascii", "replace"))
        if handler is None:
            await refuse(stream, "it does not serve this protocol (yet)")
            return
        await welcome(stream)
        await handler(stream)

    def serve_raw(self, name: str, handler: ServeRaw) -> None:
        """Serve libp2p protocol ``name``; ``handler`` gets the stream, the hello's payload and the remote address."""
        self._raw_served[name] = handler
        if self._daemon.done():
            self._spawn(self._register_now(self._daemon.result(), name))

    async def _register_now(self, daemon: P2pd, name: str) -> None:
        with contextlib.suppress(P2pdError):  # the watchdog notices, restarts p2pd and registers everything again
            await self._register(daemon, name)

    async def _register(self, daemon: P2pd, name: str) -> None:
        async def accept(
            peer: PeerId, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await self._accept(name, peer, address, reader, writer)

        await daemon.serve(name, accept, self._settings.health_timeout_s)

    async def _accept(
        self, name: str, peer: PeerId, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._num_streams.total() >= self._settings.max_streams:
            writer.transport.abort()
            return
        if self._is_over_limit(peer):
            writer.transport.abort()
            await self._refuse(peer)
            return
        self._hear_from(peer, address)
        stream, handler = self._stream(name, peer, address, reader, writer), self._raw_served[name]
        await self._run(stream, lambda hello: handler(stream, hello, address))

    async def serve_direct(self, stream: DirectStream) -> None:
        """Handle a stream that came in beside libp2p, under the same limits. Never raises."""
        if self._num_streams.total() >= self._settings.max_streams:
            stream.abort()
        elif self._is_over_limit(stream.remote):
            stream.abort()
            await self._refuse(stream.remote)
        else:
            await self._run(stream, lambda hello: self._serve_stream(stream, hello, ""))

    def _stream(
        self, name: str, peer: PeerId, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> SwarmStream:
        caps = self.caps if name == self.protocol_name(STREAMS) else self._control_caps
        return SwarmStream(peer, reader, writer, self._traffic, self._settings.progress_timeout_s, address, caps)

    async def _run(self, stream: FramedStream, handler: Callable[[bytes], contract.Awaitable[None]]) -> None:
        peer = stream.remote
        self._num_streams[peer] += 1
        try:
            await self._run_handler(stream, handler)
        finally:
            self._num_streams[peer] -= 1
            if not self._num_streams[peer]:
                del self._num_streams[peer]
            await stream.close()

    async def _run_handler(self, stream: FramedStream, handler: Callable[[bytes], contract.Awaitable[None]]) -> None:
        hello = await receive_hello(stream, self._settings.connect_timeout_s)
        if hello is None:
            return
        try:
            await handler(hello)
        except contract.StreamClosed as error:
            log.debug("%s", error)
        except contract.RemoteProtocolError as error:
            if self._refusals_said.take(stream.remote):
                log.warning("%s", error)
                self._emit(SwarmEvent("peer_refused", str(error), stream.remote))
        except Exception as error:
            log.warning("serving …%s failed: %s: %s", stream.remote[-5:], type(error).__name__, error)
            log.debug("details", exc_info=True)

    def _is_over_limit(self, peer: PeerId) -> bool:
        refused_until_s = self._refused_until_s.get(peer, 0.0)
        if refused_until_s > time.monotonic():
            return True
        self._refused_until_s.pop(peer, None)
        return self._num_streams[peer] >= self._settings.max_streams_per_peer

    async def _refuse(self, peer: PeerId) -> None:
        """Disconnect a peer that opened too many streams, and refuse it for a while."""
        if peer not in self._refused_until_s:
            limit = self._settings.max_streams_per_peer
            text = f"peer …{peer[-5:]} opened more than {limit} streams at once and was disconnected"
            self._emit(SwarmEvent("peer_refused", text, peer))
        self._refused_until_s[peer] = time.monotonic() + self._settings.refuse_s
        while len(self._refused_until_s) > MAX_KNOWN_PEERS:
            self._refused_until_s.pop(next(iter(self._refused_until_s)))
        if self.direct is not None:
            self.direct.drop(peer)
        if self._daemon.done():
            with contextlib.suppress(P2pdError):
                await self._daemon.result().disconnect(peer, self._settings.health_timeout_s)

    async def _receive_messages(self, stream: SwarmStream, session: bytes, _address: str) -> None:
        await welcome(stream)
        if (outbox := self._outboxes.get(stream.remote)) is not None:
            outbox.retry_now()
        await self._inbox.receive(stream, session, self._on_message)

    async def _on_message(self, peer: PeerId, message: bytes) -> None:
        await self._has_handler.wait()  # unanswered until then, so the sender keeps it
        assert self._message_handler is not None
        await self._message_handler(peer, message)

    # --- what we do

    async def send(self, peer: PeerId, message: bytes) -> None:
        if len(message) > contract.MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(message)} bytes is over the limit of {contract.MAX_MESSAGE_BYTES}")
        if peer == self._peer_id:
            raise contract.PeerUnreachable(peer, "it is this node itself")
        outbox = self._outboxes.get(peer)
        if outbox is None:
            timeout_s = self._settings.progress_timeout_s
            outbox = messages.Outbox(peer, self._session, self._open_run_stream, timeout_s)
            self._outboxes[peer] = outbox
        await outbox.send(message)

    async def open(self, peer: PeerId, protocol: str) -> contract.ByteStream:
        """See `transport.Transport.open`. A peer that is relay-only (`paths.Paths`) is refused at once; one that was
        met through a relay just now gets the time for a connection without."""
        if self.direct is not None and (stream := await self.direct.open(peer, protocol)) is not None:
            self.paths.note(peer, "direct", time.monotonic())
            return stream
        while True:
            if self._settings.bulk_over_relay or not self.paths.is_relay_only(peer, time.monotonic()):
                stream, _ = await self._open_run_stream(peer, STREAMS, protocol.encode())
                self.paths.note(peer, "relayed" if stream.is_relayed else "libp2p", time.monotonic())
                if self._settings.bulk_over_relay or not stream.is_relayed:
                    return stream
                stream.abort()
            if self.paths.is_relay_only(peer, time.monotonic()):
                limit_s = self._settings.direct_timeout_s
                raise contract.PeerUnreachable(peer, f"only through a relay, no direct connection within {limit_s:g} s")
            await asyncio.sleep(_UNRELAYED_POLL_S)

    async def _open_run_stream(self, peer: PeerId, protocol: str, hello: bytes) -> tuple[SwarmStream, bytes]:
        return await self.open_raw(peer, self.protocol_name(protocol), hello)

    async def open_raw(
        self, peer: PeerId, name: str, hello: bytes, timeout_s: float | None = None
    ) -> tuple[SwarmStream, bytes]:
        """Connect to known addresses, open libp2p protocol ``name`` and exchange hellos. Raises `PeerUnreachable`."""
        limit_s = timeout_s or self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                daemon = await self.daemon(limit_s)
                if known := self._addresses.get(peer):
                    await daemon.connect(peer, known, limit_s)
                address, reader, writer = await daemon.open_stream(peer, name, limit_s)
                stream = self._stream(name, peer, address, reader, writer)
                return stream, await _greet_or_abort(stream, hello, limit_s)
        except TimeoutError:
            raise contract.PeerUnreachable(peer, f"no answer within {limit_s:g} s") from None
        except (P2pdError, contract.StreamClosed, contract.RemoteProtocolError) as error:
            why = error.why if isinstance(error, contract.StreamClosed) else shorten(str(error))
            raise contract.PeerUnreachable(peer, why) from None

    async def connect(self, peer: PeerId, known: tuple[str, ...] = ()) -> None:
        """Remember ``known`` addresses and dial the peer. Raises `PeerUnreachable`."""
        self.learn(peer, known)
        try:
            daemon = await self.daemon(self._settings.connect_timeout_s)
            await daemon.connect(peer, self._addresses.get(peer, ()), self._settings.connect_timeout_s)
        except P2pdError as error:
            raise contract.PeerUnreachable(peer, shorten(str(error))) from None

    async def connect_all(self, targets: Mapping[PeerId, Sequence[str]], timeout_s: float) -> None:
        """Dial all at once for at most ``timeout_s``; one that hangs delays nobody further. Never raises."""
        tasks = [
            asyncio.create_task(self.connect(peer, tuple(dict.fromkeys(texts)))) for peer, texts in targets.items()
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def learn(self, peer: PeerId, known: tuple[str, ...]) -> None:
        """Remember where a peer can be dialled; replaces what was known. Addresses that do not parse are left out."""
        usable = tuple(text for text in (usable_address(peer, text) for text in known) if text)
        if not usable or peer == self._peer_id:
            return
        self._addresses[peer] = usable
        self._addresses.move_to_end(peer)
        while len(self._addresses) > MAX_KNOWN_PEERS:
            self._addresses.popitem(last=False)

    def _hear_from(self, peer: PeerId, address: str) -> None:
        """libp2p dials from its listen port where it can, so that an incoming connection tells where to dial back."""
        if address and peer not in self._addresses and not addresses.is_relayed(address):
            self.learn(peer, (address,))

    @property
    def known_addresses(self) -> dict[PeerId, tuple[str, ...]]:
        return dict(self._addresses)

    # --- p2pd comes and goes

    async def daemon(self, timeout_s: float) -> P2pd:
        """The running p2pd, waiting for a restart. Raises `P2pdError` after ``timeout_s``, and once closed."""
        if self._closed:
            raise P2pdError("this node's network is stopped")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._daemon)
        except TimeoutError:
            raise P2pdError("p2pd is not running") from None

    async def attach(self, daemon: P2pd) -> None:
        """Register all handlers with a new p2pd, then let waiting calls go on. Raises `P2pdError`."""
        for name in list(self._raw_served):
            await self._register(daemon, name)
        for outbox in self._outboxes.values():
            outbox.retry_now()
        self._daemon.set_result(daemon)

    def detach(self) -> None:
        """p2pd is gone: calls wait from now on."""
        if self._daemon.done():
            self._daemon = asyncio.get_running_loop().create_future()

    async def close(self, grace_s: float = 0.5) -> None:
        """Let the last messages be answered within ``grace_s``, then end everything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(box.all_answered.wait() for box in self._outboxes.values()))
        self._closed = True
        if self.direct is not None:
            await self.direct.close()
        await asyncio.gather(*(box.close() for box in self._outboxes.values()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: contract.Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _greet_or_abort(stream: SwarmStream, hello: bytes, timeout_s: float) -> bytes:
    try:
        return await greet(stream, hello, timeout_s)
    except BaseException:  # cancellation included: nobody else knows of the stream yet
        stream.abort()
        raise


def protocol_prefix(run_id: str) -> str:
    """Start of all libp2p protocol ids of a run (128 bits of its id)."""
    return f"/atoll/1/{run_id[:32]}/"


def usable_address(peer: PeerId, text: str) -> str | None:
    """The address without the peer's own id, or None if it is malformed or names another peer."""
    address, named = addresses.split_peer(text)
    if named not in (None, peer):
        return None
    try:
        addresses.to_bytes(address)
    except ValueError:
        return None
    return address


def shorten(text: str) -> str:
    """p2pd's multi-address dial errors, cut to what a user can read in one line."""
    if "failed to find any peer in table" in text:
        return "it is not connected and none of its addresses is known"
    return text if len(text) <= 300 else text[:297] + "…"
