"""Parsers of what peers send: messages, streams, directory records."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atoll.protocol import payload, quotas, transport
from atoll.protocol.envelope import Envelope, InvalidMessage, seal
from atoll.protocol.exchange import Attempt, ExchangeHost, ExchangeSettings, SpanInbox, wire
from atoll.protocol.exchange.context import ExchangeContext
from atoll.protocol.exchange.member import SpanMember
from atoll.protocol.exchange.owner import SpanOwner
from atoll.protocol.identity import PeerId
from atoll.protocol.recent import Recent
from atoll.protocol.result_transfer import ResultFetcher, ResultServer
from atoll.protocol.results import ResultStore
from atoll.protocol.round_machine import Rules
from atoll.protocol.sealing import Guard
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.swarm.streams import (
    SwarmStream,
)

from . import examples as ex
from .harness import ON_STREAMS, Target, frames, on_stream, served, stream_of

SIGNED = [ex.signed_part(message) for message in ex.MESSAGES]
SETTINGS = ExchangeSettings(contact_timeout_s=0.01, keepalive_interval_s=0.005)
FRAMING = (
    "protocol/swarm/streams.py:FramedStream.read",
    "protocol/swarm/streams.py:FramedStream._read_exactly",
    "protocol/swarm/streams.py:SwarmStream._take",
)


@cache
def folder() -> Path:
    """Of this process, removed at its end."""
    return Path(_folder.name)


_folder = tempfile.TemporaryDirectory(prefix="atoll-fuzz-")


@cache
def executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


class Donor:
    """A transport whose every stream has already brought all that the peer will ever say."""

    peer_id = PeerId("me")

    def __init__(self, data: bytes = b"") -> None:
        self._data = data
        self.handlers: dict[str, Any] = {}

    async def open(self, _peer: PeerId, _protocol: str) -> SwarmStream:
        return stream_of(self._data)

    def serve(self, protocol: str, handler: Any) -> None:
        self.handlers[protocol] = handler


def _settled(data: bytes) -> None:
    """As `Guard.open`, but each input is the first of its sender."""
    Guard(ex.RUN, 0).open(data, 1.9e9)


_RULES: Any = SimpleNamespace(open_vote=None, run_id=ex.RUN, genesis=SimpleNamespace(lineage=0))

# --- messages ---------------------------------------------------------------------------------------------------------

MESSAGE_TARGETS = (
    Target(
        "a message, as it comes",
        lambda data: Envelope.open(data, run_id=ex.RUN),
        [seal(ex.ME, ex.HEADER, message) for message in ex.MESSAGES],
        ("protocol/envelope.py:Envelope.open", "protocol/parsing.py:parse", "protocol/parsing.py:parse_any"),
        refusals=(InvalidMessage,),
    ),
    Target(
        "a message, signed by its malicious sender",
        lambda data: _settled(ex.sealed(data)),
        [part.replace(b'"expires_unix_s":2000000000.0', b'"expires_unix_s":1900010000.0') for part in SIGNED],
        ("protocol/envelope.py:_parse", "protocol/parsing.py:split_canonical"),
        refusals=(InvalidMessage,),
        tokens=[b'"kind":"', *(f'"{message.kind}"'.encode() for message in ex.MESSAGES)],
    ),
    Target(
        "a vote in a certificate",
        lambda data: Rules.verified_vote(_RULES, data.decode()),
        [ex.COMMIT.votes[0].encode()],
        ("protocol/round_machine/values.py:Rules.verified_vote",),
        refusals=(InvalidMessage, ValueError),
        max_bytes=4096,
    ),
)


# --- bulk streams -----------------------------------------------------------------------------------------------------


def _context() -> ExchangeContext:
    """Of an exchange in which the only other member, and owner of the only span, is the peer."""
    attempt = Attempt(
        plan=ex.PLAN,
        contribution=ex.CONTRIBUTION,
        result=_store().attempt(ex.PLAN),
        trust=TrustConfig(),
        limits=LimitsConfig(),
        sign=lambda result: result,
        on_event=lambda _: None,
    )
    return ExchangeContext(_host(Donor()), attempt)


def _host(donor: Donor) -> ExchangeHost:
    recent = Recent(ex.GRID)
    return ExchangeHost(PeerId("me"), ex.GRID, donor, executor(), SETTINGS, lambda _: True, recent)  # type: ignore[arg-type]


@cache
def _store() -> ResultStore:
    return ResultStore(folder() / "results", ex.GRID)


async def _own(stream: SwarmStream) -> None:
    """The owner's side: header, chunks, acknowledgement."""
    header = await wire.SpanHeader.read(stream, ex.GRID.num_chunks)
    owner = SpanOwner(_context(), 0)
    await owner._receive_chunks(stream, 0, header)
    await owner._read_acknowledgement(stream)


