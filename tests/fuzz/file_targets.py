"""Parsers of files: what a disk, another user or an operator may have put there; and of the local channels."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from blake3 import blake3

from atoll.node import endpoint, run_spec
from atoll.node.chain import Chain as ChainFile
from atoll.node.dashboard.server import DashboardServer
from atoll.node.errors import UserError
from atoll.node.journal import Journal
from atoll.node.known_peers import KnownPeers
from atoll.node.settings import NodeSettings
from atoll.node.status import StatusBoard
from atoll.protocol import durable, sealing
from atoll.protocol.messages import Accepted
from atoll.protocol.results import ResultStore
from atoll.protocol.round_machine import Acceptor
from atoll.protocol.spec import SpecError
from atoll.protocol.swarm import run_folder
from atoll.protocol.votes import VoteFileDamaged, VoteStore
from atoll.training import channel, reducer
from atoll.training.checkpoint import CheckpointError, CheckpointStore, write_tensors

from . import examples as ex
from .harness import Refused, Target, accepted, run_async
from .network_targets import folder


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A parser of a file with these bytes, alone in a folder of its own."""

    def parse(data: bytes) -> object:
        place = folder() / "file"
        shutil.rmtree(place, ignore_errors=True)
        path = place / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return read(path)

    return parse


def made(name: str, write: Callable[[Path], object]) -> bytes:
    """What the product itself writes under ``name``."""
    place = folder() / "made"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    write(place)
    return (place / name).read_bytes()


def _vote(place: Path) -> None:
    VoteStore(place, 0).save(1, Acceptor(promised=1, accepted=Accepted(ballot=0, record=ex.RECORD)))


def _read_vote(path: Path) -> None:
    store = VoteStore(path.parent, 0)
    store.forgot(1)
    store.load(1)


def _held(place: Path) -> None:
    buffer = ResultStore(place, ex.GRID).attempt(ex.PLAN)
    buffer.hold(ex.PLAN.spans[0], ex.RESULT.digest)


HELD = f"{1:012d}-{ex.PLAN.content_id()}.held"


def _read_held(path: Path) -> None:
    path.with_suffix(".mean").write_bytes(ex.VECTOR)
    ResultStore(path.parent, ex.GRID).find(ex.RESULT.digest)


def _read_chain(path: Path) -> None:
    chain = ChainFile(path)
    chain.read(1, 64)
    chain.append(ex.COMMIT)


def _manifest(place: Path) -> None:
    CheckpointStore(place).save({"anchor": np.zeros(4, np.float32)}, {"round": 1, "state_hash": ex.ZERO})


def _read_manifest(path: Path) -> None:
    write_tensors({"anchor": np.zeros(4, np.float32)}, path.with_suffix(".safetensors"))
    CheckpointStore(path.parent).load(1)


def _read_tensors(path: Path) -> None:
    manifest = {"bytes": path.stat().st_size, "blake3": blake3(path.read_bytes()).hexdigest(), "state": {}}
    path.with_suffix(".json").write_text(json.dumps(manifest))
    CheckpointStore(path.parent).load(1)


def _tensors(place: Path) -> None:
    write_tensors({"anchor": np.zeros(4, np.float32), "momentum": np.ones((2, 2), np.float32)}, place / "t")


@cache
def _spec() -> str:
    return run_spec.sign_text(run_spec.new_run_text(name="fuzz", roster=[ex.ME.peer_id]), ex.ME)


def _ask_node(answer: bytes) -> None:
    node = endpoint.Endpoint("http://127.0.0.1:1/", "token", 1)
    endpoint._answer(200, answer, node)
    with suppress(UserError):
        endpoint._answer(400, answer, node)


FILE_BYTES = 64 << 10
"""Longer files take more memory, and nobody but this user or the operator writes them."""

