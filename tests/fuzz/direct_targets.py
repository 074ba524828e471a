"""Parsers of what peers say on the way to, and on, a connection beside libp2p."""

from __future__ import annotations

from functools import cache
from typing import Any

from atoll.protocol.identity import Identity
from atoll.protocol.swarm.direct.certificates import MAX_CERTIFICATE_BYTES, Credentials, peer_of
from atoll.protocol.swarm.direct.handover import MAX_REASON_CHARS, Answer, Handover, Handovers, Offer, Ticket
from atoll.protocol.swarm.direct.handshake import HandshakeFailed, Party
from atoll.protocol.swarm.direct.negotiation import MAX_TICKET_BYTES, Here, Negotiator, _read_answer, _read_ticket
from atoll.protocol.swarm.direct.stream import DirectStream
from atoll.protocol.swarm.streams import MAX_HELLO_BYTES, SwarmStream
from atoll.protocol.transport import MAX_FRAME_BYTES, RemoteProtocolError, StreamClosed, Traffic

from . import examples as ex
from .harness import MIB, ON_STREAMS, PEER, Target, frames, on_stream, run_async, served, stream_of

_MODULE = "protocol/swarm/direct/"
CERTIFICATE = Credentials.of(Identity.from_seed(bytes([1]) * 32)).certificate
TICKET = Ticket(port=4001, number="0f" * 16, secret="1e" * 32)
OFFERS = [Offer(certificate=CERTIFICATE.hex(), dialler=dialler).canonical() for dialler in ("asker", "answerer")]
ANSWERS = [Answer(certificate=CERTIFICATE.hex(), ticket=ticket).canonical() for ticket in (None, TICKET)]


async def _nothing(*_: object) -> Any:
    raise AssertionError("the fuzzer opens nothing")


@cache
def _party() -> Party:
    return Party(ex.RUN, Credentials.of(ex.ME))


def _negotiator() -> Negotiator:
    here = Here(_party(), Handovers(), lambda: 4001, lambda _peer: "", lambda *_: None, dial_timeout_s=0.002)
    return Negotiator(here, _nothing, "direct")


def _answer(hello: bytes) -> None:
    run_async(_negotiator().answer(stream_of(b""), hello, "/ip4/127.0.0.1/tcp/4001"))


def _answer_or_leave(hello: bytes) -> None:
    try:
        _answer(hello)
    except StreamClosed:  # it offered to be dialled, and left
        return


async def _come(stream: SwarmStream) -> None:
    await _negotiator()._come(stream, CERTIFICATE, "127.0.0.1")


async def _be_dialled(stream: SwarmStream) -> None:
    try:
        await _negotiator()._be_dialled(stream, CERTIFICATE)
    except HandshakeFailed as error:
        if "it cannot dial us" in str(error):
            raise


class _Arrived:
    """A connection on which everything has arrived that ever will."""

    is_closed = False

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    async def send(self, _data: bytes) -> bool:
        return True

    async def receive(self, max_bytes: int, _patience_bytes: int = 1) -> list[bytes]:
        piece, self._data = bytes(self._data[:max_bytes]), self._data[max_bytes:]
        return [piece] if piece else []

    def abort(self) -> None:
        return


def _direct(data: bytes) -> DirectStream:
    connection: Any = _Arrived(data)
    return DirectStream(PEER, connection, Traffic(), 60.0, lambda _: None)


def _read_direct(data: bytes) -> None:
    async def read() -> None:
        stream = _direct(data)
        try:
            while True:
                await stream.read(MAX_FRAME_BYTES)
        except StreamClosed:
            return

    run_async(read())


DIRECT_TARGETS = (
    Target(
        "a certificate",
        peer_of,
        [CERTIFICATE],
        (f"{_MODULE}certificates.py:peer_of", f"{_MODULE}certificates.py:check"),
        refusals=(ValueError,),
        max_bytes=2 * MAX_CERTIFICATE_BYTES,
    ),
    Target(
        "an offer of a direct connection",
        _answer_or_leave,
        OFFERS,
        (f"{_MODULE}negotiation.py:Negotiator.answer", f"{_MODULE}handover.py:_Certified.certificate_of"),
        refusals=(RemoteProtocolError,),
        max_bytes=MAX_HELLO_BYTES,
    ),
    Target(
        "the answer to an offer of a direct connection",
        lambda data: _read_answer(PEER, data),
        ANSWERS,
        (f"{_MODULE}negotiation.py:_read_answer",),
        refusals=(HandshakeFailed,),
        max_bytes=MAX_HELLO_BYTES,
    ),
    Target(
        "a ticket",
        lambda data: Handover.of(PEER, CERTIFICATE, _read_ticket(PEER, data)),
        [TICKET.canonical()],
        (f"{_MODULE}negotiation.py:_read_ticket", f"{_MODULE}handover.py:Handover.of"),
        refusals=(RemoteProtocolError,),
        max_bytes=MAX_TICKET_BYTES,
    ),
    Target(
        "the stream on which a direct connection is agreed",
        served(_come),
        [frames(TICKET.canonical())],
        (f"{_MODULE}negotiation.py:Negotiator._come", f"{_MODULE}negotiation.py:_until_closed"),
        refusals=ON_STREAMS,
        max_bytes=1024,
    ),
    Target(
        "what a peer that was to dial us says",
        on_stream(_be_dialled),
        [frames(b"")],
        (f"{_MODULE}negotiation.py:Negotiator._be_dialled",),
        refusals=(*ON_STREAMS, HandshakeFailed),
        max_bytes=8 * MAX_REASON_CHARS,
    ),
    Target(
        "frames beside libp2p",
        _read_direct,
        [frames(b"", b"one", bytes(70_000)), frames(b"last") + b"\xff" * 4],
        (f"{_MODULE}stream.py:DirectStream._begin_frame",),
        refusals=ON_STREAMS,
        max_bytes=128 << 10,  # it reads on and on; protocols stop at the first frame that is not theirs
    ),
    Target(
        "what is left at the end of a stream beside libp2p",
        lambda data: run_async(_direct(data).settle()),
        [b"\xff" * 4, frames(b"", b"left over") + b"\xff" * 4],
        (f"{_MODULE}stream.py:DirectStream.settle",),
        refusals=(ConnectionError,),
        max_bytes=MIB,
    ),
)