async def _dismiss(stream: SwarmStream) -> None:
    await SpanOwner(_context(), 0)._dismiss(stream, "too slow")


async def _enter(stream: SwarmStream) -> None:
    donor = Donor()
    SpanInbox(_host(donor))
    await donor.handlers[wire.PROTOCOL](stream)


async def _answer_results(stream: SwarmStream) -> None:
    donor = Donor()
    ResultServer(donor, _store())  # type: ignore[arg-type]
    await donor.handlers["result"](quotas.MeteredStream(stream, quotas.Meter(1e12)))


async def _fetch_results(stream: SwarmStream) -> None:
    fetcher = ResultFetcher(Donor(), _store(), executor())  # type: ignore[arg-type]
    buffer = _store().attempt(ex.PLAN)
    await fetcher._transfer(stream, ex.RECORD, 0, buffer)


CHUNKS = [ex.VECTOR[ex.GRID.encoded_range(chunk)] for chunk in range(ex.GRID.num_chunks)]
SPAN_HEADER = wire.SpanHeader(ex.PLAN.content_id(), 0, ex.CONTRIBUTION.leaves).encode()
MEAN = [
    part for number, chunk in enumerate(CHUNKS) for part in (wire.Control(wire.CHUNK, number).encode(), bytes(chunk))
]
FINAL = wire.Control(wire.FINAL, text=ex.RESULT.canonical()).encode()
STREAM_BYTES = 64 << 10

STREAM_TARGETS = (
    Target(
        "a contribution at the owner of its span",
        on_stream(_own),
        [frames(SPAN_HEADER, *CHUNKS, wire.ACKNOWLEDGED)],
        (
            "protocol/exchange/wire.py:SpanHeader.read",
            "protocol/exchange/owner.py:SpanOwner._read_acknowledgement",
            "protocol/exchange/context.py:ExchangeContext.read_payload",
            "protocol/payload.py:_read_piece",
            "protocol/payload.py:read_payload",
            *FRAMING,
        ),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a mean at a member",
        on_stream(lambda stream: SpanMember(_context(), 0, ex.CONTRIBUTION)._exchange(stream)),
        [frames(*MEAN, FINAL), frames(wire.Control(wire.EXCLUDED, text=b"too slow").encode())],
        (
            "protocol/exchange/wire.py:Control.read",
            "protocol/exchange/member.py:SpanMember._receive",
            "protocol/exchange/member.py:SpanMember._parse",
        ),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
        tokens=(wire.CHUNK, wire.RESET, wire.KEEPALIVE, wire.EXCLUDED, wire.FINAL, wire.ACKNOWLEDGED),
    ),
    Target(
        "what a member says that is out",
        served(_dismiss),
        [frames(b"chunk", b"chunk")],
        ("protocol/exchange/owner.py:SpanOwner._dismiss",),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a span stream before its plan",
        served(_enter),
        [frames(SPAN_HEADER)],
        ("protocol/exchange/exchange.py:SpanInbox._handle",),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "questions for results",
        served(_answer_results),
        [frames(bytes(32), bytes.fromhex(ex.RESULT.digest))],
        ("protocol/result_transfer.py:ResultServer._answer", "protocol/quotas.py:MeteredStream.read"),
        refusals=(transport.RemoteProtocolError,),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "results from a peer",
        on_stream(_fetch_results),
        [frames(payload.YES, *CHUNKS), frames(payload.NO)],
        ("protocol/result_transfer.py:ResultFetcher._transfer", "protocol/payload.py:read_answer"),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
)
