"""One swap between two peers over a stream: greeting, commitments, vectors in both directions, verdicts.

Nothing of a partner's is used before all of it is here, checked and admitted, and the partner has said the same of
ours. A swap that breaks off before has no effect on either side; if only the last verdict is lost, one side has taken
the swap and the other goes on alone, which costs the pair's symmetry in that round and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...kernels.chunk_grid import ChunkGrid
from ..admission import Refusal
from ..commitments import ENTRY_BYTES, Leaf, Tree
from ..identity import PeerId
from ..offload import off_loop
from ..parsing import Unreadable
from ..payload import read_payload, write_payload
from ..transport import Buffer, ByteStream, RemoteProtocolError
from . import wire
from .search import Why
from .vectors import Grids, Inbox, Vectors, check_chunk, squared_distance
from .wire import Answer, Commitment, Confirm, Offer, Terms

T = TypeVar("T")


class Declined(Exception):
    """The other side is not to be had now. Nobody's misconduct."""

    def __init__(self, peer: PeerId, why: Why) -> None:
        super().__init__(f"…{peer[-5:]} declines: {why}")
        self.peer, self.why = peer, why


class Abandoned(Exception):
    """The partner has given up the swap, and says why."""

    def __init__(self, peer: PeerId, why: str) -> None:
        super().__init__(f"…{peer[-5:]} gave up the swap: {why}")
        self.peer, self.why = peer, why


class NotAdmitted(RemoteProtocolError):
    """What the partner has sent is refused by a rule of admission."""

    def __init__(self, peer: PeerId, refusal: Refusal) -> None:
        super().__init__(peer, refusal.rule, str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Taken:
    """A partner's vectors, verified and admitted; they stay in the inbox until it is used again."""

    peer: PeerId
    terms: Terms
    inbox: Inbox
    distance: float
    """Between its weights and ours."""


# --- greeting ---------------------------------------------------------------------------------------------------------


async def offer(stream: ByteStream, own: Terms) -> Terms:
    """The dialler's greeting; returns the partner's terms. Raises `Declined`, `RemoteProtocolError`, `StreamClosed`."""
    nonce = _nonce()
    await stream.write(Offer(nonce=nonce, terms=own).canonical())
    answer = await _read(stream, wire.read_answer)
    if answer.echo != nonce:
        raise RemoteProtocolError(stream.remote, "nonce", "an answer to another offer")
    if answer.terms is None:
        assert answer.why is not None
        raise Declined(stream.remote, answer.why)
    _require_lineage(stream.remote, own, answer.terms)
    await stream.write(Confirm(echo=answer.nonce).canonical())
    return answer.terms


async def read_offer(stream: ByteStream) -> Offer:
    """The first frame of a stream that somebody has opened to us."""
    return await _read(stream, wire.read_offer)


async def decline(stream: ByteStream, offered: Offer, why: Why) -> None:
    """Answer an offer with no."""
    await stream.write(Answer(echo=offered.nonce, nonce=_nonce(), why=why).canonical())


async def accept(stream: ByteStream, offered: Offer, own: Terms) -> None:
    """Answer an offer with yes, and wait for the confirmation: the dialler may have found another meanwhile."""
    nonce = _nonce()
    await stream.write(Answer(echo=offered.nonce, nonce=nonce, terms=own).canonical())
    if (await _read(stream, wire.read_confirm)).echo != nonce:
        raise RemoteProtocolError(stream.remote, "nonce", "a confirmation of another answer")


def _nonce() -> str:
    return secrets.token_hex(16)


def _require_lineage(peer: PeerId, own: Terms, theirs: Terms) -> None:
    if own.lineage != theirs.lineage:
        raise RemoteProtocolError(peer, "lineage", f"it accepts for lineage {theirs.lineage}, this is {own.lineage}")


async def _read(stream: ByteStream, parse: Callable[[bytes], T], max_bytes: int = wire.MAX_GREETING_BYTES) -> T:
    try:
        return parse(await stream.read(max_bytes))
    except Unreadable as error:
        raise RemoteProtocolError(stream.remote, "malformed swap", str(error)) from None


# --- vectors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swap:
    """Both directions of one swap."""

    stream: ByteStream
    own: Vectors
    theirs: Terms
    grids: Grids
    inbox: Inbox
    executor: Executor
    judge: Callable[[float], Refusal | None]
    """Of the distance between the partner's weights and ours."""

    async def run(self) -> Taken:
        """Raises `Abandoned`, `NotAdmitted`, `RemoteProtocolError` or `StreamClosed`: nothing is to be used then."""
        sending = asyncio.create_task(self._send_vectors())
        try:
            distance = await self._receive_vectors()
            refusal = self.judge(distance)
            await sending
            await self.stream.write(wire.verdict(None if refusal is None else f"{refusal.rule}: {refusal}"))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if refusal is not None:
            raise NotAdmitted(self.stream.remote, refusal)
        why = await _read(self.stream, wire.read_verdict, wire.MAX_VERDICT_BYTES)
        if why is not None:
            raise Abandoned(self.stream.remote, why)
        return Taken(self.stream.remote, self.theirs, self.inbox, distance)

    async def _send_vectors(self) -> None:
        own = self.own
        for grid, tree, data in zip(
            self.grids, (own.delta_tree, own.weights_tree), (own.delta, own.weights), strict=True
        ):
            await write_payload(self.stream, b"".join(leaf.encode() for leaf in tree.leaves))
            for chunk in range(grid.num_chunks):
                await write_payload(self.stream, data[grid.encoded_range(chunk)])

    async def _receive_vectors(self) -> float:
        """Distance between the weights."""
        leaves = await self._receive_leaves(self.theirs.delta)
        for chunk, leaf in enumerate(leaves):
            await self._receive_chunk(self.grids.delta, chunk, leaf, self.inbox.delta)
        leaves = await self._receive_leaves(self.theirs.weights)
        squared = 0.0
        for chunk, leaf in enumerate(leaves):
            data = await self._receive_chunk(self.grids.weights, chunk, leaf, self.inbox.weights)
            own = self.own.weights[self.grids.weights.encoded_range(chunk)]
            squared += await off_loop(self.executor, squared_distance, own, data)
        return float(np.sqrt(squared))

    async def _receive_leaves(self, commitment: Commitment) -> tuple[Leaf, ...]:
        data = await read_payload(self.stream, ENTRY_BYTES * self.grids.delta.num_chunks)
        return await off_loop(self.executor, self._checked_leaves, data, commitment)

    def _checked_leaves(self, data: Buffer, commitment: Commitment) -> tuple[Leaf, ...]:
        try:
            leaves = Leaf.decode_all(bytes(data))
            is_committed = Tree(leaves).root == commitment.root
        except ValueError as error:
            raise RemoteProtocolError(self.stream.remote, "leaves", str(error)) from None
        if not is_committed:
            raise RemoteProtocolError(self.stream.remote, "commitment", "the leaves are not those committed to")
        return leaves

    async def _receive_chunk(self, grid: ChunkGrid, chunk: int, leaf: Leaf, out: NDArray[np.uint8]) -> Buffer:
        where = grid.encoded_range(chunk)
        data = await read_payload(self.stream, where.stop - where.start)
        try:
            await off_loop(self.executor, check_chunk, grid, chunk, data, leaf)
        except ValueError as error:
            raise RemoteProtocolError(self.stream.remote, "chunk", str(error)) from None
        out[where] = np.frombuffer(data, np.uint8)
        return data
