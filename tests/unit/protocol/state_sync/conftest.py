"""A made-up history of a run: states, commits and attests, and donors that serve it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.kernels.hash_tree import LEAF_BYTES, leaf_digests
from atoll.protocol.envelope import Header, seal
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Attest, Commit
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.standing import Standing
from atoll.protocol.state_sync import (
    Certifier,
    Chain,
    SnapshotLeaves,
    SnapshotManifest,
    StateServer,
    StateSync,
)

RUN = "ab" * 32
IDENTITIES = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 5)]
PEERS = tuple(identity.peer_id for identity in IDENTITIES)
JOINER = Identity.from_seed(bytes([77]) * 32).peer_id
NUM_BYTES = 3 * LEAF_BYTES + 5
GENESIS = Standing(0, RUN, PEERS)
VALID = ("00",)


def state(round_number: int) -> bytes:
    """A state of four leaves, of which the last two are the same in every round."""
    changing = b"".join(bytes([round_number, leaf]) * (LEAF_BYTES // 2) for leaf in range(2))
    return changing + bytes([200]) * LEAF_BYTES + b"12345"


def manifest_of(round_number: int, record: str, num_attests: int = 3) -> SnapshotManifest:
    leaves = tuple(leaf.hex() for leaf in leaf_digests([state(round_number)]))
    bare = SnapshotManifest(
        round=round_number, record=record, context=f"{round_number:02x}", num_bytes=NUM_BYTES, leaves=leaves
    )
    attest = Attest(round=round_number, record=record, state_hash=bare.state_hash)
    attests = [
        seal(who, Header(run_id=RUN, lineage=0, sender=who.peer_id, sequence=1, expires_unix_s=0), attest).hex()
        for who in IDENTITIES[:num_attests]
    ]
    return bare.model_copy(update={"attests": tuple(attests)})


def history(num_rounds: int) -> list[Commit]:
    commits: list[Commit] = []
    for number in range(1, num_rounds + 1):
        parent = commits[-1].record.content_id() if commits else RUN
        before = manifest_of(number - 1, parent).state_hash
        plan = Plan(
            lineage=0,
            fragment=0,
            round=number,
            ballot=0,
            leader=PEERS[0],
            parent=parent,
            parent_state=before,
            members=(Member(peer=PEERS[0], tokens=1, commitment="0" * 64),),
            spans=(Span(first_chunk=0, num_chunks=1, owner=PEERS[0]),),
            roster=PEERS,
            next_roster=PEERS,
            data_cursor=number,
            rules="5" * 64,
            attempt_timeout_s=1.0,
        )
        result = SpanResult(plan=plan.content_id(), span=0, included=(True,), digest="1" * 64)
        commits.append(Commit(record=Record(plan=plan, results=(result,)), ballot=0, votes=VALID))
    return commits


class Source:
    """A donor's node. ``moves_after`` leaf reads it applies another round and the old state is gone."""

    def __init__(self, commits: Sequence[Commit], num_attests: int = 3, moves_after: int | None = None) -> None:
        self.num_attests = num_attests
        self.moves_after = moves_after
        self.num_reads = 0
        self.reads: list[str] = []
        self._all = list(commits)
        self.old: SnapshotLeaves | None = None
        self.set_round(len(commits) - (moves_after is not None))

    def set_round(self, number: int) -> None:
        self.head_round = number
        self.memory = bytearray(state(number))
        record = self._all[number - 1].record.content_id()
        self.leaves = SnapshotLeaves(manifest_of(number, record, self.num_attests), [self.memory])

    def commits(self, first: int, count: int) -> Sequence[Commit]:
        return self._all[: self.head_round][first - 1 : first - 1 + count]

    def manifest(self) -> SnapshotManifest | None:
        return self.leaves.manifest

    def archived(self, record: str) -> SnapshotManifest | None:
        """An archivist's answer; nobody's where `old` is not set."""
        return self.old.manifest if self.old is not None and self.old.manifest.record == record else None

    def keep(self, number: int) -> None:
        """Have the state after a round on disk."""
        record = self._all[number - 1].record.content_id()
        self.old = SnapshotLeaves(manifest_of(number, record, 0), [state(number)])

    def read_leaf(self, digest: str) -> bytes | None:
        if self.old is not None and (data := self.old.read(digest)) is not None:
            return data
        if self.num_reads == self.moves_after:
            self.set_round(self.head_round + 1)
        self.num_reads += 1
        self.reads.append(digest)
        return self.leaves.read(digest)


def verify_commit(commit: Commit, standing: Standing) -> None:
    if commit.votes != VALID:
        raise ValueError("certificate is not a quorum")


class Join:
    """A joiner and its donors."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.network = MemoryNetwork(progress_timeout_s=1.0)
        self.executor = executor
        self.donors: list[PeerId] = []
        self.misconduct: list[tuple[PeerId, str]] = []
        self.progress: list = []
        self.path = folder / "state.partial"
        self.sync = self.client()

    def client(self) -> StateSync:
        """A joiner's process; another one is a restart."""
        return StateSync(
            transport=self.network.transport(JOINER),
            chain=Chain(GENESIS),
            verify_commit=verify_commit,
            certifier=Certifier(RUN, NUM_BYTES, lambda _, roster, peers: len(set(roster) & set(peers)) >= 3),
            partial_path=self.path,
            executor=self.executor,
            donors=lambda: self.donors,
            on_progress=self.progress.append,
            on_misconduct=lambda error: self.misconduct.append((error.peer, error.rule)),
            order=list,
        )

    def donor(self, source) -> PeerId:
        peer = PEERS[len(self.donors)]
        self.donors.append(peer)
        StateServer(self.network.transport(peer), source, self.executor)
        return peer


@pytest.fixture(scope="session")
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
async def join(tmp_path: Path, executor: ThreadPoolExecutor):
    join = Join(tmp_path, executor)
    yield join
    await join.network.close()


@pytest.fixture
def make_history():
    return history


@pytest.fixture
def make_source():
    return Source


@pytest.fixture
def make_state():
    return state
