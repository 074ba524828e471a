"""One contribution's way through a gossip round: what is sent, how far a partner is believed, and the account."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import sqrt

from ..chunks import Contribution
from ..identity import PeerId
from ..messages import Commit
from ..spec import Genesis
from ..tickets import Ticket
from .account import Company, Part, Swapped, account
from .admission import NUM_NORMS, Bounds, factors
from .partnering import Limits, Partnering
from .probation import Probation
from .replica import GossipReplica, Used
from .swap import Taken
from .vectors import Grids, Vectors
from .views import next_round


@dataclass(frozen=True)
class Surroundings:
    """What a round's end depends on beside the swap."""

    genesis: Genesis
    present: Collection[PeerId]
    """Other peers that are heard from."""
    heads: Collection[int]
    """Rounds that they say they have ended."""
    tickets: Mapping[PeerId, Ticket]


class Rounds:
    """Holds a node's rounds, one at a time."""

    def __init__(
        self,
        me: PeerId,
        replica: GossipReplica,
        grids: Grids,
        partnering: Partnering,
        probation: Probation,
        around: Callable[[], Surroundings],
    ) -> None:
        self._me, self._replica, self._grids = me, replica, grids
        self._partnering, self._probation, self._around = partnering, probation, around
        self._norms: deque[float] = deque(maxlen=NUM_NORMS)
        """Of our own last pseudo-gradients: the measure for those of others."""
        self.is_stepping = False
        """Whether the outer step is being taken."""

    async def hold(self, contribution: Contribution) -> Swapped:
        """Find a partner, swap, step. Cancelling it before the step leaves everything as it was. Raises OSError."""
        genesis = self._around().genesis
        self._norms.append(sqrt(contribution.squared_norm))
        bounds = Bounds.of(self._norms, genesis.trust.clip_factor, genesis.gossip.max_distance)
        weights, lineage = self._replica.weights(), genesis.lineage
        vectors = await asyncio.to_thread(Vectors.of, contribution, weights, self._grids, lineage)
        found = await self._find(vectors, bounds, genesis)
        self.is_stepping = True
        try:
            return await self._step(vectors, found, bounds)
        finally:
            self.is_stepping = False

    async def _find(self, vectors: Vectors, bounds: Bounds, genesis: Genesis) -> Taken | str:
        limits = Limits(genesis.timing.progress_timeout_s, genesis.timing.attempt_timeout_s)
        try:
            return await self._partnering.find(vectors, bounds, limits)
        except OSError as error:
            return f"there is no room for a partner's vectors: {error.strerror or error}"

    async def _step(self, vectors: Vectors, found: Taken | str, bounds: Bounds) -> Swapped:
        own = Part(self._me, vectors.terms)
        if isinstance(found, str):
            commit = self._account((own,))
            state_hash = await self._replica.step(commit, vectors.delta, None)
            return Swapped(commit, state_hash, (True,), why_alone=found)
        counts = self._probation.counts_from(found.peer) <= self._replica.head_round + 1
        commit = self._account((own, Part(found.peer, found.terms, counts)))
        used = _used(found, bounds) if counts else None
        state_hash = await self._replica.step(commit, vectors.delta, used)
        return _measured(Swapped(commit, state_hash, (True,)), found, vectors, bounds)

    def _account(self, parts: tuple[Part, ...]) -> Commit:
        around, number = self._around(), self._replica.head_round + 1
        if len(parts) > 1:
            number = next_round(number, parts[1].terms.round, around.heads, around.genesis.stop.num_rounds)
        self._probation.meet(around.present, number)
        newcomers = self._probation.newcomers(around.present, number + 1)
        return account(
            self._me,
            around.genesis,
            self._replica.standing,
            self._replica.state_hash,
            parts,
            Company(around.present, around.tickets, newcomers),
            round_number=number,
            num_chunks=self._grids.delta.num_chunks,
        )


def _used(taken: Taken, bounds: Bounds) -> Used:
    cut = factors(bounds, sqrt(taken.terms.delta.squared_norm), taken.distance)
    return Used(taken.inbox.delta.data, taken.inbox.weights.data, cut.delta, cut.pull)


def _measured(outcome: Swapped, taken: Taken, vectors: Vectors, bounds: Bounds) -> Swapped:
    norm = sqrt(vectors.terms.weights.squared_norm)
    return replace(
        outcome,
        partner=taken.peer,
        distance=taken.distance,
        spread=taken.distance / norm if norm > 0 else None,
        distance_in_rounds=taken.distance / bounds.measure if bounds.measure > 0 else None,
    )
