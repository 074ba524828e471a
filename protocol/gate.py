"""What is let in: peers that the run admits, and of each no more than a member that keeps the protocol ever sends.

A transport authenticates peers but serves them all. Behind this gate, a stranger to a listed run is refused before
anything of it is parsed, and a stranger to a run by invites after a look at a few short messages (`doorkeeper`). A
flood costs its receivers a look at the length of each message. What peers ask for on streams is given at
`LimitsConfig.served_bytes_per_s` each; a span's streams carry no more than their plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import audit
from .allowance import Allowances
from .doorkeeper import Doorkeeper
from .exchange import wire
from .gossip.wire import PROTOCOL as SWAP_PROTOCOL
from .identity import PeerId
from .quotas import (
    BYTES_AT_ONCE,
    BYTES_PER_HEARTBEAT,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_HEARTBEAT,
    STRANGER_MESSAGE_BYTES,
    STRANGER_MESSAGES_AT_ONCE,
    STRANGER_MESSAGES_PER_HEARTBEAT,
    STRANGERS_AT_ONCE,
    STRANGERS_PER_S,
    Meter,
    MeteredStream,
)
from .spec import Genesis
from .transport import ByteStream, MessageHandler, RemoteProtocolError, StreamHandler, Traffic, Transport

_ANY_STRANGER = PeerId("")
_UNMETERED = (wire.PROTOCOL, audit.PROTOCOL, SWAP_PROTOCOL)
"""Part of a round, and bounded by its plan or grid."""


class Gate:
    """A `Transport` that refuses strangers and drops floods. ``on_refused`` hears of each refusal."""

    def __init__(
        self,
        transport: Transport,
        genesis: Genesis,
        clock: Callable[[], float],
        on_refused: Callable[[RemoteProtocolError], None],
        doorkeeper: Doorkeeper,
    ) -> None:
        self._shut_out: frozenset[PeerId] = frozenset()
        self._transport, self._on_refused, self._doorkeeper = transport, on_refused, doorkeeper
        self._all_strangers = Allowances(STRANGERS_PER_S, STRANGERS_AT_ONCE, clock)
        self._clock = clock
        self.obey(genesis)

    def obey(self, genesis: Genesis) -> None:
        """From now on these rules say who is let in, and how often."""
        interval_s, clock = genesis.timing.heartbeat_interval_s, self._clock
        self._doorkeeper.obey(genesis)
        self._strangers = Allowances(STRANGER_MESSAGES_PER_HEARTBEAT / interval_s, STRANGER_MESSAGES_AT_ONCE, clock)
        self._messages = Allowances(MESSAGES_PER_HEARTBEAT / interval_s, MESSAGES_AT_ONCE, clock)
        self._bytes = Allowances(BYTES_PER_HEARTBEAT / interval_s, BYTES_AT_ONCE, clock)
        self._served = Meter(genesis.limits.served_bytes_per_s)

    def admits(self, peer: PeerId) -> bool:
        """Whether the rules let the peer in, and it has not been ejected."""
        return peer not in self._shut_out and self._doorkeeper.admits(peer)

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
            refusal = self._refusal(remote, message)
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

    def _refusal(self, peer: PeerId, message: bytes) -> RemoteProtocolError | None:
        exclusion = self._exclusion(peer)
        if exclusion is not None and (refusal := self._refusal_of_stranger(exclusion, message)) is not None:
            return refusal
        if not self._messages.take(peer) or not self._bytes.take(peer, len(message)):
            return RemoteProtocolError(peer, "flood", "it sends more messages than the protocol has use for")
        return None

    def _exclusion(self, peer: PeerId) -> RemoteProtocolError | None:
        if peer in self._shut_out:
            return RemoteProtocolError(peer, "ejected", "its misconduct was proven")
        if self._doorkeeper.admits(peer):
            return None
        return RemoteProtocolError(peer, "membership", "this run does not list it")

    def _refusal_of_stranger(self, exclusion: RemoteProtocolError, message: bytes) -> RemoteProtocolError | None:
        """None if it shows an invite. Looking for one costs a signature or two, so all strangers share an allowance."""
        peer = exclusion.peer
        if peer in self._shut_out or not self._doorkeeper.takes_invites:
            return exclusion
        is_short = len(message) <= STRANGER_MESSAGE_BYTES
        if not is_short or not self._strangers.take(peer) or not self._all_strangers.take(_ANY_STRANGER):
            return RemoteProtocolError(peer, "membership", "a stranger's messages are looked at only now and then")
        try:
            self._doorkeeper.receive(peer, message)
        except RemoteProtocolError as error:
            return error
        return None
