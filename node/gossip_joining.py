"""Begins a gossip run in its midst: the weights of several peers, the middle of which is this node's start.

Files of a download that broke off stay, and what of them is still right is not fetched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..protocol.gossip.account import Company, account
from ..protocol.gossip.fetching import Fetch, Fetched
from ..protocol.gossip.joining import MIN_DONORS, choose, is_finite, round_after
from ..protocol.identity import PeerId
from ..protocol.messages import Commit
from ..protocol.spec import Genesis
from ..protocol.state_sync import StateUnavailable
from ..protocol.transport import PeerUnreachable, RemoteProtocolError, StreamClosed
from .gossip_replica import GossipReplica
from .replica import FloatVector, state_context

_STATE_BYTES = 8
"""Of one element: weights and momentum, float32."""


@dataclass(frozen=True)
class Joined:
    """What a start was made of."""

    round: int
    donors: tuple[PeerId, ...]
    left_out: tuple[PeerId, ...]


@dataclass(frozen=True)
class GossipJoiner:
    """`load` gives the replica a start."""

    me: PeerId
    replica: GossipReplica
    genesis: Callable[[], Genesis]
    fetch: Fetch
    donors: Callable[[], Sequence[PeerId]]
    """Peers that are heard from and near the middle round of all."""
    folder: Path
    num_elements: int
    num_chunks: int
    on_misconduct: Callable[[RemoteProtocolError], None]
    shuffle: Callable[[list[PeerId]], None] = random.SystemRandom().shuffle

    async def load(self) -> Joined:
        """Raises `StateUnavailable` naming what went wrong with each donor, OSError when the disk is full."""
        wanted = self.genesis().gossip.num_donors
        donors, causes = list(self.donors()), dict[PeerId, str]()
        self.shuffle(donors)
        fewest, fetched = min(MIN_DONORS, len(donors)), list[Fetched]()
        while donors and len(fetched) < wanted:
            asked, donors = donors[: wanted - len(fetched)], donors[wanted - len(fetched) :]
            results = await asyncio.gather(*(self._fetch(donor, causes) for donor in asked))
            fetched += [result for result in results if result is not None]
        if not fetched or len(fetched) < fewest:
            raise StateUnavailable(causes)
        return await self._begin(fetched)

    async def _fetch(self, donor: PeerId, causes: dict[PeerId, str]) -> Fetched | None:
        path = self.folder / f"{donor}.partial"
        try:
            fetched = await self.fetch.run(donor, path)
            if not await asyncio.to_thread(is_finite, self._weights(fetched)):
                raise RemoteProtocolError(donor, "weights", "they are not finite")
        except (PeerUnreachable, StreamClosed) as error:
            causes[donor] = error.why
        except RemoteProtocolError as error:
            causes[donor] = f"{error.rule}: {error.detail}"
            self.on_misconduct(error)
        else:
            return fetched
        return None

    def _weights(self, fetched: Fetched) -> FloatVector:
        return np.memmap(fetched.path, np.float32, "r", shape=(self.num_elements,))

    async def _begin(self, fetched: list[Fetched]) -> Joined:
        weights = np.empty(self.num_elements, np.float32)
        start = await asyncio.to_thread(choose, [self._weights(each) for each in fetched], weights)
        left_out = tuple(each.donor for i, each in enumerate(fetched) if i not in start.kept)
        number = max(round_after([each.round for each in fetched]), self.replica.head_round + 1)
        await self.replica.begin_from(self._account(number), weights)
        for each in fetched:
            with contextlib.suppress(OSError):
                each.path.unlink()
        kept = tuple(each.donor for each in fetched if each.donor not in left_out)
        return Joined(number, kept, left_out)

    def _account(self, number: int) -> Commit:
        replica = self.replica
        company = Company((), {})
        return account(
            self.me,
            self.genesis(),
            replica.standing,
            replica.state_hash,
            (),
            company,
            round_number=number,
            num_chunks=self.num_chunks,
        )


def context_of(round_number: int) -> bytes:
    """What a gossip replica's state hash binds beside the vectors."""
    return state_context(round_number, 0)


def state_bytes(num_elements: int) -> int:
    """Of a whole state: weights, then momentum."""
    return _STATE_BYTES * num_elements
