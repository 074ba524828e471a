"""This node's copy of the model in a gossip run: weights that no other node need have, outer momentum, last account.

The weights lie in the memory that the trainer reads, as in other runs (`node.replica`). A round is stepped and saved
before the node says so; after a crash it goes on from its own last checkpoint.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..kernels import hash_tree
from ..kernels.chunk_grid import ChunkGrid
from ..protocol.gossip.replica import Used
from ..protocol.gossip.vectors import Grids
from ..protocol.messages import Commit
from ..protocol.rule_book import RuleBook
from ..protocol.spec import Genesis
from ..protocol.standing import Standing
from ..protocol.transport import Buffer
from ..training.checkpoint import Checkpoint, CheckpointStore, Saved, SaveFailed
from ..training.outer import OuterConfig
from ..training.pairs import PairParts, apply_pair
from ..training.shared_buffers import SharedBuffers
from .replica import FloatVector, StateCopy, leaf_digests, state_context


@dataclass(frozen=True)
class _Head:
    """The last round with the state after it; replaced as one."""

    account: Commit | None
    standing: Standing
    leaves: tuple[bytes, ...] = field(repr=False)
    state_hash: str


class GossipReplica:
    """Weights and outer state of one node. Bulk work runs off the event loop, one job at a time."""

    def __init__(
        self,
        *,
        book: RuleBook,
        initial: Callable[[], FloatVector],
        buffers: SharedBuffers,
        grid: ChunkGrid,
        outer_of: Callable[[Genesis], OuterConfig],
        store: CheckpointStore,
        on_saved: Callable[[Saved, int], None] = lambda _saved, _num_kept: None,
    ) -> None:
        """``initial`` makes the weights of round 0; ``outer_of`` reads the outer method out of the rules in force."""
        self._book, self._outer_of, self._buffers, self._grid = book, outer_of, buffers, grid
        self._grids = Grids.of(grid)
        self._store, self._on_saved = store, on_saved
        self._momentum: FloatVector = np.zeros(grid.num_elements, np.float32)
        self._work = threading.Lock()
        self._buffers.open_anchor()[:] = initial()
        self._finish(None)

    # --- what the state belongs to ------------------------------------------------------------------------------------

    @property
    def head(self) -> Commit | None:
        """This node's account of its last round."""
        return self._head.account

    @property
    def head_round(self) -> int:
        """The last round that this node has ended; 0: the initial state."""
        return self._head.standing.round

    @property
    def standing(self) -> Standing:
        """What that round leaves in force, here."""
        return self._head.standing

    @property
    def state_hash(self) -> str:
        """Root of the hash tree of this node's own state."""
        return self._head.state_hash

    def commits(self, first: int, count: int) -> list[Commit]:
        """None: an account proves nothing to anybody else."""
        del first, count
        return []

    # --- changing it --------------------------------------------------------------------------------------------------

    def weights(self) -> Buffer:
        """After the last round, float32, in place."""
        return self._buffers.anchor(self.head_round).data

    async def step(self, account: Commit, delta: Buffer, partner: Used | None) -> str:
        """Take the outer step of ``account``'s round and make it the head; saved when this returns, if the disk takes
        it (a full one is said by the store). Raises ValueError if the round does not come after the head."""
        if account.record.plan.round <= self.head_round:
            raise ValueError(f"round {account.record.plan.round} is not after round {self.head_round}")
        await asyncio.to_thread(self._step, account, delta, partner)
        return self.state_hash

    async def begin_from(self, account: Commit, weights: NDArray[np.float32]) -> None:
        """Replace the weights by others' (num_elements,), without momentum; ``account`` says after which round."""
        await asyncio.to_thread(self._begin_from, account, weights)

    def restore(self) -> bool:
        """Load the newest checkpoint that verifies. False: the initial state stays."""
        checkpoint = self._store.load_latest(self._is_usable)
        if checkpoint is None:
            return False
        self._buffers.open_anchor()[:] = checkpoint.tensors["anchor"]
        self._momentum[:] = checkpoint.tensors["momentum"]
        self._finish(Commit.model_validate(checkpoint.state["account"], strict=False))
        return True

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        """Never: nobody's commit is applied here."""
        raise ValueError("a gossip run has no commits that all apply")

    async def begin_lineage(self) -> None:
        """Never: there is no common state to go back to, and such amendments are refused."""
        raise ValueError("a gossip run has one lineage")

    # --- giving it to others ------------------------------------------------------------------------------------------

    def copy(self) -> StateCopy:
        """The present state, copied. Blocking: waits for an outer step that is going on."""
        with self._work:
            return StateCopy(
                round=self.head_round,
                record_id=self.standing.record_id,
                context=state_context(self.head_round, 0),
                leaves=self._head.leaves,
                data=self._buffers.anchor(self.head_round).tobytes() + self._momentum.tobytes(),
            )

    def starting_copy(self, record_id: str) -> StateCopy | None:
        """None: no old state of a gossip run is anybody's beginning."""
        del record_id

    # --- inside -------------------------------------------------------------------------------------------------------

    def _step(self, account: Commit, delta: Buffer, partner: Used | None) -> None:
        plan = account.record.plan
        with self._work:
            settings = self._outer_of(self._book.rules.at(plan.round)).at(plan.round)
            parts = None if partner is None else _parts(partner)
            own = np.frombuffer(delta, np.uint8)
            apply_pair(self._buffers.open_anchor(), self._momentum, own, parts, self._grids, settings)
            self._finish(account)
            self._save(account)

    def _begin_from(self, account: Commit, weights: NDArray[np.float32]) -> None:
        with self._work:
            self._buffers.open_anchor()[:] = weights
            self._momentum[:] = 0
            self._finish(account)
            self._save(account)

    def _finish(self, account: Commit | None) -> None:
        """Hash what is in memory now, make it the head and give it to readers."""
        standing = Standing.of_genesis(self._book.rules.genesis) if account is None else Standing.after(account)
        self._buffers.seal_anchor(standing.round)
        leaves = leaf_digests(self._buffers.anchor(standing.round), self._momentum)
        self._head = _Head(account, standing, tuple(leaves), hash_tree.root(leaves, state_context(standing.round, 0)))

    def _save(self, account: Commit) -> None:
        tensors = {"anchor": self._buffers.anchor(self.head_round), "momentum": self._momentum}
        state = {"round": self.head_round, "state_hash": self.state_hash, "account": account.model_dump(mode="json")}
        saved = self._store.save(tensors, state)
        if not isinstance(saved, SaveFailed):
            self._on_saved(saved, len(self._store.numbers()))

    def _is_usable(self, checkpoint: Checkpoint) -> bool:
        try:
            account = Commit.model_validate(checkpoint.state["account"], strict=False)
            anchor, momentum = checkpoint.tensors["anchor"], checkpoint.tensors["momentum"]
            if not anchor.shape == momentum.shape == (self._grid.num_elements,):
                return False
            context = state_context(account.record.plan.round, 0)
            return hash_tree.root(leaf_digests(anchor, momentum), context) == checkpoint.state["state_hash"]
        except (KeyError, TypeError, ValueError, ValidationError):
            return False


def _parts(partner: Used) -> PairParts:
    delta, weights = (np.frombuffer(each, np.uint8) for each in (partner.delta, partner.weights))
    return PairParts(delta, weights, partner.delta_factor, partner.pull_factor)