FILE_TARGETS = (
    Target(
        "a run spec",
        in_file("run.toml", run_spec.load_run_spec),
        [_spec().encode()],
        (
            "protocol/spec_text.py:read_text",
            "protocol/spec_text.py:parse_toml",
            "protocol/spec_text.py:validated",
            "protocol/spec.py:SignedGenesis.parse",
            "node/run_spec.py:training_config",
        ),
        refusals=(SpecError,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "the file of known peers",
        in_file("peers.json", lambda path: accepted(KnownPeers(path).addresses or None)),
        [json.dumps({ex.ME.peer_id: ["/ip4/203.0.113.5/tcp/4001"]}).encode()],
        ("node/known_peers.py:_read",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "the chain of commits",
        in_file("chain.jsonl", _read_chain),
        [ex.COMMIT.canonical() + b"\n"],
        ("node/chain.py:Chain.get", "node/chain.py:_is_commit"),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a vote file",
        in_file(f"0-0-{1:012d}.json", _read_vote),
        [made(f"0-0-{1:012d}.json", _vote)],
        ("protocol/votes.py:VoteStore.load", "protocol/votes.py:_read"),
        refusals=(VoteFileDamaged,),
    ),
    Target(
        "an index of results",
        in_file(HELD, _read_held),
        [made(HELD, _held)],
        (
            "protocol/results.py:ResultBuffer._read_index",
            "protocol/results.py:ResultStore._reopen",
            "protocol/durable.py:read_lines",
        ),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a file of JSON lines",
        in_file("lines", durable.read_lines),
        [b'{"a":1}\n{"b":[1,2]}\n'],
        ("protocol/durable.py:read_lines",),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "reserved sequence numbers",
        in_file("sequence", lambda path: sealing.reserve_sequences(path, 1e9)),
        [b"4611686018427387904"],
        ("protocol/sealing.py:_read_reserved",),
    ),
    Target(
        "a checkpoint's manifest",
        in_file("checkpoint-00000001.json", _read_manifest),
        [made("checkpoint-00000001.json", _manifest)],
        ("training/checkpoint.py:CheckpointStore._read_manifest",),
        refusals=(CheckpointError,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a checkpoint's tensors",
        in_file("checkpoint-00000001.safetensors", _read_tensors),
        [made("t", _tensors)],
        ("training/checkpoint.py:CheckpointStore.load",),
        refusals=(CheckpointError,),
        tokens=(b'"dtype":"F64"', b'"shape":[1000000000000]', b'"data_offsets":[0,16]', b'"BF16"', b"__metadata__"),
    ),
    Target(
        "the address of a running node",
        in_file("endpoint.json", lambda path: accepted(endpoint.read_endpoint(path))),
        [b'{"url": "http://127.0.0.1:1/", "token": "t", "pid": 1}'],
        ("node/endpoint.py:read_endpoint",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a running node's answer",
        _ask_node,
        [b'{"reason": "no_token", "fix": "Send one.", "code": "no_token"}'],
        ("node/endpoint.py:_answer", "node/endpoint.py:ask"),
        refusals=(UserError, ValueError),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "who owns a folder of sockets",
        in_file("owner.json", lambda path: accepted(run_folder._read(path.parent))),
        [b'{"owner_pid": 1, "owner_start": 2}'],
        ("protocol/swarm/run_folder.py:_read",),
        refusals=(Refused,),
    ),
    Target(
        "an event for the trainer",
        channel.decode_event,
        [channel.encode(reducer.Stop())],
        ("training/channel.py:decode_event",),
        refusals=(channel.ChannelError,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a report of the trainer",
        channel.decode_report,
        [channel.encode(reducer.Warned(text="careful"))],
        ("training/channel.py:decode_report",),
        refusals=(channel.ChannelError,),
        max_bytes=FILE_BYTES,
    ),
)

# --- the dashboard ----------------------------------------------------------------------------------------------------


@cache
def _dashboard() -> tuple[str, int]:
    """Host and port of a dashboard that runs in the fuzzer's event loop until the process ends."""
    logging.getLogger("atoll").setLevel(logging.CRITICAL)
    place = folder() / "dashboard"
    place.mkdir()
    settings = NodeSettings(folder=place, dashboard_port=0)
    server = DashboardServer(settings, StatusBoard(), Journal(place / "journal.sqlite"), on_stop=_never)
    run_async(server.start())
    host, _, port = server.url.removeprefix("http://").strip("/").rpartition(":")
    return host, int(port)


def _never() -> None:
    raise AssertionError("a request without the token has stopped the node")


async def _request(host: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(0.2):
            return await reader.read(4096)
    except TimeoutError:
        return b""  # it waits for the rest, or streams
    except OSError:
        return b""
    finally:
        writer.transport.abort()


def _ask_dashboard(data: bytes) -> None:
    answer = cast("bytes", run_async(_request(*_dashboard(), data)))
    first_line = answer.partition(b"\r\n")[0]
    assert not first_line.startswith(b"HTTP/1.1 5") or first_line.startswith(b"HTTP/1.1 503"), first_line


def _http(method: str, path: str, *headers: str, body: str = "") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", body)
    return "\r\n".join(lines).encode()


DASHBOARD_TARGETS = (
    Target(
        "a request to the dashboard",
        _ask_dashboard,
        [
            _http("GET", "/api/v1/status", "Connection: close"),
            _http("GET", "/api/v1/history?name=loss&limit=5", "Origin: http://localhost"),
            _http("GET", "/api/v1/events?after=1", "Authorization: Bearer token"),
            _http("POST", "/api/v1/stop", "Content-Type: application/json", "Authorization: Bearer x", body="{}"),
            _http("GET", "/app.js", "If-None-Match: x"),
        ],
        ("node/dashboard/api.py:_number", "node/dashboard/guard.py:host_name", "node/dashboard/guard.py:has_token"),
        max_bytes=128 << 10,
        tokens=(b"../../etc/passwd", b"%2e%2e%2f", b"Host: evil", b"Last-Event-ID: 9", b"Transfer-Encoding: chunked"),
    ),
)
