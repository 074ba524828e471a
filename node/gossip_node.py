"""A node of a gossip run: as every node, but its state is its own, and it joins with the middle of others' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..protocol.driver import Driver, DriverSetup
from ..protocol.gossip.driver import GossipDriver
from ..protocol.gossip.fetching import Fetch
from ..protocol.identity import PeerId
from ..protocol.messages import Commit, Heartbeat
from .figures import short_id
from .gossip_joining import GossipJoiner, context_of, state_bytes
from .node import Node
from .state_from_peers import StateFromPeers
from .work import GossipWork, Work


class GossipNode(Node):
    """Built, then `run` once, then `stop`."""

    def _make_driver(self, setup: DriverSetup) -> Driver:
        return GossipDriver(setup, self._local.gossip_replica)

    def _work(self, driver: Driver) -> Work | None:
        local = self._local

        def speeds() -> Mapping[PeerId, float]:
            heard = ((peer, driver.peers[peer].heartbeat) for peer in driver.roster if peer in driver.peers)
            return {peer: heartbeat.tokens_per_s for peer, heartbeat in heard if heartbeat is not None}

        inner = local.spec.training.inner
        return GossipWork(local.gossip_replica, local.me, inner, local.spec.genesis, speeds)

    def _is_admitted(self) -> bool:
        return self._live is not None and self._local.me in self._live.driver.roster

    def _other_members(self) -> list[PeerId]:
        """Whoever is known: who the others are is not decided anywhere."""
        known = self._live.driver.peers if self._live is not None else ()
        return [peer for peer in known if peer != self._local.me]

    def _is_evaluator(self, commit: Commit | None) -> bool:
        """Every node evaluates its own weights: after every second swap, for its partner's are near, and when alone."""
        if commit is None:
            return False
        plan = commit.record.plan
        return len(plan.members) < 2 or plan.round % 2 == 0

    def _is_level(self, driver: Driver, heard: Sequence[Heartbeat]) -> bool:
        del heard
        return not cast("GossipDriver", driver).is_behind

    def _make_from_peers(self) -> StateFromPeers:
        return WeightsFromPeers(self._local, self._reporter, self._driver, self._on_loaded)


class WeightsFromPeers(StateFromPeers):
    """The start of a node that is too far behind: the middle of what several peers give."""

    async def prove(self) -> int:
        """Nobody can prove anything."""
        return self._replica.head_round

    async def _install(self, driver: Driver) -> str:
        driver.set_progress(phase="syncing")
        try:
            joined = await self._joiner(cast("GossipDriver", driver)).load()
        finally:
            driver.set_progress(phase="training")
        text = f"began round {joined.round + 1} with the mean of {len(joined.donors)} peers' weights"
        left_out = ", ".join(f"…{short_id(peer)}" for peer in joined.left_out)
        return f"{text}; left out, for they are far from the others: {left_out}" if left_out else text

    def _joiner(self, driver: GossipDriver) -> GossipJoiner:
        local = self._local
        return GossipJoiner(
            me=local.me,
            replica=local.gossip_replica,
            genesis=lambda: driver.genesis,
            fetch=Fetch(
                transport=driver.transport,
                executor=driver.executor,
                num_bytes=state_bytes(local.grid.num_elements),
                context_of=context_of,
                announced=driver.announced,
            ),
            donors=lambda: driver.donors,
            folder=local.settings.folder / "joining",
            num_elements=local.grid.num_elements,
            num_chunks=local.grid.num_chunks,
            on_misconduct=self._note_bad_donor,
        )
