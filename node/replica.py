"""This node's copy of what the swarm has agreed on: anchor, outer momentum, and the commit that they belong to.

The anchor lives in the memory that the trainer reads (`training.shared_buffers`), and the state hash is computed by
reading that memory again after every outer step. A commit is applied and saved before the node says so; a crash in
between leaves the last checkpoint, from which the node catches up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..kernels import hash_tree
from ..kernels.chunk_grid import ChunkGrid
from ..protocol.messages import Commit
from ..protocol.rule_book import RuleBook
from ..protocol.spec import Genesis
from ..protocol.standing import Standing
from ..protocol.transport import Buffer
from ..training.checkpoint import Checkpoint, CheckpointStore, Saved, SaveFailed
from ..training.outer import OuterConfig, apply_mean
from ..training.shared_buffers import SharedBuffers
from .chain import Chain

FloatVector = NDArray[np.float32]
_STATE_BYTES = 8
"""Of one element: anchor and momentum, float32."""


def state_context(round_number: int, data_cursor: int) -> bytes:
    """What a state hash binds besides the vectors."""
    return f"round={round_number};data_cursor={data_cursor}".encode()


def leaf_digests(anchor: FloatVector, momentum: FloatVector) -> list[bytes]:
    """Leaves of a state's hash tree; reads both vectors."""
    return hash_tree.leaf_digests([anchor.data, momentum.data])


def initial_state_hash(anchor: FloatVector) -> str:
    """State hash of round 0: initial weights, zero momentum, cursor 0. Genesis names it."""
    return hash_tree.root(leaf_digests(anchor, np.zeros_like(anchor)), state_context(0, 0))


@dataclass(frozen=True)
class StateCopy:
    """An immutable copy of a committed state, from which joiners are served while the node trains on."""

    round: int
    record_id: str
    context: bytes
    leaves: tuple[bytes, ...]
    data: bytes
    """Anchor, then momentum, float32."""


@dataclass(frozen=True)
class _Head:
    """The last applied commit with the hash of the state after it; replaced as one, so that nobody sees half of it."""

    commit: Commit | None
    standing: Standing
    leaves: tuple[bytes, ...]
    state_hash: str


@dataclass(frozen=True)
class Archive:
    """Old states that an archivist keeps: for rollbacks, and for whoever comes when all others have left."""

    store: CheckpointStore
    every_rounds: int


class StateDisagrees(RuntimeError):
    """The state that was computed or downloaded does not have the hash that it must have."""


