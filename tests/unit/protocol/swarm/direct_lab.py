"""Direct paths between nodes that agree over socket pairs in place of libp2p; the connections themselves are real."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from atoll.protocol import transport as contract
from atoll.protocol.bandwidth import NO_CAPS, Caps
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.swarm.direct import DirectPath, DirectStream
from atoll.protocol.swarm.direct.path import DirectLinks, DirectOptions
from atoll.protocol.swarm.streams import SwarmStream, greet, receive_hello, refuse, welcome

RUN = "ab" * 32
LOOPBACK = "/ip4/127.0.0.1/tcp/1"
Handler = Callable[[contract.ByteStream], Awaitable[None]]


async def echo(stream: contract.ByteStream) -> None:
    while True:
        await stream.write(await stream.read(contract.MAX_FRAME_BYTES))


@dataclass
class Libp2p:
    """Who can be reached, by peer id."""

    nodes: dict[PeerId, Node] = field(default_factory=dict)


class Node:
    """What `DirectPath` needs of a transport, and the path."""

    def __init__(
        self,
        libp2p: Libp2p,
        number: int,
        *,
        reachable: bool = True,
        host: str = "127.0.0.1",
        run_id: str = RUN,
        caps: Caps = NO_CAPS,
        handler: Handler = echo,
        progress_timeout_s: float = 5.0,
    ) -> None:
        self.identity = Identity.from_seed(bytes((number,)) * 32)
        self.me = self.identity.peer_id
        self.traffic, self.caps, self.handler = contract.Traffic(), caps, handler
        self.changes: list[tuple[PeerId, str]] = []
        self.strangers: set[PeerId] = set()
        self.offers: list[bytes] = []
        self.errors: list[contract.RemoteProtocolError] = []
        self._libp2p, self._tasks = libp2p, set[asyncio.Task[None]]()
        self.address = f"/ip6/{host}/tcp/1" if ":" in host else f"/ip4/{host}/tcp/1"
        """At which others see this node."""
        options = DirectOptions(run_id, (host,), (0,), 1.0, progress_timeout_s)
        admits = lambda peer: peer not in self.strangers  # noqa: E731
        links = DirectLinks(self, "direct", admits, lambda: reachable, lambda *change: self.changes.append(change))
        self.path = DirectPath(self.identity, options, links)
        self.path.start()
        libp2p.nodes[self.me] = self

    def protocol_name(self, name: str) -> str:
        return f"/test/{name}"

    def serve_raw(self, _name: str, handler: Callable[[SwarmStream, bytes, str], Awaitable[None]]) -> None:
        self._answer = handler

    async def open_raw(
        self, peer: PeerId, _name: str, hello: bytes, _timeout_s: float | None = None
    ) -> tuple[SwarmStream, bytes]:
        other = self._libp2p.nodes.get(peer)
        if other is None:
            raise contract.PeerUnreachable(peer, "gone")
        left, right = socket.socketpair()
        near = await _swarm_stream(peer, left, other.address)
        far = await _swarm_stream(self.me, right, self.address)
        other._spawn(other._answer_raw(far))
        try:
            return near, await greet(near, hello, 5.0)
        except contract.StreamClosed as error:
            raise contract.PeerUnreachable(peer, error.why) from None

    async def _answer_raw(self, stream: SwarmStream) -> None:
        hello = await receive_hello(stream, 5.0)
        assert hello is not None
        self.offers.append(hello)
        try:
            await self._answer(stream, hello, stream.address)
        except contract.RemoteProtocolError as error:
            self.errors.append(error)
        except contract.StreamClosed:
            pass
        finally:
            await stream.close()

    async def serve_direct(self, stream: DirectStream) -> None:
        try:
            hello = await receive_hello(stream, 5.0)
            if hello == b"unknown":
                await refuse(stream, "this node does not serve unknown")
            elif hello is not None:
                await welcome(stream)
                await self.handler(stream)
        except (contract.StreamClosed, contract.RemoteProtocolError):
            pass
        finally:
            await stream.close()

    def _spawn(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        self._libp2p.nodes.pop(self.me, None)
        await self.path.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _swarm_stream(peer: PeerId, sock: socket.socket, address: str) -> SwarmStream:
    reader, writer = await asyncio.open_connection(sock=sock)
    return SwarmStream(peer, reader, writer, contract.Traffic(), 5.0, address)
