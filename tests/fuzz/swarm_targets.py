"""Parsers of state sync, of the swarm's own frames and of directory records."""

from __future__ import annotations

import contextlib
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np

from atoll.kernels.codec import CODECS, InvalidEncoding, codec
from atoll.protocol import payload
from atoll.protocol.envelope import Envelope, InvalidMessage, seal
from atoll.protocol.identity import PeerId, public_key_of
from atoll.protocol.parsing import Unreadable, parse
from atoll.protocol.standing import Standing
from atoll.protocol.state_sync import Certifier, Chain, PartialSnapshot, StateServer, StateSync, Uncertified
from atoll.protocol.state_sync.client import _LeafDownload
from atoll.protocol.state_sync.planning import LeafQueue
from atoll.protocol.state_sync.snapshot import SnapshotManifest
from atoll.protocol.state_sync.wire import CommitsAnswer, CommitsRequest, LeafRequest, ManifestRequest
from atoll.protocol.swarm import addresses, seeds
from atoll.protocol.swarm._hivemind import DHTID, DHTRecord
from atoll.protocol.swarm.directory import MAX_RECORD_BYTES, RunRecordValidator, _run_key, stored_until
from atoll.protocol.swarm.libp2p_transport import usable_address
from atoll.protocol.swarm.messages import Inbox, Outbox, new_session
from atoll.protocol.swarm.p2pd import P2pdError
from atoll.protocol.swarm.streams import HELLO, MAX_HELLO_BYTES, REFUSAL, WELCOME, SwarmStream, greet, receive_hello
from atoll.protocol.transport import MAX_FRAME_BYTES, PeerUnreachable, RemoteProtocolError, StreamClosed

from . import examples as ex
from .harness import MIB, ON_STREAMS, PEER, Refused, Target, accepted, frames, on_stream, run_async, served, stream_of
from .network_targets import FRAMING, STREAM_BYTES, Donor, executor, folder

# --- state sync -------------------------------------------------------------------------------------------------------

_SOURCE: Any = SimpleNamespace(
    head_round=1,
    commits=lambda first, count: [ex.COMMIT][first - 1 : first - 1 + count],
    manifest=ex.manifest,
    archived=lambda record: ex.manifest() if record == ex.RUN else None,
    read_leaf=lambda digest: ex.STATE if digest == ex.STATE_LEAF else None,
)


async def _donate(stream: SwarmStream) -> None:
    donor = Donor()
    StateServer(donor, _SOURCE, executor())  # type: ignore[arg-type]
    await donor.handlers["state"](stream)


def _certifier() -> Certifier:
    return Certifier(ex.RUN, len(ex.STATE), lambda _round, _roster, peers: len(peers) > 0)


def _chain() -> Chain:
    return Chain(Standing(0, ex.RUN, (ex.ME.peer_id,)))


def _sync(chain: Chain | None = None) -> StateSync:
    return StateSync(
        transport=Donor(),  # type: ignore[arg-type]
        chain=chain or _chain(),
        verify_commit=_verify,
        certifier=_certifier(),
        partial_path=folder() / "partial",
        executor=executor(),
        donors=lambda: [PEER],
    )


def _verify(commit: Any, _standing: Standing) -> None:
    for vote in commit.votes:
        Envelope.open(bytes.fromhex(vote), run_id=ex.RUN)


async def _ask_manifest(stream: SwarmStream) -> None:
    accepted(await _sync(Chain(_chain().anchor, (ex.COMMIT,)))._ask_manifest(stream))


async def _request_leaf(stream: SwarmStream) -> None:
    partial = PartialSnapshot(folder() / "partial", ex.manifest())
    with contextlib.closing(partial):
        data = await _LeafDownload(_sync(), partial, LeafQueue({0}), 1)._request(stream, 0)
        accepted(data is not None and partial.put(0, data))


