from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node.chain import Chain
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Commit
from atoll.protocol.record import Member, Plan, Record, Span

PEER = Identity.from_seed(b"c" * 32).peer_id


def commit(number: int) -> Commit:
    plan = Plan(
        lineage=0,
        fragment=0,
        round=number,
        ballot=0,
        leader=PEER,
        parent="0" * 64,
        parent_state="1" * 64,
        members=(Member(peer=PEER, tokens=1, commitment="2" * 64),),
        spans=(Span(first_chunk=0, num_chunks=1, owner=PEER),),
        roster=(PEER,),
        next_roster=(PEER,),
        data_cursor=number * 10,
        rules="5" * 64,
        attempt_timeout_s=1.0,
    )
    return Commit(record=Record(plan=plan, results=()), ballot=0, votes=())


def test_commits_come_back_in_order_after_opening_again(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain")
    for number in (1, 2, 3):
        chain.append(commit(number))
    again = Chain(tmp_path / "chain")
    assert again.read(2, 10) == [commit(2), commit(3)]
    assert again.last == commit(3)


def test_a_line_cut_off_by_a_crash_is_dropped_and_written_again(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain")
    chain.append(commit(1))
    chain.append(commit(2))
    path = tmp_path / "chain"
    path.write_bytes(path.read_bytes()[:-20])
    again = Chain(path)
    assert len(again) == 1
    again.append(commit(2))
    assert Chain(path).last == commit(2)


def test_a_gap_is_refused_and_a_repetition_ignored(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain")
    chain.append(commit(1))
    chain.append(commit(1))
    assert len(chain) == 1
    with pytest.raises(ValueError, match="commit 3 does not follow commit 1"):
        chain.append(commit(3))


def test_truncating_forgets_later_commits_also_on_disk(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain")
    for number in (1, 2, 3):
        chain.append(commit(number))
    chain.truncate(1)
    assert Chain(tmp_path / "chain").last == commit(1)
