"""Bulk streams beside libp2p: mutual TLS 1.3 over TCP wherever one of two peers can dial the other.

`open` gives a stream, or None at once when libp2p has to carry it: what failed is not tried again for a while. A
connection carries one stream at a time and is kept for the next. Only one of its ends opens streams, which is fixed
when it is agreed on, but either end may have dialled: a node behind a router dials out, for its own streams and for
others'.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from ... import transport as contract
from ...bandwidth import Caps
from ...identity import Identity, PeerId
from ..streams import Refused, ServeRaw, SwarmStream, greet
from .bundle import Carrier
from .certificates import Credentials
from .handover import Handovers
from .handshake import Declined, HandshakeFailed, Party
from .listener import Listener
from .negotiation import Here, Negotiator
from .outcomes import MAX_PEERS, Outcomes, Way
from .pool import IDLE_S, Pool
from .stream import DirectStream

MAX_OPEN_PER_PEER = 8
"""Streams that we have open at the same time; a further one goes over libp2p."""
MAX_SERVED_PER_PEER, MAX_SERVED = 32, 1024
"""Sockets on which peers open streams to us."""
SETTLE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DirectOptions:
    """What a caller fixes."""

    run_id: str
    hosts: Sequence[str]
    """Addresses to listen on. None: dial out only."""
    ports: Sequence[int]
    """The first that is free is taken; 0 takes any."""
    dial_timeout_s: float
    progress_timeout_s: float


class DirectTransport(Protocol):
    """What it needs of the transport that it is a part of."""

    caps: Caps

    @property
    def traffic(self) -> contract.Traffic: ...

    def protocol_name(self, name: str) -> str: ...

    async def open_raw(
        self, peer: PeerId, name: str, hello: bytes, timeout_s: float | None = None
    ) -> tuple[SwarmStream, bytes]:
        """A greeted libp2p stream and the welcome's payload. Raises `PeerUnreachable`."""
        ...

    def serve_raw(self, name: str, handler: ServeRaw) -> None:
        """Hand streams of a libp2p protocol to ``handler``."""
        ...

    async def serve_direct(self, stream: DirectStream) -> None:
        """Greet an incoming stream and handle it until it has ended. Never raises."""
        ...


@dataclass(frozen=True)
class DirectLinks:
    """How it meets the rest of the node."""

    transport: DirectTransport
    name: str
    """libp2p protocol on which connections are agreed."""
    admits: Callable[[PeerId], bool]
    """Who may connect."""
    is_reachable: Callable[[], bool]
    """Whether others can dial this node, as far as it is known."""
    on_change: Callable[[PeerId, str], None]
    """A peer's streams take this path from now on (empty text), or no longer, and why."""


