"""What a member has said is never forgotten: votes survive restarts, and damage is an error, not an empty slate."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.protocol.round_machine import Acceptor
from atoll.protocol.simulator import world_genesis
from atoll.protocol.votes import VoteFileDamaged, VoteStore

PEERS = world_genesis(3).membership.roster
PEER = PEERS[0]


@pytest.fixture
def store(tmp_path: Path) -> VoteStore:
    store = VoteStore(tmp_path, lineage=0)
    store.open(1, (PEER,), PEER, 0)
    return store


def test_a_promise_is_read_back_after_a_restart(store: VoteStore, tmp_path: Path):
    store.save(7, Acceptor(promised=5, led=4))
    assert VoteStore(tmp_path, lineage=0).load(7) == Acceptor(promised=5, led=4)


def test_rounds_and_lineages_do_not_mix(store: VoteStore, tmp_path: Path):
    store.save(7, Acceptor(promised=5))
    assert store.load(8) == Acceptor()
    assert VoteStore(tmp_path, lineage=1).load(7) == Acceptor()


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_file_is_an_error_with_a_remedy(store: VoteStore, tmp_path: Path, damage: bytes | None):
    store.save(7, Acceptor(promised=5))
    (path,) = tmp_path.glob("0-0-*7.json")
    path.write_bytes(path.read_bytes()[:-10] if damage is None else damage)
    with pytest.raises(VoteFileDamaged, match=r"0-0-000000000007\.json is damaged .*restore the file"):
        VoteStore(tmp_path, lineage=0).load(7)


def test_a_write_that_fails_keeps_the_former_promise(store: VoteStore, monkeypatch: pytest.MonkeyPatch):
    store.save(7, Acceptor(promised=5))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save(7, Acceptor(promised=9))
    assert store.load(7) == Acceptor(promised=5)


def test_old_rounds_are_forgotten_and_recent_ones_kept(store: VoteStore):
    for number in range(1, 40):
        store.save(number, Acceptor(promised=number))
    store.prune(39)
    assert store.load(20) == Acceptor()
    assert store.load(30) == Acceptor(promised=30)


def test_a_member_with_an_empty_folder_abstains_until_it_counts_even_over_restarts(tmp_path: Path):
    VoteStore(tmp_path, lineage=0).open(5, PEERS, PEER, 0)
    again = VoteStore(tmp_path, lineage=0)
    again.open(5, PEERS, PEER, 0)
    # the state may be of a donor that is behind: it may have voted in later rounds as well
    assert again.forgot(5)
    assert again.forgot(7)
    assert again.is_abstaining
    again.end_abstention(7)
    assert again.forgot(7)
    assert not VoteStore(tmp_path, lineage=0).forgot(8)


def test_in_a_pair_it_abstains_once(tmp_path: Path):
    store = VoteStore(tmp_path, lineage=0)
    store.open(5, PEERS[:2], PEER, 0)
    assert store.forgot(5)
    assert not store.forgot(6)


def test_newcomers_do_not_abstain_and_founders_only_until_they_have_asked(tmp_path: Path):
    joiner, founder = VoteStore(tmp_path / "joiner", 0), VoteStore(tmp_path / "founder", 0)
    joiner.open(5, PEERS[1:], PEER, 0)
    founder.open(1, PEERS, PEER, 0)
    assert not joiner.forgot(5)
    assert founder.forgot(1)  # until the others have been asked
    founder.recollect(len(PEERS), has_forgotten=False)
    assert not founder.forgot(1)
