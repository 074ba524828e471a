"""Amendments on a node's disk: kept before they are in force, whole after a crash, and the operator's way in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.node.amendment_store import AmendmentStore, companion, read_companion, write_companion
from atoll.node.chain import Chain
from atoll.node.lineage_start import change_for
from atoll.node.replica import Archive, Replica, checkpoint_store
from atoll.protocol.amendments import RunRules
from atoll.protocol.changes import LearningRate, Pause, Resume, Rollback
from atoll.protocol.identity import Identity
from atoll.protocol.rule_book import RuleBook
from atoll.training.checkpoint import CheckpointStore
from atoll.training.config import OuterConfig
from atoll.training.shared_buffers import SharedBuffers

from .test_hostile_disks import GENESIS, GRID, NUM_ELEMENTS, follow

OPERATOR = Identity.from_seed(bytes([1]) * 32)


def amended(*changes: object, from_round: int = 3) -> RunRules:
    rules = RunRules(GENESIS)
    for change in changes:
        rules = rules.extended([rules.next(change, from_round).signed(OPERATOR)])  # type: ignore[arg-type]
    return rules


def test_what_was_kept_is_there_after_a_restart_and_a_torn_line_is_cut_off(tmp_path: Path):
    rules = amended(Pause(), Resume(), Pause())
    AmendmentStore(tmp_path).append(rules.amendments)
    path = tmp_path / "amendments.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    store = AmendmentStore(tmp_path)
    assert store.load(GENESIS).head == rules.amendments[1].digest
    store.append(rules.amendments[2:])
    assert AmendmentStore(tmp_path).load(GENESIS).head == rules.head


def test_a_line_that_is_no_amendment_of_this_run_ends_the_list_for_good(tmp_path: Path):
    rules = amended(Pause(), Resume())
    foreign = rules.amendments[1].model_copy(update={"from_round": 4})
    AmendmentStore(tmp_path).append([rules.amendments[0], foreign])
    assert AmendmentStore(tmp_path).load(GENESIS).head == rules.amendments[0].digest
    AmendmentStore(tmp_path).append(rules.amendments[1:])
    assert AmendmentStore(tmp_path).load(GENESIS).head == rules.head


def test_what_an_operator_submits_is_taken_once_in_order_and_litter_is_thrown_away(tmp_path: Path):
    rules, store = amended(Pause(), Resume()), AmendmentStore(tmp_path)
    store.submit(rules.amendments)
    (tmp_path / "inbox" / "000000.json").write_text("{}")
    assert store.collect() == list(rules.amendments)
    assert store.collect() == []


def test_the_file_beside_a_spec_survives_its_text(tmp_path: Path):
    spec, rules = tmp_path / "run.toml", amended(LearningRate(inner=0.1), Pause())
    assert read_companion(spec) == []
    write_companion(spec, rules.amendments)
    assert companion(spec).name == "run.toml.amendments"
    assert read_companion(spec) == list(rules.amendments)


class Disk:
    """A node's folder with an archive of every second state; `open` is a start of the node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = RuleBook(RunRules(GENESIS))

    def open(self) -> Replica:
        store = checkpoint_store(self.folder, 2, print, lambda _: None)
        archive = Archive(CheckpointStore(self.folder / "archive", "state", keep=4), every_rounds=2)
        return Replica(
            book=self.book,
            initial=lambda: np.zeros(NUM_ELEMENTS, np.float32),
            buffers=SharedBuffers.create(GRID.num_elements, GRID.num_chunks, GRID.total_encoded),
            grid=GRID,
            outer_of=lambda rules: OuterConfig(optimizer="sgd", lr=float(rules.outer.get("lr", 1.0)), momentum=0.0),
            store=store,
            chain=Chain(self.folder / "chain.jsonl"),
            archive=archive,
        )

    async def rounds(self, replica: Replica, count: int, value: float = 1.0) -> None:
        for _ in range(count):
            commit = follow(replica, replica.head_round + 1)
            rules = self.book.rules.at(replica.head_round + 1)
            changes = {"rules": rules.rules_id, "lineage": rules.lineage}
            plan = commit.record.plan.model_copy(update=changes)
            commit = commit.model_copy(update={"record": commit.record.model_copy(update={"plan": plan})})
            await replica.apply(commit, np.full(NUM_ELEMENTS, value, np.float32).tobytes())

    def amend(self, change: object, from_round: int) -> None:
        rules = self.book.rules
        self.book.take(rules.extended([rules.next(change, from_round).signed(OPERATOR)]))  # type: ignore[arg-type]

    def roll_back(self, number: int) -> Rollback:
        change = change_for(self.folder, self.book.rules, number, GENESIS.membership.roster, is_reset=False)
        self.amend(change, number + 1)
        return change


async def test_the_outer_step_uses_the_rate_of_the_rules_that_the_commit_names(tmp_path: Path):
    disk = Disk(tmp_path)
    replica = disk.open()
    disk.amend(LearningRate(outer=0.5), 3)
    await disk.rounds(replica, 3)
    assert replica.copy().data[:4] == np.float32(-2.5).tobytes()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("number", [2, 4, 5])  # 2 and 4 archived, 5 among the last two
async def test_a_rollback_finds_a_kept_state_and_forgets_what_came_later(tmp_path: Path, number: int, restarts: bool):
    disk = Disk(tmp_path)
    replica = disk.open()
    await disk.rounds(replica, 6)
    change = disk.roll_back(number)
    if restarts:  # a crash before anything but the amendment was written
        replica = disk.open()
        replica.restore()
    await replica.begin_lineage()
    assert (replica.head_round, replica.state_hash) == (number, change.state_hash)
    await disk.rounds(replica, 2, value=3.0)
    again = disk.open()
    assert again.restore()
    assert again.state_hash == replica.state_hash
    assert [commit.record.plan.lineage for commit in again.commits(1, 9)] == [0] * number + [1, 1]


async def test_a_state_that_nobody_here_holds_is_no_place_to_go_back_to(tmp_path: Path):
    disk = Disk(tmp_path)
    await disk.rounds(disk.open(), 6)
    with pytest.raises(Exception, match=r"not held here any more: round 3; choose one of those that are \(2, 4"):
        disk.roll_back(3)