class DirectPath:
    """One node's direct connections."""

    def __init__(self, identity: Identity, options: DirectOptions, links: DirectLinks) -> None:
        self._options, self._links = options, links
        self._pool, self._outcomes, handovers = Pool(), Outcomes(), Handovers()
        self._turns: defaultdict[PeerId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._num_open: Counter[PeerId] = Counter()
        self._served: dict[PeerId, set[Carrier]] = {}
        self._is_direct: dict[PeerId, bool] = {}
        """What was last said of each."""
        self._tasks: set[asyncio.Task[None]] = set()
        party = Party(options.run_id, Credentials.of(identity))
        here = Here(party, handovers, self._dialled_port, self._refusal, self._take_over, options.dial_timeout_s)
        name = links.transport.protocol_name(links.name)
        self._negotiator = Negotiator(here, links.transport.open_raw, name)
        links.transport.serve_raw(name, self._negotiator.answer)
        self._listener = Listener(party, handovers, self._negotiator.arrive)

    def start(self) -> None:
        """Listen. Raises `DirectPortInUse`."""
        self._listener.start(self._options.hosts, self._options.ports)

    @property
    def port(self) -> int:
        """Where it listens; 0 if it does not."""
        return self._listener.port

    def _dialled_port(self) -> int:
        return self._listener.port if self._links.is_reachable() else 0

    async def close(self) -> None:
        """End all connections, whatever they carry."""
        await self._listener.stop()
        await self._pool.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self, peer: PeerId) -> None:
        """End what is open with a peer, but for the streams that this node has opened."""
        self._pool.drop(peer)
        for connection in list(self._served.get(peer, ())):
            connection.abort()

    # --- opening

    async def open(self, peer: PeerId, protocol: str) -> DirectStream | None:
        """A greeted stream, or None if it has to go over libp2p.

        Raises `PeerUnreachable` if the peer's application refuses the stream.
        """
        if self._num_open[peer] >= MAX_OPEN_PER_PEER:
            return None
        self._num_open[peer] += 1
        stream = None
        try:
            stream = await self._open(peer, protocol)
        finally:
            if stream is None:
                self._release(peer)
        return stream

    async def _open(self, peer: PeerId, protocol: str) -> DirectStream | None:
        while (connection := self._pool.take(peer)) is not None:
            if (stream := await self._greeted(peer, connection, protocol)) is not None:
                return stream
        if self._outcomes.is_proven(peer):
            connection = await self._connect(peer)
        else:
            async with self._turns[peer]:  # nobody knows yet whether it works: one tries for all
                connection = await self._connect(peer)
        if connection is None:
            return None
        stream = await self._greeted(peer, connection, protocol)
        if stream is None:
            self._fail(peer, "out", "its application did not answer")
        return stream

    async def _connect(self, peer: PeerId) -> Carrier | None:
        for _ in range(2):
            way = self._outcomes.way(peer, _now_s(), can_be_dialled=bool(self._dialled_port()))
            if way is None:
                return None
            try:
                connection = await self._negotiator.ask(peer, way)
            except contract.PeerUnreachable as error:  # over libp2p, or of a make that knows nothing of this
                self._record(peer, way, error.why)
                return None
            except HandshakeFailed as error:
                self._fail(peer, way, str(error))
                if not isinstance(error, Declined):
                    return None
            else:
                self._outcomes.succeed(peer, way)
                self._say(peer, "")
                return connection
        return None

    def _record(self, peer: PeerId, way: Way, reason: str) -> None:
        self._outcomes.fail(peer, way, reason, _now_s(), can_be_dialled=bool(self._dialled_port()))

    def _fail(self, peer: PeerId, way: Way, reason: str) -> None:
        self._record(peer, way, reason)
        if pause_s := self._outcomes.retry_in_s(peer, _now_s()):
            self._say(peer, f"{reason} (tried again after {pause_s:.0f} s)")

    def _say(self, peer: PeerId, reason: str) -> None:
        """Tell of a change; a first failure is one, and further ones are not."""
        before = self._is_direct.pop(peer, None)
        self._is_direct[peer] = not reason
        if before != (not reason):
            self._links.on_change(peer, reason)
        while len(self._is_direct) > MAX_PEERS:
            self._is_direct.pop(next(iter(self._is_direct)))

    async def _greeted(self, peer: PeerId, connection: Carrier, protocol: str) -> DirectStream | None:
        """A stream on this connection; None, and the connection closed, if it does not answer."""
        is_greeted = False

        def on_end(is_reusable: bool) -> None:
            if is_greeted:
                self._release(peer)
            if is_reusable:
                self._spawn(self._recycle(peer, connection, stream))

        stream = self._stream(peer, connection, on_end)
        try:
            # The connection may have died unnoticed: libp2p is tried long before its own patience is over.
            await greet(stream, protocol.encode(), 2 * self._options.dial_timeout_s)
        except Refused as error:
            raise contract.PeerUnreachable(peer, error.why) from None
        except (contract.StreamClosed, contract.RemoteProtocolError):
            stream.abort()
            return None
        except BaseException:
            stream.abort()
            raise
        is_greeted = True
        return stream

    def _stream(self, peer: PeerId, connection: Carrier, on_end: Callable[[bool], None]) -> DirectStream:
        transport, limit_s = self._links.transport, self._options.progress_timeout_s
        return DirectStream(peer, connection, transport.traffic, limit_s, on_end, transport.caps)

    def _release(self, peer: PeerId) -> None:
        self._num_open[peer] -= 1
        if not self._num_open[peer]:
            del self._num_open[peer]

    async def _recycle(self, peer: PeerId, connection: Carrier, stream: DirectStream) -> None:
        if await _settled(connection, stream):
            self._pool.put(peer, connection)

    # --- serving

    def _refusal(self, peer: PeerId) -> str:
        if not self._links.admits(peer):
            return "this run does not list you"
        of_peer = self._served.get(peer, ())
        num_served = sum(each.num_sockets for served in self._served.values() for each in served)
        is_full = sum(each.num_sockets for each in of_peer) >= MAX_SERVED_PER_PEER or num_served >= MAX_SERVED
        return "too many connections" if is_full else ""

    def _take_over(self, connection: Carrier, peer: PeerId) -> None:
        self._spawn(self._serve(connection, peer))

    async def _serve(self, connection: Carrier, peer: PeerId) -> None:
        """Streams that the peer opens, one after the other, until it leaves the connection or is idle for long."""
        self._served.setdefault(peer, set()).add(connection)
        try:
            while await self._serve_one(connection, peer):
                pass
        finally:
            connection.abort()
            self._served[peer].discard(connection)
            if not self._served[peer]:
                del self._served[peer]

    async def _serve_one(self, connection: Carrier, peer: PeerId) -> bool:
        """Whether the connection can carry another stream."""
        try:
            async with asyncio.timeout(IDLE_S + SETTLE_TIMEOUT_S):  # the opener is to give it up first
                await connection.wait_until_readable()
        except (TimeoutError, OSError):
            return False
        ends: list[bool] = []
        stream = self._stream(peer, connection, ends.append)
        await self._links.transport.serve_direct(stream)
        return ends == [True] and await _settled(connection, stream)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _settled(connection: Carrier, stream: DirectStream) -> bool:
    """Whether both sides have ended the stream cleanly; otherwise the connection is closed."""
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            await stream.settle()
    except (TimeoutError, OSError):
        connection.abort()
        return False
    except asyncio.CancelledError:
        connection.abort()
        raise
    return True


def _now_s() -> float:
    return asyncio.get_running_loop().time()
