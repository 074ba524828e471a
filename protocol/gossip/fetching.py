"""One donor's weights over a ``state`` stream, for a joiner of a gossip run.

A donor's heartbeat has announced, under its signature, the hash of the state that it gives, so what it gives to one
joiner is what it has told everybody. More is not known of it; `joining` compares several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from ..identity import PeerId
from ..offload import off_loop
from ..parsing import Unreadable, parse
from ..payload import read_answer, read_payload
from ..state_sync import PartialSnapshot, SnapshotManifest
from ..state_sync.wire import PROTOCOL, LeafRequest, ManifestRequest
from ..transport import MAX_FRAME_BYTES, ByteStream, RemoteProtocolError, StreamClosed, Transport
from ..values import Digest


@dataclass(frozen=True)
class Fetched:
    """A donor's state in a file, every leaf of it verified."""

    donor: PeerId
    round: int
    path: Path


@dataclass(frozen=True)
class Fetch:
    """How one donor's state is fetched."""

    transport: Transport
    executor: Executor
    num_bytes: int
    context_of: Callable[[int], bytes]
    """What the state hash of a round binds beside the bytes."""
    announced: Callable[[PeerId], Collection[tuple[int, Digest]]]
    """Rounds and state hashes of the donor's own heartbeats, the last ones."""
    on_leaf: Callable[[], None] = lambda: None

    async def run(self, donor: PeerId, path: Path) -> Fetched:
        """Raises `PeerUnreachable`, `StreamClosed` (also if its state moves on faster than it gives it), OSError,
        or `RemoteProtocolError` for one that gives another state than it has announced."""
        stream = await self.transport.open(donor, PROTOCOL)
        try:
            manifest = await self._manifest(stream)
            partial = await off_loop(self.executor, PartialSnapshot, path, manifest)
            try:
                for leaf in sorted(partial.missing):
                    await self._leaf(stream, partial, leaf)
                await off_loop(self.executor, partial.finish)
            finally:
                partial.close()
            return Fetched(donor, manifest.round, path)
        finally:
            await stream.close()

    async def _manifest(self, stream: ByteStream) -> SnapshotManifest:
        donor = stream.remote
        await stream.write(ManifestRequest().canonical())
        if not await read_answer(stream):
            raise StreamClosed(donor, "it has no state to give yet")
        try:
            manifest = parse(SnapshotManifest, await stream.read(MAX_FRAME_BYTES))
        except Unreadable as error:
            raise RemoteProtocolError(donor, "manifest", str(error)) from None
        context = self.context_of(manifest.round).hex()
        if not manifest.is_well_formed or manifest.num_bytes != self.num_bytes or manifest.context != context:
            raise RemoteProtocolError(donor, "manifest", "a state of another shape")
        if (manifest.round, manifest.state_hash) not in self.announced(donor):
            raise RemoteProtocolError(donor, "announced", "another state than its heartbeats announce")
        return manifest

    async def _leaf(self, stream: ByteStream, partial: PartialSnapshot, leaf: int) -> None:
        manifest = partial.manifest
        await stream.write(LeafRequest(digest=manifest.leaves[leaf]).canonical())
        if not await read_answer(stream):
            raise StreamClosed(stream.remote, "its state has moved on")
        wanted = manifest.leaf_range(leaf)
        data = await read_payload(stream, wanted.stop - wanted.start)
        if not await off_loop(self.executor, partial.put, leaf, data):
            raise RemoteProtocolError(stream.remote, "leaf", "bytes that its manifest does not name")
        self.on_leaf()
