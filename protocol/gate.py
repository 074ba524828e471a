"""What is let in: peers that the run admits, and of each no more than a member that keeps the protocol ever sends.

A transport authenticates peers but serves them all. Behind this gate, a stranger to a listed run is refused before
anything of it is parsed, and a flood costs its receivers a look at the length of each message. What peers ask for on
streams is given at `LimitsConfig.served_bytes_per_s` each; a span's streams carry no more than their plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import audit
from .allowance import Allowances
from .exchange import wire
from .identity import PeerId
from .quotas import (
    BYTES_AT_ONCE,
    BYTES_PER_HEARTBEAT,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_HEARTBEAT,
    Meter,
    MeteredStream,
)
from .spec import Genesis
from .transport import ByteStream, MessageHandler, RemoteProtocolError, StreamHandler, Traffic, Transport

_UNMETERED = (wire.PROTOCOL, audit.PROTOCOL)
"""Part of a round, and bounded by its plan."""


class Gate:
    """A `Transport` that refuses strangers and drops floods. ``on_refused`` hears of each refusal."""

    def __init__(
        self,
        transport: Transport,
        genesis: Genesis,
        clock: Callable[[], float],
        on_refused: Callable[[RemoteProtocolError], None],
    ) -> None:
        self._shut_out: frozenset[PeerId] = frozenset()
        self._transport, self._on_refused = transport, on_refused
        self._clock = clock
        self.obey(genesis)

    def obey(self, genesis: Genesis) -> None:
        """From now on these rules say who is let in, and how often."""
        interval_s, clock = genesis.timing.heartbeat_interval_s, self._clock
        self._admits = genesis.admits
        self._messages = Allowances(MESSAGES_PER_HEARTBEAT / interval_s, MESSAGES_AT_ONCE, clock)
        self._bytes = Allowances(BYTES_PER_HEARTBEAT / interval_s, BYTES_AT_ONCE, clock)
        self._served = Meter(genesis.limits.served_bytes_per_s)

    def admits(self, peer: PeerId) -> bool:
        """Whether the rules let the peer in, and it has not been ejected."""
        return self._admits(peer) and peer not in self._shut_out

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
            await handler(stream if protocol in _UNMETERED else MeteredStream(stream, self._served))

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