STATE_TARGETS = (
    Target(
        "questions for state",
        served(_donate),
        [
            frames(CommitsRequest(first=1, count=64).canonical(), ManifestRequest().canonical()),
            frames(LeafRequest(digest=ex.STATE_LEAF).canonical()),
            frames(ManifestRequest(record=ex.RUN).canonical()),
        ],
        ("protocol/state_sync/server.py:StateServer._handle", "protocol/state_sync/server.py:StateServer._answer"),
        refusals=(RemoteProtocolError,),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "commits from a donor",
        on_stream(lambda stream: _sync()._follow(stream)),
        [frames(CommitsAnswer(num_commits=1, head=1).canonical(), ex.COMMIT.canonical())],
        ("protocol/state_sync/client.py:StateSync._read",),
        refusals=ON_STREAMS,
        max_bytes=2 * MIB,
    ),
    Target(
        "one commit of a donor's answer",
        lambda data: run_async(_sync()._follow(stream_of(_commits_frame(data)))),
        [ex.COMMIT.canonical()],
        ("protocol/state_sync/client.py:StateSync._read", "protocol/parsing.py:parse"),
        refusals=ON_STREAMS,
        memory_bytes=32 * MIB,  # a plan has more lists in it than any other value
    ),
    Target(
        "a manifest from a donor",
        lambda data: run_async(_ask_manifest(stream_of(frames(payload.YES, data)))),
        [ex.manifest().canonical()],
        (
            "protocol/state_sync/client.py:StateSync._ask_manifest",
            "protocol/state_sync/planning.py:Certifier._is_attested",
            "protocol/state_sync/snapshot.py:SnapshotManifest.state_hash",
        ),
        refusals=(*ON_STREAMS, Refused),
        max_bytes=MAX_FRAME_BYTES,
        memory_bytes=48 * MIB,
    ),
    Target(
        "a leaf from a donor",
        on_stream(_request_leaf),
        [frames(payload.YES, ex.STATE)],
        ("protocol/state_sync/client.py:_LeafDownload._request", *FRAMING),
        refusals=(*ON_STREAMS, Refused),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a manifest that nothing vouches for",
        lambda data: _certifier().check(parse(SnapshotManifest, data), _chain()),
        [],
        ("protocol/state_sync/planning.py:Certifier.check",),
        refusals=(Uncertified, Unreadable),
        max_bytes=4096,
    ),
)


def _commits_frame(commit: bytes) -> bytes:
    return frames(CommitsAnswer(num_commits=1, head=1).canonical(), commit)


# --- swarm ------------------------------------------------------------------------------------------------------------


async def _ignore(*_: object) -> None:
    return


async def _receive_messages(stream: SwarmStream) -> None:
    await Inbox().receive(stream, bytes(8), _ignore)


async def _read_answers(stream: SwarmStream) -> None:
    await Outbox(PEER, new_session(), _no_stream, 1.0)._read_answers(stream)


async def _no_stream(peer: PeerId, *_: object) -> Any:
    raise PeerUnreachable(peer, "the fuzzer opens nothing")


async def _no_daemon(*_: object) -> Any:
    raise P2pdError("the fuzzer runs none")


_TRANSPORT: Any = SimpleNamespace(
    peer_id=ex.ME.peer_id, daemon=_no_daemon, open_raw=_no_stream, serve_raw=lambda *_: None
)


def _answer_question(hello: bytes) -> None:
    settings: Any = SimpleNamespace(run_id=ex.RUN, is_seed=False, connect_timeout_s=0.01)
    answerer = seeds.Answerer(_TRANSPORT, settings)
    run_async(answerer._handle(stream_of(b""), hello, ""))


async def _hello(stream: SwarmStream) -> None:
    accepted(await receive_hello(stream, 1.0))


def _ask(welcome: bytes) -> None:
    async def open_raw(*_: object) -> tuple[SwarmStream, bytes]:
        return stream_of(b""), welcome

    transport: Any = SimpleNamespace(open_raw=open_raw)
    run_async(seeds.ask(transport, PEER, seeds.Question(), 1.0))


NOW_S = 1.99999e9
RECORD = seal(ex.ME, ex.HEADER, ex.HEARTBEAT)
SUBKEY = bytes(msgpack.packb(str(ex.ME.peer_id)) or b"")
VALUE = bytes(msgpack.packb(RECORD) or b"")


@cache
def _expiry() -> float:
    return stored_until(Envelope.open(RECORD, run_id=ex.RUN))


def _validate(subkey: bytes, value: bytes) -> None:
    key = DHTID.generate(source=_run_key(ex.RUN)).to_bytes()
    validator = RunRecordValidator(ex.RUN, now=lambda: NOW_S)
    accepted(validator.validate(DHTRecord(key, subkey, value, _expiry())))


