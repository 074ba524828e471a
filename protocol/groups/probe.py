"""Measures the line to a peer by a short transfer.

On a ``probe`` stream the client asks for a number of bytes (4 bytes, little endian, at most `MAX_BYTES`); the answer is
`payload.YES` at once, then that many bytes. The time to the former is the round trip, from there to the end the rate.
"""

from __future__ import annotations

import asyncio
import struct
import time

from ..identity import PeerId
from ..payload import YES, read_answer, read_payload, write_payload
from ..quotas import PROBE_STREAMS_PER_PEER
from ..stream_limit import StreamLimit
from ..transport import ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport
from .choice import Probe

PROTOCOL = "probe"
MAX_BYTES = 1 << 20
PROBE_BYTES = 256 << 10
"""Takes a quarter of a second at 8 Mbit/s; of a faster line it shows that it is fast."""
_REQUEST = struct.Struct("<I")


class ProbeServer:
    """Answers probes; one per node. What it sends is metered like anything that peers ask for (`gate`)."""

    def __init__(self, transport: Transport) -> None:
        self._limit = StreamLimit(PROBE_STREAMS_PER_PEER)
        transport.serve(PROTOCOL, self._handle)

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            request = await stream.read(_REQUEST.size)
            num_bytes = _REQUEST.unpack(request)[0] if len(request) == _REQUEST.size else MAX_BYTES + 1
            if num_bytes > MAX_BYTES:
                raise RemoteProtocolError(stream.remote, "malformed probe")
            await stream.write(YES)
            await write_payload(stream, bytes(num_bytes))
            await stream.read(1)  # until the client has it all, and closes


async def probe(transport: Transport, peer: PeerId, limit_s: float) -> Probe | None:
    """Measure the line to ``peer``; None if it does not answer within ``limit_s``."""
    try:
        async with asyncio.timeout(limit_s):
            stream = await transport.open(peer, PROTOCOL)
            try:
                return await _measure(stream)
            finally:
                await stream.close()
    except (TimeoutError, PeerUnreachable, StreamClosed, RemoteProtocolError):
        return None


async def _measure(stream: ByteStream) -> Probe:
    started_s = time.perf_counter()
    await stream.write(_REQUEST.pack(PROBE_BYTES))
    if not await read_answer(stream):
        raise RemoteProtocolError(stream.remote, "malformed probe")
    answered_s = time.perf_counter()
    await read_payload(stream, PROBE_BYTES)
    return Probe(answered_s - started_s, PROBE_BYTES / max(time.perf_counter() - answered_s, 1e-6))