class Replica:
    """Anchor and outer state of the last applied commit. Bulk work runs off the event loop, one job at a time."""

    def __init__(
        self,
        *,
        book: RuleBook,
        initial: Callable[[], FloatVector],
        buffers: SharedBuffers,
        grid: ChunkGrid,
        outer_of: Callable[[Genesis], OuterConfig],
        store: CheckpointStore,
        chain: Chain,
        archive: Archive | None = None,
        on_saved: Callable[[Saved, int], None] = lambda _saved, _num_kept: None,
    ) -> None:
        """``initial`` makes the weights of round 0; ``outer_of`` reads the outer method out of the rules in force."""
        self._book, self._initial, self._outer_of = book, initial, outer_of
        self._buffers, self._grid = buffers, grid
        self._store, self._chain, self._archive, self._on_saved = store, chain, archive, on_saved
        self._momentum: FloatVector = np.zeros(grid.num_elements, np.float32)
        self._work = threading.Lock()
        self._drop_left_behind()
        self._load_initial()

    # --- what the state belongs to ------------------------------------------------------------------------------------

    @property
    def head(self) -> Commit | None:
        """Last applied commit."""
        return self._head.commit

    @property
    def state_hash(self) -> str:
        """Root of the state's hash tree after the last applied commit."""
        return self._head.state_hash

    @property
    def head_round(self) -> int:
        """Last applied commit; 0: the initial state."""
        return self._head.standing.round

    @property
    def standing(self) -> Standing:
        """What the last applied commit leaves in force."""
        return self._head.standing

    def commits(self, first: int, count: int) -> list[Commit]:
        """Commits for a joiner's chain."""
        return self._chain.read(first, count)

    # --- changing it --------------------------------------------------------------------------------------------------

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        """Take the outer step of ``commit`` from its encoded mean and return the new state hash.

        The result is saved before this returns (a full disk is said by the store and does not stop the node). Raises
        ValueError if the commit does not follow the head, OSError if it cannot be kept: nothing is changed then.
        """
        plan = commit.record.plan
        if plan.round != self.head_round + 1 or plan.parent != self.standing.record_id:
            raise ValueError(f"commit {plan.round} does not follow commit {self.head_round}")
        await asyncio.to_thread(self._apply, commit, mean)
        return self.state_hash

    async def install(self, commits: Sequence[Commit], data: Buffer, state_hash: str) -> None:
        """Replace everything by a downloaded state: the one after the last of ``commits``, which begin with round 1.

        ``data`` is the anchor, then the momentum. Raises `StateDisagrees` before anything is replaced.
        """
        await asyncio.to_thread(self._install, commits, data, state_hash)

    def restore(self) -> bool:
        """Load the newest checkpoint that verifies and whose commit is in the chain. False: the initial state stays.

        A chain that goes further than the state is what the node then catches up by; one that is shorter than the
        newest checkpoint (damaged, or of an older backup) calls for an older checkpoint, if there is one.
        """
        checkpoint = self._newest_usable()
        if checkpoint is not None:
            self._load(checkpoint)
        return checkpoint is not None

    async def begin_lineage(self) -> None:
        """Go back to the state from which the rules' present lineage goes on, or to the newest older one that is here.

        From an older one this node catches up like any other that has missed rounds. Raises OSError.
        """
        await asyncio.to_thread(self._begin_lineage)

    def _begin_lineage(self) -> None:
        with self._work:
            self._drop_left_behind()
            if self.head_round <= len(self._chain):  # the state is of a commit that stays
                self._head = replace(self._head, standing=self._book.rules.standing(self._head.commit))
                return
            checkpoint = self._newest_usable()
            if checkpoint is None:
                self._load_initial()
            else:
                self._load(checkpoint)
                self._save()  # as the newest, whatever the older ones were of

    @property
    def _stores(self) -> list[CheckpointStore]:
        return [self._store] if self._archive is None else [self._store, self._archive.store]

    def _newest_usable(self) -> Checkpoint | None:
        """Of the last states and the archived ones, the newest that belongs to the chain as it is now."""
        found = [checkpoint for store in self._stores if (checkpoint := store.load_latest(self._is_usable)) is not None]
        return max(found, key=lambda checkpoint: int(checkpoint.state["round"]), default=None)

    def _drop_left_behind(self) -> None:
        """Forget commits of a lineage that the rules have left: after a crash they may still be here."""
        rules, fork = self._book.rules, self._book.rules.fork
        if fork is not None and len(self._chain) > fork.round and not rules.is_present(self._chain.get(fork.round + 1)):
            self._chain.truncate(fork.round)

    def _load_initial(self) -> None:
        self._buffers.open_anchor()[:] = self._initial()
        self._momentum[:] = 0
        self._finish(None)

    def _load(self, checkpoint: Checkpoint) -> None:
        self._buffers.open_anchor()[:] = checkpoint.tensors["anchor"]
        self._momentum[:] = checkpoint.tensors["momentum"]
        self._finish(self._chain.get(int(checkpoint.state["round"])))

    def _is_usable(self, checkpoint: Checkpoint) -> bool:
        """Whether the chain says how the state came about, and the state is the one that was saved."""
        try:
            commit = self._chain.get(int(checkpoint.state["round"]))
            if checkpoint.state["record"] != commit.record.content_id():
                return False  # of a lineage that has been left
            anchor, momentum = checkpoint.tensors["anchor"], checkpoint.tensors["momentum"]
            context = state_context(commit.record.plan.round, commit.record.plan.data_cursor)
            if not anchor.shape == momentum.shape == (self._grid.num_elements,):
                return False
            return hash_tree.root(leaf_digests(anchor, momentum), context) == checkpoint.state["state_hash"]
        except (IndexError, KeyError, TypeError, ValueError):
            return False

    def _apply(self, commit: Commit, mean: Buffer) -> None:
        with self._work:
            plan = commit.record.plan
            settings = self._outer_of(self._book.rules.of_plan(plan)).at(plan.round)
            # First what can fail: after OSError the state is as before, and the same commit may be applied again.
            self._chain.append(commit)
            anchor = self._buffers.open_anchor()
            apply_mean(anchor, self._momentum, np.frombuffer(mean, np.uint8), self._grid, settings)
            self._finish(commit)
            self._save()

    def _install(self, commits: Sequence[Commit], data: Buffer, state_hash: str) -> None:
        plan = commits[-1].record.plan
        values, num_elements = np.frombuffer(data, np.float32), self._grid.num_elements
        anchor, momentum = values[:num_elements], values[num_elements:]
        if hash_tree.root(leaf_digests(anchor, momentum), state_context(plan.round, plan.data_cursor)) != state_hash:
            raise StateDisagrees(f"the downloaded state of round {plan.round} is not the one that the swarm certifies")
        with self._work:
            for commit in commits:
                self._chain.append(commit)
            self._buffers.open_anchor()[:] = anchor
            self._momentum[:] = momentum
            self._finish(commits[-1])
            self._save()

    def _finish(self, commit: Commit | None) -> None:
        """Hash what is in memory now, make it the head and give it to readers."""
        standing = self._book.rules.standing(commit)
        self._buffers.seal_anchor(standing.round)
        leaves = leaf_digests(self._buffers.anchor(standing.round), self._momentum)
        state_hash = hash_tree.root(leaves, state_context(standing.round, standing.data_cursor))
        self._head = _Head(commit, standing, tuple(leaves), state_hash)

    def _save(self) -> None:
        tensors = {"anchor": self._buffers.anchor(self.head_round), "momentum": self._momentum}
        state = {"round": self.head_round, "record": self.standing.record_id, "state_hash": self.state_hash}
        saved = self._store.save(tensors, state)
        if self._archive is not None and self.head_round % self._archive.every_rounds == 0:
            self._archive.store.save(tensors, state)
        if not isinstance(saved, SaveFailed):
            self._on_saved(saved, len(self._store.numbers()))

    def starting_copy(self, record_id: str) -> StateCopy | None:
        """The state that the rules' present lineage begins with, if that is the one after ``record_id``, from disk.

        None for every other: so one old state at most is asked of a node, however many are on its disk. Blocking.
        """
        fork = self._book.rules.fork
        if fork is None or fork.record != record_id or not 1 <= fork.round <= len(self._chain):
            return None
        commit = self._chain.get(fork.round)
        for store in self._stores:
            checkpoint = store.load_latest(lambda found: self._is_usable(found) and found.state["record"] == record_id)
            if checkpoint is not None:
                return _copy_of(checkpoint, commit)
        return None

    def copy(self) -> StateCopy:
        """The present state, copied. Blocking: waits for an outer step that is going on."""
        with self._work:
            return StateCopy(
                round=self.head_round,
                record_id=self.standing.record_id,
                context=state_context(self.head_round, self.standing.data_cursor),
                leaves=self._head.leaves,
                data=self._buffers.anchor(self.head_round).tobytes() + self._momentum.tobytes(),
            )