def _use_address(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    usable = usable_address(PEER, text)
    accepted(usable)
    assert addresses.from_bytes(addresses.to_bytes(usable or ""))
    addresses.endpoint(text)
    addresses.reach(text)


ADDRESSES = (
    b"/ip4/203.0.113.5/tcp/4001",
    b"/ip6/2001:db8::1/udp/4001/quic-v1",
    b"/dns4/seed.example.org/tcp/4001/p2p/" + ex.ME.peer_id.encode(),
    b"/ip4/203.0.113.5/tcp/4001/p2p/" + ex.ME.peer_id.encode() + b"/p2p-circuit",
)

QUESTIONS = (seeds.Question(kind="dial_back", ports=(1, 2)), seeds.Question(kind="is_alive", peer=PEER))

SWARM_TARGETS = (
    Target(
        "control messages on their stream",
        served(_receive_messages),
        [frames((1).to_bytes(8, "big") + RECORD, (2).to_bytes(8, "big"))],
        ("protocol/swarm/messages.py:Inbox.receive", *FRAMING),
        refusals=(RemoteProtocolError,),
        max_bytes=2 * MIB,
    ),
    Target(
        "answers to control messages",
        on_stream(_read_answers),
        [frames((1).to_bytes(8, "big"))],
        ("protocol/swarm/messages.py:Outbox._read_answers",),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a hello",
        on_stream(_hello),
        [frames(HELLO + b"span")],
        ("protocol/swarm/streams.py:receive_hello",),
        refusals=(Refused,),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a welcome",
        on_stream(lambda stream: greet(stream, b"", 1.0)),
        [frames(WELCOME + b"{}")],
        ("protocol/swarm/streams.py:greet",),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
        tokens=(HELLO, WELCOME, REFUSAL),
    ),
    Target(
        "a question of whoever dials",
        _answer_question,
        [b"", *(question.model_dump_json().encode() for question in QUESTIONS)],
        ("protocol/swarm/seeds.py:Answerer._handle",),
        refusals=(RemoteProtocolError, StreamClosed),
        max_bytes=MAX_HELLO_BYTES,
    ),
    Target(
        "a seed's answer",
        _ask,
        [seeds.Answer(run_id=ex.RUN, open_ports=(4001,)).model_dump_json().encode()],
        ("protocol/swarm/seeds.py:ask",),
        refusals=(PeerUnreachable,),
        max_bytes=MAX_HELLO_BYTES,
    ),
    Target(
        "the value of a directory record",
        lambda data: _validate(SUBKEY, data),
        [VALUE],
        ("protocol/swarm/directory.py:RunRecordValidator._is_valid",),
        refusals=(Refused,),
        max_bytes=2 * MAX_RECORD_BYTES,
    ),
    Target(
        "a signed directory record",
        lambda data: _validate(SUBKEY, bytes(msgpack.packb(ex.sealed(data)) or b"")),
        [ex.signed_part(ex.HEARTBEAT)],
        ("protocol/swarm/directory.py:check_record",),
        refusals=(Refused,),
        max_bytes=2 * MAX_RECORD_BYTES,
    ),
    Target(
        "the key of a directory record",
        lambda data: _validate(data, VALUE),
        [SUBKEY],
        ("protocol/swarm/directory.py:RunRecordValidator._is_valid",),
        refusals=(Refused,),
        max_bytes=2 * MAX_RECORD_BYTES,
    ),
    Target(
        "an address of a peer",
        _use_address,
        ADDRESSES,
        tuple(f"protocol/swarm/addresses.py:{name}" for name in ("parse", "to_bytes", "endpoint", "reach")),
        refusals=(ValueError, Refused),
        max_bytes=64 << 10,
    ),
    Target(
        "a binary address from p2pd",
        addresses.from_bytes,
        [addresses.to_bytes(text.decode()) for text in ADDRESSES],
        ("protocol/swarm/addresses.py:_value_to_text", "protocol/swarm/addresses.py:_read_varint"),
        refusals=(ValueError,),
        max_bytes=4096,
    ),
    Target(
        "a peer id",
        lambda data: public_key_of(data.decode("utf-8", "replace")),
        [ex.ME.peer_id.encode()],
        ("protocol/identity.py:public_key_of",),
        refusals=(ValueError, InvalidMessage),
    ),
)

# --- codecs -----------------------------------------------------------------------------------------------------------


def _codec_targets() -> tuple[Target, ...]:
    return tuple(target for name in sorted(CODECS) for target in _targets_of(name))


def _targets_of(name: str) -> tuple[Target, Target]:
    which, num_elements = codec(name), 600
    size, out = which.nbytes(num_elements), np.empty(num_elements, np.float32)

    def use(data: bytes) -> None:
        which.check(data, num_elements)
        which.decode(data, out)
        assert np.isfinite(out).all(), "a decoded value is not finite although the encoding passed"

    def fitted(data: bytes) -> None:
        use((data * (size // max(1, len(data)) + 1))[:size] if data else bytes(size))

    examples = [ex.encoded(name, num_elements)]
    here = f"{type(which).__module__.removeprefix('atoll.').replace('.', '/')}.py:{type(which).__name__}"
    covers = tuple(f"{here}.{each}" for each in ("check", "_read", "used_bytes") if hasattr(which, each))
    refusals = (InvalidEncoding,)
    return (
        Target(f"a chunk in {name}", use, examples, covers, refusals, max_bytes=2 * size),
        Target(f"a chunk of the right length in {name}", fitted, examples, covers, refusals, max_bytes=size),
    )


CODEC_TARGETS = _codec_targets()
