"""The joiner's side of state sync: verify the chain, choose a snapshot, fetch its leaves from several donors.

Nothing that a donor says is believed: commits carry certificates, the state hash is certified, leaves are hashed. A
donor that dies or lies loses only itself, and the error names it and how much it gave. Partial state is never handed
out; the partial file stays for the next try.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..identity import PeerId
from ..messages import Commit
from ..offload import off_loop
from ..parsing import Unreadable, parse
from ..payload import read_answer, read_payload
from ..transport import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    Buffer,
    ByteStream,
    PeerUnreachable,
    RemoteProtocolError,
    StreamClosed,
    Transport,
)
from ..values import Frozen
from ..wakeup import Signal
from .chain import Chain, InvalidChain, RulesMissing, VerifyCommit
from .planning import Certifier, LeafQueue, Uncertified, newest
from .snapshot import PartialSnapshot, SnapshotManifest
from .wire import MAX_COMMITS, PROTOCOL, CommitsAnswer, CommitsRequest, LeafRequest, ManifestRequest

_MAX_DETAIL_CHARS = 300
T = TypeVar("T")
F = TypeVar("F", bound=Frozen)


class StateUnavailable(Exception):
    """No donor could give a certified state. An expected loss: try again later or with other donors."""

    def __init__(self, causes: dict[PeerId, str]) -> None:
        details = "; ".join(f"…{peer[-5:]}: {why}" for peer, why in causes.items())
        super().__init__(f"no donor has given the state ({details or 'no donor is known'})")
        self.causes = causes
        """Donor -> what went wrong with it last, with the bytes received from it."""


@dataclass(frozen=True)
class SyncProgress:
    """For the dashboard: how far the download of one snapshot is."""

    round: int
    num_leaves: int
    num_verified: int
    num_donors: int


@dataclass(frozen=True)
class SyncedState:
    """A complete, certified, durable snapshot and the verified commits, some of which may be newer than it."""

    path: Path
    manifest: SnapshotManifest
    chain: Chain

    @property
    def newer_commits(self) -> tuple[Commit, ...]:
        """Commits to apply on top of the snapshot; their means are fetched by digest (`result_transfer`)."""
        return tuple(commit for commit in self.chain.commits if commit.record.plan.round > self.manifest.round)


@dataclass
class StateSync:
    """Loads the newest certified state from donors.

    ``donors`` is asked before each pass, so that newly found peers help. Run `load` again after `StateUnavailable`:
    the chain and the verified leaves stay.
    """

    transport: Transport
    chain: Chain
    """What is trusted at the start: the genesis, or the node's own last commit."""
    verify_commit: VerifyCommit
    certifier: Certifier
    partial_path: Path
    executor: Executor
    donors: Callable[[], Collection[PeerId]]
    on_progress: Callable[[SyncProgress], None] = lambda _: None
    on_misconduct: Callable[[RemoteProtocolError], None] = lambda _: None
    order: Callable[[list[PeerId]], list[PeerId]] = lambda peers: random.sample(peers, len(peers))
    """In which order donors are asked for commits; random, so that nobody is asked first by what it claims."""
    donor_patience_s: float = 120.0
    """How long one donor may take over its part of the chain; what it has proven until then stays."""
    streams_per_donor: int = 2
    """Two requests on their way hide the round trip."""
    max_passes: int = 8
    """How often a target that has moved away is followed before giving up."""
    max_manifests_at_once: int = 8
    """Unverified manifests are up to 4 MiB each, whoever sends them."""
    causes: dict[PeerId, str] = field(default_factory=dict[PeerId, str])
    received_bytes: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    _liars: set[PeerId] = field(default_factory=set[PeerId])

    async def load(self) -> SyncedState:
        """Raises `StateUnavailable` naming every donor; OSError when the disk is full."""
        for _ in range(self.max_passes):
            await self.update_chain()
            found = await self._choose()
            if found is None:
                break
            manifest, donors = found
            if await self._download(manifest, donors):
                return SyncedState(self.partial_path, manifest, self.chain)
        raise StateUnavailable(dict(self.causes))

    async def _choose(self) -> tuple[SnapshotManifest, list[PeerId]] | None:
        """The newest certified snapshot; where all are older than the lineage, the state that it begins with.

        That one only archivists may have, and they may have gone on from it.
        """
        found, start = newest(await self._collect_manifests()), self.certifier.signed
        if start is not None and (found is None or found[0].round < start[0]):
            found = newest(await self._collect_manifests(start[1])) or found
        return found

    async def update_chain(self) -> Chain:
        """Extend the chain by whatever donors can prove, and return it.

        One after another, in any order and each for a limited time: truth told by drops is not waited for.
        """
        for donor in self._candidates():
            try:
                async with asyncio.timeout(self.donor_patience_s):
                    await self._with_stream(donor, self._follow)
            except TimeoutError:
                self.note(donor, f"its commits came too slowly for {self.donor_patience_s:g} s")
        return self.chain

    def _candidates(self) -> list[PeerId]:
        found = [peer for peer in self.donors() if peer != self.transport.peer_id and peer not in self._liars]
        return self.order(found)

    # One donor's stream

    async def _with_stream(self, donor: PeerId, work: Callable[[ByteStream], Awaitable[T]]) -> T | None:
        """Do ``work`` on a stream to a donor; None if the donor fails, with the cause noted."""
        try:
            stream = await self.transport.open(donor, PROTOCOL)
        except PeerUnreachable as error:
            self.note(donor, error.why)
            return None
        try:
            return await work(stream)
        except StreamClosed as error:
            self.note(donor, error.why)
        except RemoteProtocolError as error:
            self._liars.add(donor)
            self.note(donor, f"{error.rule} {error.detail}".strip())
            self.on_misconduct(error)
        finally:
            await stream.close()
        return None

    def has_lied(self, donor: PeerId) -> bool:
        """Whether the donor has sent something that cannot be: it is not asked again in this download."""
        return donor in self._liars

    def note(self, donor: PeerId, why: str) -> None:
        """Remember what went wrong with a donor."""
        self.causes[donor] = f"{why} (after {self.received_bytes.get(donor, 0)} bytes)"

    async def _follow(self, stream: ByteStream) -> None:
        """Append what the donor knows after our head."""
        while True:
            first = self.chain.head.round + 1
            await stream.write(CommitsRequest(first=first, count=MAX_COMMITS).canonical())
            answer = await self._read(stream, CommitsAnswer, 256)
            for _ in range(answer.num_commits):
                commit = await self._read(stream, Commit, MAX_MESSAGE_BYTES)
                if not await self._extend(stream.remote, commit):
                    return
            if answer.num_commits < MAX_COMMITS:
                return

    async def _extend(self, donor: PeerId, commit: Commit) -> bool:
        """Each commit is verified when it comes: a liar makes us hold one that is false, not a whole answer of them.

        False if it cannot be judged here: heartbeats bring the amendments that are missing, then we come again.
        """
        try:
            self.chain = await off_loop(self.executor, self.chain.extended, (commit,), self.verify_commit)
        except RulesMissing as error:
            self.note(donor, str(error))
            return False
        except InvalidChain as error:
            raise RemoteProtocolError(donor, "invalid chain", str(error)[:_MAX_DETAIL_CHARS]) from None
        return True

    async def _read(self, stream: ByteStream, kind: type[F], max_bytes: int) -> F:
        frame = await stream.read(max_bytes)
        self.count(stream.remote, len(frame))
        try:
            return await off_loop(self.executor, parse, kind, frame)
        except Unreadable:
            raise RemoteProtocolError(stream.remote, f"malformed {kind.__name__}") from None

    def count(self, donor: PeerId, num_bytes: int) -> None:
        self.received_bytes[donor] = self.received_bytes.get(donor, 0) + num_bytes

    # Manifests

    async def _collect_manifests(self, record: str | None = None) -> dict[PeerId, SnapshotManifest]:
        donors, turn = self._candidates(), asyncio.Semaphore(self.max_manifests_at_once)

        async def ask(donor: PeerId) -> SnapshotManifest | None:
            async with turn:
                return await self._with_stream(donor, lambda stream: self._ask_manifest(stream, record))

        found = await asyncio.gather(*map(ask, donors))
        return {donor: manifest for donor, manifest in zip(donors, found, strict=True) if manifest is not None}

    async def _ask_manifest(self, stream: ByteStream, record: str | None = None) -> SnapshotManifest | None:
        await stream.write(ManifestRequest(record=record).canonical())
        if not await read_answer(stream):
            self.note(stream.remote, "has no snapshot")
            return None
        manifest = await self._read(stream, SnapshotManifest, MAX_FRAME_BYTES)
        try:
            await off_loop(self.executor, self.certifier.check, manifest, self.chain)
        except Uncertified as error:
            # Not proof of a lie: it may be newer than our chain, or not attested yet.
            self.note(stream.remote, str(error))
            return None
        return manifest

    # Leaves

    async def _download(self, manifest: SnapshotManifest, donors: Sequence[PeerId]) -> bool:
        """Fetch what is missing; False if all donors have failed or moved on."""
        partial = await off_loop(self.executor, PartialSnapshot, self.partial_path, manifest)
        try:
            download = _LeafDownload(self, partial, LeafQueue(set(partial.missing)), len(donors))
            streams = [donor for donor in donors for _ in range(self.streams_per_donor)]
            await asyncio.gather(*(self._with_stream(donor, download.run) for donor in streams))
            if partial.missing:
                return False
            await off_loop(self.executor, partial.finish)
            return True
        finally:
            partial.close()


