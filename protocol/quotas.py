"""What one peer may take of a node: streams, bytes per second, memory and storage. All bounds in one place.

The spec's ``[limits]`` sets those that depend on the run (`spec.LimitsConfig`); the others follow from the protocol.
Over its quota a peer is slowed down where it asks for data, and its messages are dropped where it sends too many:
everything is repeated anyway, and neither costs the other peers theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from .identity import PeerId
from .transport import Buffer, ByteStream

# --- streams ----------------------------------------------------------------------------------------------------------

SPAN_STREAMS_PER_PEER = 32
"""Concurrent, per plan a handful: one per span that the node owns."""
RESULT_STREAMS_PER_PEER = 4
STATE_STREAMS_PER_PEER = 4
AUDIT_STREAMS_PER_PEER = 8
SWAP_STREAMS_PER_PEER = 2
"""One that is on its way and one that crosses it."""
INNER_STATE_STREAMS_PER_PEER = 1
EVIDENCE_STREAMS_PER_PEER = 2
PROBE_STREAMS_PER_PEER = 1
EVIDENCE_HELD = 4
"""Evidence of all peers together that is being received, and as many that are being shown: each may take as much memory
as one chunk of every member."""
DHT_CALLS_PER_PEER = 64
"""Concurrent calls of the directory; further ones are refused. Of all streams: `SwarmSettings.max_streams_per_peer`."""

RECENT_BYTES = 1 << 26
"""Samples of recent rounds' contributions that an owner keeps to know copies by (`recent.py`)."""

# --- bytes per second -------------------------------------------------------------------------------------------------

MESSAGES_PER_HEARTBEAT = 64
"""A leader says a handful of things between two heartbeats."""
MESSAGES_AT_ONCE = 512
BYTES_PER_HEARTBEAT = 4 << 20
BYTES_AT_ONCE = 16 << 20
SERVED_SECONDS_AT_ONCE = 4.0
"""So many seconds' worth of `LimitsConfig.served_bytes_per_s` are given without delay."""
REQUEST_BYTES = 64 << 10
"""Each question counts as at least so many bytes: looking for what is not here costs time too."""
MAX_METERED_PEERS = 4096
DHT_BYTES_PER_S, DHT_BYTES_AT_ONCE = 1 << 20, 32 << 20
"""Of the directory's answers to one peer. All records of 1,000 peers are 4 MiB, and a look-up asks a few holders."""

STRANGERS_PER_S, STRANGERS_AT_ONCE = 64.0, 256
"""Messages of peers not let in that are looked at for an invite, all together: a few hundredths of a core."""
STRANGER_MESSAGES_PER_HEARTBEAT, STRANGER_MESSAGES_AT_ONCE = 2, 8
"""Of one such peer."""
STRANGER_MESSAGE_BYTES = 8 << 10
"""Longest of them; a heartbeat with an invite and sixteen addresses has half of it."""

EVIDENCE_PER_S, EVIDENCE_AT_ONCE = 0.1, 16
"""Of one peer: accusations that are looked at, and plans resting on unknown evidence that make a node ask around. An
honest peer needs one of each per proven liar."""
SOUGHT_AT_ONCE = 64
"""Peers against whom one plan makes a node look for evidence."""
MAX_UNFINISHED_EVIDENCE = 3
"""Times that a peer may announce evidence that then does not come: each has kept a place that others need."""

# --- memory -----------------------------------------------------------------------------------------------------------

WAITING_BYTES_PER_PEER = 8 << 20
"""Of a peer's messages that wait for the round machine, while it is busy."""
WAITING_BYTES = 256 << 20
"""Of all peers' together."""
MAX_PRESENTED = 1024
"""Strangers that are let in because they have shown an invite, before a commit makes them members."""
EARLY_BYTES_PER_PEER = 2 << 20
"""Of a peer's messages for the next round."""
EARLY_BYTES = 64 << 20
STATED_BYTES_PER_PEER = 8 << 20
"""Of a peer's plans and proposals that are kept for comparison while a round lasts; a few ballots of the largest."""
STATED_BYTES = 256 << 20
GUARANTEED_BYTES = 64 << 10
"""What a peer may always have, however much the others have taken: 1,024 peers need 64 MiB."""
MESSAGE_OVERHEAD_BYTES = 4 << 10
"""Counted for each message besides its length."""

# --- storage ----------------------------------------------------------------------------------------------------------

ATTEMPTS_KEPT = 4
"""Means on disk of attempts of one round that are neither voted for nor running. A leader makes an attempt by a message
of a few kilobytes, and each takes the space of a whole encoded vector."""


EVIDENCE_KEPT = 64
"""Evidence on disk against peers whose ejection is committed: nobody asks for it any more. A member of the run that
works against it costs the others one evidence, whose largest part is a chunk of every member."""


class Shares:
    """Bytes that peers hold of something: each at most its share, all together at most the total.

    When the total is taken, a peer that has less than `GUARANTEED_BYTES` still gets that: others cannot take it away.
    """

    def __init__(self, per_peer: int, total: int) -> None:
        self._per_peer, self._total = per_peer, total
        self._num_bytes = 0
        self.of: Counter[PeerId] = Counter()
        """Peer -> what it holds."""

    def take(self, peer: PeerId, num_bytes: int) -> bool:
        """Take ``num_bytes`` for the peer; False, and nothing taken, if that is too much."""
        held = self.of[peer] + num_bytes
        fits = self._num_bytes + num_bytes <= self._total or held <= GUARANTEED_BYTES
        if held > self._per_peer or not fits:
            if not self.of[peer]:
                del self.of[peer]
            return False
        self.of[peer] = held
        self._num_bytes += num_bytes
        return True

    def give_back(self, peer: PeerId, num_bytes: int) -> None:
        """The peer no longer holds ``num_bytes`` that it took; more than it holds counts as all of it."""
        num_bytes = min(num_bytes, self.of[peer])
        self._num_bytes -= num_bytes
        self.of[peer] -= num_bytes
        if not self.of[peer]:
            del self.of[peer]


class Meter:
    """Spaces what is sent to each peer, so that over any longer time it gets at most ``bytes_per_s``.

    One bucket per peer, whatever number of streams it has open; the bucket longest unused is forgotten.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._burst = bytes_per_s * SERVED_SECONDS_AT_ONCE
        self._buckets: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()
        """Peer -> (level, time of that level); below zero while sends wait for their turn."""

    async def spend(self, peer: PeerId, num_bytes: int) -> None:
        """Wait for the turn of ``num_bytes`` of this peer."""
        now_s = self._clock()
        level, at_s = self._buckets.pop(peer, (self._burst, now_s))
        level = min(self._burst, level + (now_s - at_s) * self._bytes_per_s) - num_bytes
        self._buckets[peer] = (level, now_s)
        if len(self._buckets) > MAX_METERED_PEERS:
            self._buckets.popitem(last=False)
        if level < 0:
            await self._sleep(-level / self._bytes_per_s)


class MeteredStream:
    """A stream on which a peer asks questions: each costs it something, and each answer what it is long."""

    def __init__(self, stream: ByteStream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    @property
    def remote(self) -> PeerId:
        return self._stream.remote

    async def write(self, frame: Buffer) -> None:
        await self._meter.spend(self.remote, len(frame))
        await self._stream.write(frame)

    async def read(self, max_bytes: int) -> bytes:
        frame = await self._stream.read(max_bytes)
        await self._meter.spend(self.remote, REQUEST_BYTES)
        return frame

    async def close(self) -> None:
        await self._stream.close()
