"""What a node finds on its disk after crashes, full disks, backups and accidents, and what it makes of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.node.chain import Chain
from atoll.node.known_peers import MAX_ADDRESSES, KnownPeers
from atoll.node.replica import Replica, checkpoint_store
from atoll.protocol.amendments import RunRules
from atoll.protocol.identity import Identity, IdentityError, PeerId
from atoll.protocol.messages import Commit
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.simulator import world_genesis
from atoll.training.config import OuterConfig
from atoll.training.shared_buffers import SharedBuffers

from .test_chain import PEER, commit

NUM_ELEMENTS = 700
GENESIS = world_genesis(1)
GRID = ChunkGrid(NUM_ELEMENTS, 256, codec("float32"))


def follow(replica: Replica, number: int) -> Commit:
    """A commit that fits on the replica's head."""
    template = commit(number)
    plan = template.record.plan.model_copy(update={"parent": replica.standing.record_id, "rules": GENESIS.rules_id})
    return template.model_copy(update={"record": template.record.model_copy(update={"plan": plan})})


class Disk:
    """A node's folder; `open` is a start of the node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.warnings = folder, list[str]()

    def open(self) -> Replica:
        store = checkpoint_store(self.folder, 3, self.warnings.append, lambda _: None)
        return Replica(
            book=RuleBook(RunRules(GENESIS)),
            initial=lambda: np.arange(NUM_ELEMENTS, dtype=np.float32),
            buffers=SharedBuffers.create(GRID.num_elements, GRID.num_chunks, GRID.total_encoded),
            grid=GRID,
            outer_of=lambda _: OuterConfig(optimizer="sgd", lr=1.0, momentum=0.0),
            store=store,
            chain=Chain(self.folder / "chain.jsonl"),
        )

    async def rounds(self, replica: Replica, count: int) -> None:
        for _ in range(count):
            number = replica.head_round + 1
            await replica.apply(follow(replica, number), np.full(NUM_ELEMENTS, number, np.float32).tobytes())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


class FullFile(io.FileIO):
    """Takes ten bytes, then the disk is full."""

    def write(self, data, /):  # type: ignore[no-untyped-def]
        super().write(bytes(data)[:10])
        raise OSError(28, "No space left on device")


async def test_a_full_disk_at_the_chain_changes_nothing_and_the_next_try_succeeds(disk: Disk, monkeypatch):
    replica = disk.open()
    await disk.rounds(replica, 2)
    before, following = replica.state_hash, follow(replica, 3)
    mean = np.ones(NUM_ELEMENTS, np.float32).tobytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *_args, **_kwargs: FullFile(path, "ab"))
        with pytest.raises(OSError, match="No space"):
            await replica.apply(following, mean)
    assert (replica.head_round, replica.state_hash) == (2, before)
    await replica.apply(following, mean)
    again = disk.open()
    assert again.restore()
    assert (again.head_round, again.state_hash) == (3, replica.state_hash)


async def test_a_chain_that_is_shorter_than_the_newest_checkpoint_takes_the_one_before(disk: Disk):
    replica = disk.open()
    await disk.rounds(replica, 3)
    path = disk.folder / "chain.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]) + b'{"kind":"commit","rec')
    again = disk.open()
    assert again.restore()
    assert again.head_round == 2


@pytest.mark.parametrize("damage", [b"", b"\0" * 500, b'{"kind":"commit"}\n', b"[" * 100_000 + b"\n"])
async def test_a_damaged_chain_starts_from_the_genesis(disk: Disk, damage: bytes):
    replica = disk.open()
    await disk.rounds(replica, 2)
    (disk.folder / "chain.jsonl").write_bytes(damage)
    again = disk.open()
    assert not again.restore()
    assert (again.head_round, len(again.commits(1, 10))) == (0, 0)


async def test_a_missing_state_keeps_the_chain_to_catch_up_by(disk: Disk):
    replica = disk.open()
    await disk.rounds(replica, 2)
    for path in (disk.folder / "state").iterdir():
        path.unlink()
    again = disk.open()
    assert not again.restore()
    assert again.head_round == 0
    assert len(again.commits(1, 10)) == 2


@pytest.mark.parametrize(
    "state", [{}, {"round": "x"}, {"round": 2, "state_hash": "00"}, {"round": -1}, {"round": 10**9}]
)
async def test_a_manifest_that_says_something_else_is_passed_over(disk: Disk, state: dict[str, object]):
    replica = disk.open()
    await disk.rounds(replica, 2)
    newest = max((disk.folder / "state").glob("*.json"))
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "state": state}))
    again = disk.open()
    assert again.restore()
    assert again.head_round == 1


# --- peers.json -------------------------------------------------------------------------------------------------------

OTHER = Identity.from_seed(b"o" * 32).peer_id


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a": 5}',
        b'{"not a peer": ["/ip4/1.2.3.4"]}',
    ],
)
def test_a_damaged_file_of_known_peers_counts_as_empty(tmp_path: Path, content: bytes):
    (tmp_path / "peers.json").write_bytes(content)
    assert KnownPeers(tmp_path / "peers.json").addresses == {}


def test_only_addresses_are_remembered_of_what_peers_say_of_themselves(tmp_path: Path):
    known = KnownPeers(tmp_path / "peers.json")
    hostile = (
        "--help",
        "",
        "/ip4/999.1.1.1/tcp/1",
        "/unix/etc/passwd",
        "/ip4/1.2.3.4/tcp/5\n",
        "/ip6/fe80::1%25/tcp/1",
        "http://169.254.169.254/",
    )
    known.remember({OTHER: (*hostile, f"/ip4/10.0.0.2/tcp/1/p2p/{PEER}")})
    assert known.addresses == {}
    known.remember({OTHER: ("/ip4/10.0.0.1/tcp/4001", *hostile)})
    assert KnownPeers(tmp_path / "peers.json").addresses == {OTHER: ("/ip4/10.0.0.1/tcp/4001",)}
    known.remember({OTHER: tuple(f"/ip4/10.0.0.{n}/tcp/1" for n in range(200))})
    assert len(known.addresses[OTHER]) == MAX_ADDRESSES


def test_strangers_cannot_fill_the_file(tmp_path: Path):
    known = KnownPeers(tmp_path / "peers.json")
    for number in range(300):
        known.remember({PeerId(Identity.from_seed(number.to_bytes(32, "big")).peer_id): ("/ip4/10.0.0.1/tcp/1",)})
    assert len(KnownPeers(tmp_path / "peers.json").addresses) == 256


# --- key files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: b"", lambda d: b"\0" * len(d)])
def test_a_changed_key_file_is_one_clear_error_and_stays_as_it_is(tmp_path: Path, change):
    path = tmp_path / "identity.key"
    Identity.create(path)
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(IdentityError, match="damaged"):
        Identity.load_or_create(path)
    assert path.read_bytes() == before


def test_every_flipped_bit_of_a_key_file_is_noticed(tmp_path: Path):
    path = tmp_path / "identity.key"
    Identity.create(path)
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 5):
        path.write_bytes(bytes(byte ^ (1 << bit % 8 if index == bit // 8 else 0) for index, byte in enumerate(good)))
        with pytest.raises(IdentityError):
            Identity.load(path)
