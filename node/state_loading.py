"""Loads the swarm's state when results alone do not lead to it any more: a verified snapshot, then commits on top."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..kernels.chunk_grid import ChunkGrid
from ..protocol.identity import PeerId
from ..protocol.messages import Commit
from ..protocol.offload import off_loop
from ..protocol.quorum import quorum_of
from ..protocol.result_transfer import ResultFetcher, ResultsUnavailable
from ..protocol.results import ResultStore
from ..protocol.round_machine import Rules, check_commit
from ..protocol.rule_book import RuleBook
from ..protocol.standing import Standing
from ..protocol.state_sync import (
    Certifier,
    Chain,
    InvalidChain,
    StateMismatch,
    StateSync,
    SyncedState,
    SyncProgress,
    catch_up,
)
from ..protocol.transport import Transport
from .replica import Replica

_STATE_BYTES = 8
"""Of one element: anchor and momentum, float32."""


class StateLoader:
    """`load` brings the replica to the newest certified state that other peers can give."""

    def __init__(
        self,
        *,
        book: RuleBook,
        me: PeerId,
        transport: Transport,
        replica: Replica,
        results: Callable[[], ResultStore],
        donors: Callable[[], Collection[PeerId]],
        folder: Path,
        grid: ChunkGrid,
        lease_samples: int,
        on_progress: Callable[[SyncProgress], None],
        on_misconduct: Callable[[Exception], None],
    ) -> None:
        self._book, self._me, self._transport, self._replica = book, me, transport, replica
        self._results, self._donors, self._folder = results, donors, folder
        self._grid, self._lease_samples = grid, lease_samples
        self._on_progress, self._on_misconduct = on_progress, on_misconduct

    async def load(self) -> None:
        """Raises `protocol.state_sync.StateUnavailable` naming every donor's failure, OSError when the disk is full."""
        with ThreadPoolExecutor(2, "state-sync") as executor:
            synced = await (await self._state_sync(executor)).load()
            if synced.manifest.round > self._replica.head_round or self._disagrees(synced):
                await self._install(synced)
            await self._follow(synced, executor)

    async def prove(self) -> int:
        """The newest round whose commit some donor can prove; nothing of this node changes."""
        with ThreadPoolExecutor(1, "state-proof") as executor:
            return (await (await self._state_sync(executor)).update_chain()).head.round

    def _own_chain(self) -> Chain:
        """From the genesis, so that a state which has gone astray is replaced by what the whole chain proves.

        Our own commits need no download. They are verified like those of others: what a disk returns may be damaged.
        """
        chain = Chain(self._book.rules.standing(None), standing_after=self._book.rules.standing)
        try:
            return chain.extended(self._replica.commits(1, self._replica.head_round), self._verify_commit)
        except InvalidChain:
            return chain

    async def _state_sync(self, executor: ThreadPoolExecutor) -> StateSync:
        return StateSync(
            transport=self._transport,
            chain=await off_loop(executor, self._own_chain),
            verify_commit=self._verify_commit,
            certifier=self._certifier(),
            partial_path=self._folder / "snapshot.partial",
            executor=executor,
            donors=self._donors,
            on_progress=self._on_progress,
            on_misconduct=self._on_misconduct,
        )

    def _certifier(self) -> Certifier:
        rules = self._book.rules
        signed = None if rules.fork is None else (rules.fork.round, rules.fork.record, rules.fork.state_hash)
        return Certifier(rules.genesis.run_id, _STATE_BYTES * self._grid.num_elements, self._is_quorum, signed)

    def _disagrees(self, synced: SyncedState) -> bool:
        same_round = synced.manifest.round == self._replica.head_round
        return same_round and synced.manifest.state_hash != self._replica.state_hash

    async def _install(self, synced: SyncedState) -> None:
        """Replace anchor and outer state, after hashing the downloaded bytes once more."""
        manifest, chain = synced.manifest, synced.chain
        commits = [commit for commit in chain.commits if commit.record.plan.round <= manifest.round]
        with synced.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            await self._replica.install(commits, bytes(data), manifest.state_hash)
        synced.path.unlink()

    async def _follow(self, synced: SyncedState, executor: ThreadPoolExecutor) -> None:
        """Apply newer commits; those whose results nobody keeps any more need another snapshot, later."""
        fetcher = ResultFetcher(self._transport, self._results(), executor, self._on_misconduct)
        newer = [c for c in synced.chain.commits if c.record.plan.round > self._replica.head_round]
        try:
            await catch_up(newer, fetcher, self._donors, self._replica.apply, self._replica.state_hash)
        except (ResultsUnavailable, StateMismatch) as error:
            self._on_misconduct(error)

    def _is_quorum(self, round_number: int, roster: tuple[PeerId, ...], peers: Collection[PeerId]) -> bool:
        return quorum_of(self._book.rules.at(round_number), roster, round_number).reached(peers)

    def _verify_commit(self, commit: Commit, standing: Standing) -> None:
        plan = commit.record.plan
        rules = Rules(
            genesis=self._book.rules.of_plan(plan),
            me=self._me,
            standing=standing,
            parent_state=plan.parent_state,
            lease_samples=self._lease_samples,
            num_chunks=self._grid.num_chunks,
        )
        check_commit(rules, commit, plan.leader)