@dataclass
class _LeafDownload:
    """Streams of several donors that empty one queue."""

    sync: StateSync
    partial: PartialSnapshot
    queue: LeafQueue
    num_donors: int
    changed: Signal = field(default_factory=Signal)

    async def run(self, stream: ByteStream) -> None:
        """Fetch leaves from one donor until none is left, or it has moved on to another round."""
        while not self.queue.is_empty and not self.sync.has_lied(stream.remote):
            leaf = self.queue.take()
            if leaf is None:
                # Others are fetching the rest; if one of them fails, its leaf comes back.
                await self.changed.wait()
            elif not await self._fetch(stream, leaf):
                self.sync.note(stream.remote, f"no longer has round {self.partial.manifest.round}")
                return

    async def _fetch(self, stream: ByteStream, leaf: int) -> bool:
        try:
            data = await self._request(stream, leaf)
            if data is None:
                return False
            if not await off_loop(self.sync.executor, self.partial.put, leaf, data):
                raise RemoteProtocolError(stream.remote, "leaf does not match its digest", f"leaf {leaf}")
            self.queue.done(leaf)
            self._report()
            return True
        finally:
            self.queue.give_back(leaf)
            self.changed.fire()

    async def _request(self, stream: ByteStream, leaf: int) -> Buffer | None:
        manifest = self.partial.manifest
        await stream.write(LeafRequest(digest=manifest.leaves[leaf]).canonical())
        if not await read_answer(stream):
            return None
        wanted = manifest.leaf_range(leaf)
        data = await read_payload(stream, wanted.stop - wanted.start)
        self.sync.count(stream.remote, len(data))
        return data

    def _report(self) -> None:
        num_leaves = len(self.partial.manifest.leaves)
        num_verified = num_leaves - len(self.queue.missing)
        self.sync.on_progress(SyncProgress(self.partial.manifest.round, num_leaves, num_verified, self.num_donors))
