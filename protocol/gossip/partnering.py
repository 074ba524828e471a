"""One node's search for partners, performed: dials, answers, swaps. `search` decides, `swap` moves the bytes.

There is one search at a time, of one contribution. Streams that others open are answered at any time, and accepted only
while a search goes on that wants them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from ..admission import Refusal
from ..identity import PeerId
from ..outcomes import Observe
from ..quotas import SWAP_STREAMS_PER_PEER
from ..stream_limit import StreamLimit
from ..transport import ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport
from ..wakeup import Signal
from . import search, swap, wire
from .admission import Bounds, refusal_of_distance, refusal_of_norms
from .search import Alone, Dial, Rules, Search, Sight, Wait
from .swap import Abandoned, Declined, NotAdmitted, Swap, Taken
from .vectors import Grids, Inbox, Vectors
from .wire import Terms


@dataclass(frozen=True)
class PairHost:
    """What one node brings to all its searches."""

    me: PeerId
    transport: Transport
    executor: Executor
    grids: Grids
    folder: Path
    sights: Callable[[], Mapping[PeerId, Sight]]
    """Peers that may be partners now."""
    rules: Callable[[], Rules]
    is_reachable: Callable[[], bool]
    clock: Callable[[], float]
    observe: Observe
    on_phase: Callable[[], None]
    """A search begins, is engaged, or is free again: others should know at once."""
    distrust: Callable[[PeerId], None]
    """A peer has broken a rule."""


@dataclass(frozen=True)
class Limits:
    """Times of one round."""

    greeting_s: float
    """From a dial to a partner's terms."""
    swap_s: float
    """A whole swap."""


@dataclass
class _Round:
    """A search and what belongs to it."""

    search: Search
    vectors: Vectors
    bounds: Bounds
    inbox: Inbox
    limits: Limits
    taken: Taken | None = None
    served: ByteStream | None = None
    """The stream by which a partner has come to us."""


