"""What the protocol needs of a network: messages between peers and framed byte streams.

Two implementations: `atoll.protocol.swarm` (libp2p through hivemind) and `atoll.protocol.memory` (in-process, with
faults as data, for tests and the simulator). The remote peer id that a transport reports is authenticated: nothing a
peer says about itself overrides it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from .identity import PeerId

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_MESSAGE_BYTES = 1 << 20
"""Largest control message. A commit of 128 peers with its certificate is about 100 kB."""

MAX_FRAME_BYTES = 4 << 20
"""Largest stream frame; a chunk of 262,144 elements at 32 bits is 1 MiB. Larger payloads are split by their sender."""


class PeerUnreachable(ConnectionError):
    """A peer cannot be reached now. An expected loss: callers carry on without the peer."""

    def __init__(self, peer: PeerId, why: str) -> None:
        super().__init__(f"peer …{peer[-5:]} is unreachable: {why}")
        self.peer = peer
        self.why = why


class StreamClosed(ConnectionError):
    """The remote ended the stream, died, or made no progress for the stream's time limit."""

    def __init__(self, peer: PeerId, why: str) -> None:
        super().__init__(f"stream to …{peer[-5:]} ended: {why}")
        self.peer = peer
        self.why = why


class RemoteProtocolError(Exception):
    """A peer broke the protocol. Carries the peer, so that the caller can reject or ban it with a reason."""

    def __init__(self, peer: PeerId, rule: str, detail: str = "") -> None:
        super().__init__(f"peer …{peer[-5:]} broke the protocol ({rule}){': ' + detail if detail else ''}")
        self.peer = peer
        self.rule = rule
        self.detail = detail


class RulesDiffer(RemoteProtocolError):
    """A peer goes by other rules of the run than we do: one of us has missed an amendment. Nobody's misconduct."""


class ByteStream(Protocol):
    """A bidirectional stream of length-framed messages to one authenticated peer.

    There is no half-close: both sides agree in-band on the last frame. Every read and write is bounded by the
    transport's progress time limit and raises `StreamClosed` when it passes.
    """

    @property
    def remote(self) -> PeerId:
        """Authenticated peer at the other end."""
        ...

    async def write(self, frame: Buffer) -> None:
        """Send one frame; waits while the peer does not read (back-pressure). Raises `StreamClosed`."""
        ...

    async def read(self, max_bytes: int) -> bytes:
        """Receive one frame. Raises `StreamClosed` at the end, `RemoteProtocolError` if it is over ``max_bytes``
        (before any memory for it is taken)."""
        ...

    async def close(self) -> None:
        """End both directions. Idempotent, never raises."""
        ...


MessageHandler: TypeAlias = Callable[[PeerId, bytes], Awaitable[None]]
StreamHandler: TypeAlias = Callable[[ByteStream], Awaitable[None]]


MAX_COUNTED_PEERS = 4096


@dataclass
class Traffic:
    """Bytes counted at the socket, control messages and framing included; by peer for the first `MAX_COUNTED_PEERS`."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_to: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    received_from: dict[PeerId, int] = field(default_factory=dict[PeerId, int])

    def count_sent(self, peer: PeerId, num_bytes: int) -> None:
        self.sent_bytes += num_bytes
        _count(self.sent_to, peer, num_bytes)

    def count_received(self, peer: PeerId, num_bytes: int) -> None:
        self.received_bytes += num_bytes
        _count(self.received_from, peer, num_bytes)


def _count(table: dict[PeerId, int], peer: PeerId, num_bytes: int) -> None:
    if peer in table or len(table) < MAX_COUNTED_PEERS:  # identities are free: strangers must not fill memory
        table[peer] = table.get(peer, 0) + num_bytes


class Transport(Protocol):
    """One node's access to its run's peers. Traffic of other runs never arrives here."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def traffic(self) -> Traffic: ...

    async def send(self, peer: PeerId, message: bytes) -> None:
        """Deliver one control message of at most `MAX_MESSAGE_BYTES`, in order per peer while the connection lasts.

        Best effort: returning does not prove that the peer handled it. Raises `PeerUnreachable`.
        """
        ...

    def on_message(self, handler: MessageHandler) -> None:
        """Set the handler of incoming control messages. Its exceptions are logged and do not end the connection."""
        ...

    async def open(self, peer: PeerId, protocol: str) -> ByteStream:
        """Open a stream; returns only after the peer's application has answered a hello. Raises `PeerUnreachable`."""
        ...

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Handle incoming streams of ``protocol`` (for example ``"span"``). The stream is closed when it returns."""
        ...


class Directory(Protocol):
    """Discovery: signed records of all peers of a run, kept by the peers themselves (hivemind's DHT, or memory)."""

    async def publish(self, record: bytes, expires_unix_s: float) -> None:
        """Store this node's signed record under its own peer id. Best effort."""
        ...

    def admit(self, admits: Callable[[PeerId], bool]) -> None:
        """From now on keep records of these peers only: others must not take the places of the run's own."""
        ...

    async def records(self) -> list[bytes]:
        """The signed records of all peers that are known at present (unverified; the caller checks signatures)."""
        ...
