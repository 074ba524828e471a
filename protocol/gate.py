"""What is let in: peers that the run admits, and of each no more than a member that keeps the protocol ever sends.

A transport authenticates peers but serves them all. Behind this gate, a stranger to a listed run is refused before
anything of it is parsed, and a flood costs its receivers a look at the length of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .allowance import Allowances
from .identity import PeerId
from .spec import Genesis
from .transport import ByteStream, MessageHandler, RemoteProtocolError, StreamHandler, Traffic, Transport

MESSAGES_PER_HEARTBEAT = 64
"""Of one peer. A leader says a handful of things between two heartbeats."""
MESSAGES_AT_ONCE = 512
BYTES_PER_HEARTBEAT = 4 << 20
BYTES_AT_ONCE = 16 << 20


class Gate:
    """A `Transport` that refuses strangers and drops floods. ``on_refused`` hears of each refusal."""

    def __init__(
        self,
        transport: Transport,
        genesis: Genesis,
        clock: Callable[[], float],
        on_refused: Callable[[RemoteProtocolError], None],
    ) -> None:
        interval_s = genesis.timing.heartbeat_interval_s
        self._shut_out: frozenset[PeerId] = frozenset()
        self._transport, self._admits, self._on_refused = transport, genesis.membership.admits, on_refused
        self._messages = Allowances(MESSAGES_PER_HEARTBEAT / interval_s, MESSAGES_AT_ONCE, clock)
        self._bytes = Allowances(BYTES_PER_HEARTBEAT / interval_s, BYTES_AT_ONCE, clock)

    def shut_out(self, peers: Iterable[PeerId]) -> None:
        """From now on, refuse these as well: the run has ejected them."""
        self._shut_out = frozenset(peers)

    @property
    def peer_id(self) -> PeerId:
        return self._transport.peer_id

    @property
    def traffic(self) -> Traffic:
        return self._transport.traffic

    async def send(self, peer: PeerId, message: bytes) -> None:
        await self._transport.send(peer, message)

    async def open(self, peer: PeerId, protocol: str) -> ByteStream:
        return await self._transport.open(peer, protocol)

    def on_message(self, handler: MessageHandler) -> None:
        async def handle(remote: PeerId, message: bytes) -> None:
            refusal = self._refusal(remote, len(message))
            if refusal is None:
                await handler(remote, message)
            else:
                self._on_refused(refusal)

        self._transport.on_message(handle)

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        async def handle(stream: ByteStream) -> None:
            if (refusal := self._exclusion(stream.remote)) is not None:
                raise refusal
            await handler(stream)

        self._transport.serve(protocol, handle)

    def _refusal(self, peer: PeerId, num_bytes: int) -> RemoteProtocolError | None:
        if (exclusion := self._exclusion(peer)) is not None:
            return exclusion
        if not self._messages.take(peer) or not self._bytes.take(peer, num_bytes):
            return RemoteProtocolError(peer, "flood", "it sends more messages than the protocol has use for")
        return None

    def _exclusion(self, peer: PeerId) -> RemoteProtocolError | None:
        if peer in self._shut_out:
            return RemoteProtocolError(peer, "ejected", "its misconduct was proven")
        return None if self._admits(peer) else RemoteProtocolError(peer, "membership", "this run does not list it")