def _copy_of(checkpoint: Checkpoint, commit: Commit) -> StateCopy:
    anchor, momentum = checkpoint.tensors["anchor"], checkpoint.tensors["momentum"]
    plan = commit.record.plan
    return StateCopy(
        round=plan.round,
        record_id=commit.record.content_id(),
        context=state_context(plan.round, plan.data_cursor),
        leaves=tuple(leaf_digests(anchor, momentum)),
        data=anchor.tobytes() + momentum.tobytes(),
    )


def checkpoint_store(
    folder: Path, keep: int, on_warning: Callable[[str], None], on_point: Callable[[str], None]
) -> CheckpointStore:
    """Where a node keeps its committed states."""
    return CheckpointStore(folder / "state", "state", keep=max(keep, 2), on_warning=on_warning, on_point=on_point)


def archive_of(
    genesis: Genesis, me: str, folder: Path, num_elements: int, on_warning: Callable[[str], None]
) -> Archive | None:
    """This node's archive; None if the run does not name it as an archivist."""
    if me not in genesis.archive.peers:
        return None
    config = genesis.archive
    fitting = config.max_bytes // (_STATE_BYTES * num_elements) - 1  # one more is there while the next is written
    keep = max(1, min(config.num_states, fitting))
    store = CheckpointStore(folder / "archive", "state", keep=keep, on_warning=on_warning)
    return Archive(store, config.every_rounds)