class Partnering:
    """`find` a partner, for as long as the node lives; `look` when something has changed."""

    def __init__(self, host: PairHost) -> None:
        self._host = host
        self._round: _Round | None = None
        self._changed = Signal()
        self._limit = StreamLimit(SWAP_STREAMS_PER_PEER)
        host.transport.serve(wire.PROTOCOL, self._serve)

    @property
    def is_searching(self) -> bool:
        """Whether a contribution waits for its partner, or is being swapped."""
        return self._round is not None

    @property
    def partner(self) -> PeerId | None:
        """With whom a swap goes on."""
        return None if self._round is None else self._round.search.partner

    def look(self) -> None:
        """Something has changed: a heartbeat, the rules."""
        self._changed.fire()

    async def find(self, vectors: Vectors, bounds: Bounds, limits: Limits) -> Taken | str:
        """The partner's vectors, or why there is none: within the grace, and the time that greetings and swaps take.

        Cancelling it leaves nothing behind. Raises OSError if the disk has no room for what a partner sends.
        """
        host = self._host
        begun = Search(host.me, vectors.terms.round, host.clock(), host.is_reachable())
        inbox = await asyncio.to_thread(Inbox, host.grids, host.folder)
        here = self._round = _Round(begun, vectors, bounds, inbox, limits)
        host.on_phase()
        try:
            return await self._search(here)
        finally:
            self._round = None
            if here.served is not None and here.taken is None:
                await here.served.close()

    async def _search(self, here: _Round) -> Taken | str:
        host = self._host
        while here.taken is None:
            if here.search.partner is not None:  # by a stream that the partner has opened
                await self._changed.wait()
                continue
            move = search.next_move(here.search, host.sights(), host.rules(), host.clock())
            match move:
                case Dial(peer):
                    await self._dial(here, peer)
                case Wait(_, until_s):
                    await self._changed.wait_for(max(0.01, until_s - host.clock()))
                case Alone(why):
                    return why
        return here.taken

    # --- our offers ---------------------------------------------------------------------------------------------------

    async def _dial(self, here: _Round, peer: PeerId) -> None:
        host = self._host
        here.search = search.dialled(here.search, peer)
        try:
            with self._attempt(here, peer):
                await self._offer(here, peer)
        except Declined as error:
            if error.why == "crossed":
                await self._await_crossing(here, peer)
        if here.search.dialled == peer:
            here.search = search.declined(here.search, peer, host.rules(), host.clock())

    async def _offer(self, here: _Round, peer: PeerId) -> None:
        async with asyncio.timeout(here.limits.greeting_s):
            stream = await self._host.transport.open(peer, wire.PROTOCOL)
        try:
            async with asyncio.timeout(here.limits.greeting_s):
                theirs = await swap.offer(stream, here.vectors.terms)
            if here.search.dialled == peer:  # and no offer of its own was accepted meanwhile
                here.search = search.engaged(here.search, peer)
                self._host.on_phase()
                await self._swap(here, stream, theirs)
        finally:
            await stream.close()

    async def _await_crossing(self, here: _Round, peer: PeerId) -> None:
        """Its own offer stands, and is on its way."""
        until_s = self._host.clock() + here.limits.greeting_s
        while here.search.dialled == peer and (left_s := until_s - self._host.clock()) > 0:
            await self._changed.wait_for(left_s)

    # --- offers of others ---------------------------------------------------------------------------------------------

    async def _serve(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            offered = await swap.read_offer(stream)
            here, peer = self._round, stream.remote
            why = "training" if here is None else self._refusal(here, peer, offered.terms)
            if here is None or why is not None:
                await swap.decline(stream, offered, why or "training")
                return
            here.search, here.served = search.engaged(here.search, peer), stream
            self._changed.fire()
            self._host.on_phase()
            with self._attempt(here, peer, stream):
                self._require_norms(here, peer, offered.terms)
                async with asyncio.timeout(here.limits.greeting_s):
                    await swap.accept(stream, offered, here.vectors.terms)
                await self._swap(here, stream, offered.terms)

    def _refusal(self, here: _Round, peer: PeerId, terms: Terms) -> search.Why | None:
        host, sights = self._host, self._host.sights()
        if terms.lineage != here.vectors.terms.lineage:
            return "another lineage"
        if peer not in sights:  # shunned, or not heard of yet
            return "expects another"
        return search.refusal(here.search, peer, terms.round, sights, host.rules(), host.clock())

    # --- the swap -----------------------------------------------------------------------------------------------------

    async def _swap(self, here: _Round, stream: ByteStream, theirs: Terms) -> None:
        host, peer = self._host, stream.remote
        self._require_norms(here, peer, theirs)
        host.observe("swap.begun", {"peer": peer, "their_round": theirs.round})

        def judge(distance: float) -> Refusal | None:
            return refusal_of_distance(here.bounds, distance)

        work = Swap(stream, here.vectors, theirs, host.grids, here.inbox, host.executor, judge)
        async with asyncio.timeout(here.limits.swap_s):
            here.taken = await work.run()
        self._changed.fire()

    def _require_norms(self, here: _Round, peer: PeerId, theirs: Terms) -> None:
        own_norm = sqrt(here.vectors.terms.weights.squared_norm)
        norms = (sqrt(theirs.delta.squared_norm), own_norm, sqrt(theirs.weights.squared_norm))
        if (refusal := refusal_of_norms(here.bounds, *norms)) is not None:
            raise NotAdmitted(peer, refusal)

    @contextmanager
    def _attempt(self, here: _Round, peer: PeerId, served: ByteStream | None = None) -> Generator[None]:
        """What ends an attempt without effect becomes a point of the journal; the search goes on without the peer."""
        try:
            yield
        except Declined:
            raise
        except RemoteProtocolError as error:
            self._give_up(here, peer, served, "swap.refused", _fields(error))
            self._host.distrust(peer)
        except (PeerUnreachable, StreamClosed, Abandoned) as error:
            self._give_up(here, peer, served, "swap.lost", {"peer": peer, "why": error.why})
        except TimeoutError:
            self._give_up(here, peer, served, "swap.lost", {"peer": peer, "why": "it took too long"})

    def _give_up(
        self, here: _Round, peer: PeerId, served: ByteStream | None, point: str, fields: dict[str, object]
    ) -> None:
        """Of two attempts with one peer that cross each other, only the one that counts frees the search."""
        is_current = here.search.partner == peer and here.served is served
        if here.taken is None and (is_current or (served is None and here.search.dialled == peer)):
            here.search, here.served = search.failed(here.search, peer), None
            self._host.on_phase()
        self._host.observe(point, fields)
        self._changed.fire()


def _fields(error: RemoteProtocolError) -> dict[str, object]:
    fields: dict[str, object] = {"peer": error.peer, "rule": error.rule, "why": error.detail or error.rule}
    if isinstance(error, NotAdmitted):
        fields |= {"value": error.refusal.value, "limit": error.refusal.limit}
    return fields
