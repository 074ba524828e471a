"""The donor's side of state sync. A donor trains on while it serves; how much it serves is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import ParamSpec, Protocol, TypeVar

from ..messages import Commit
from ..offload import off_loop
from ..parsing import Unreadable, parse_any
from ..payload import NO, YES, write_payload
from ..quotas import STATE_STREAMS_PER_PEER
from ..stream_limit import StreamLimit
from ..transport import Buffer, ByteStream, RemoteProtocolError, Transport
from ..values import Digest
from .pacing import Pacer
from .snapshot import SnapshotManifest
from .wire import (
    MAX_REQUEST_BYTES,
    PROTOCOL,
    REQUEST,
    CommitsAnswer,
    CommitsRequest,
    LeafRequest,
    ManifestRequest,
)

P = ParamSpec("P")
T = TypeVar("T")


class StateSource(Protocol):
    """What a node can give to joiners. Blocking methods are called in the executor."""

    @property
    def head_round(self) -> int:
        """Last round committed here."""
        ...

    def commits(self, first: int, count: int) -> Sequence[Commit]:
        """Up to ``count`` consecutive commits from round ``first`` on; empty if the first is not here. Blocking."""
        ...

    def manifest(self) -> SnapshotManifest | None:
        """The newest snapshot, with the attests known so far. Blocking."""
        ...

    def archived(self, record: Digest) -> SnapshotManifest | None:
        """The state after an older record, where this node still has it and gives it. Blocking."""
        ...

    def read_leaf(self, digest: Digest) -> Buffer | None:
        """Bytes of a leaf of a snapshot that is still here (`SnapshotLeaves.read`). Blocking."""
        ...


class StateServer:
    """Answers ``state`` streams; one per node.

    At most ``max_concurrent`` answers are read from disk and memory at a time, the others wait their turn; a peer that
    is slow to take its answer holds up nobody. Leaves leave at the pacer's speed.
    """

    def __init__(
        self,
        transport: Transport,
        source: StateSource,
        executor: Executor,
        max_streams_per_peer: int = STATE_STREAMS_PER_PEER,
        max_concurrent: int = 8,
        pacer: Pacer | None = None,
    ) -> None:
        self._source = source
        self._executor = executor
        self._pacer = pacer or Pacer()
        self._turn = asyncio.Semaphore(max_concurrent)
        self._limit = StreamLimit(max_streams_per_peer)
        transport.serve(PROTOCOL, self._handle)

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            while True:
                frame = await stream.read(MAX_REQUEST_BYTES)
                await self._answer(stream, frame)

    async def _answer(self, stream: ByteStream, frame: bytes) -> None:
        try:
            request = parse_any(REQUEST, frame)
        except Unreadable:
            raise RemoteProtocolError(stream.remote, "malformed state request") from None
        match request:
            case CommitsRequest():
                await self._send_commits(stream, request)
            case ManifestRequest():
                await self._send_manifest(stream, request.record)
            case LeafRequest():
                await self._send_leaf(stream, request.digest)
            case _:
                raise AssertionError(request)

    async def _send_commits(self, stream: ByteStream, request: CommitsRequest) -> None:
        commits = await self._work(self._encoded_commits, request)
        answer = CommitsAnswer(num_commits=len(commits), head=self._source.head_round)
        await stream.write(answer.canonical())
        for commit in commits:
            await stream.write(commit)

    def _encoded_commits(self, request: CommitsRequest) -> list[bytes]:
        return [commit.canonical() for commit in self._source.commits(request.first, request.count)]

    async def _work(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._turn:
            return await off_loop(self._executor, work, *args, **kwargs)

    async def _send_manifest(self, stream: ByteStream, record: Digest | None) -> None:
        manifest = await self._work(self._encoded_manifest, record)
        await stream.write(NO if manifest is None else YES)
        if manifest is not None:
            await stream.write(manifest)

    def _encoded_manifest(self, record: Digest | None) -> bytes | None:
        manifest = self._source.manifest() if record is None else self._source.archived(record)
        return None if manifest is None else manifest.canonical()

    async def _send_leaf(self, stream: ByteStream, digest: Digest) -> None:
        data = await self._work(self._source.read_leaf, digest)
        await stream.write(NO if data is None else YES)
        if data is not None:
            await self._pacer.spend(len(data))
            await write_payload(stream, data)
