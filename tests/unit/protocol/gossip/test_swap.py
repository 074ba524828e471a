"""One swap over a stream in memory: what is checked before anything is used, and what a broken-off one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoll.protocol.admission import Refusal
from atoll.protocol.chunks import Contribution
from atoll.protocol.commitments import Leaf, Tree
from atoll.protocol.gossip import swap, wire
from atoll.protocol.gossip.swap import Abandoned, Declined, NotAdmitted, Swap, Taken
from atoll.protocol.gossip.vectors import Inbox, Vectors, check_chunk
from atoll.protocol.memory import CorruptStream, CutStream, MemoryNetwork, StallStream
from atoll.protocol.transport import ByteStream, RemoteProtocolError, StreamClosed

from .gossip_lab import GRID, GRIDS, NUM_ELEMENTS, PEOPLE

A, B = PEOPLE[0].peer_id, PEOPLE[1].peer_id
Vary = Callable[[Vectors], Vectors]


def vectors(seed: int) -> tuple[Vectors, np.ndarray]:
    generator = np.random.default_rng(seed)
    delta, weights = generator.normal(size=(2, NUM_ELEMENTS)).astype(np.float32)
    encoded = np.empty(GRID.total_encoded, np.uint8)
    GRID.encode(delta, encoded)
    contribution = Contribution.of(GRID, encoded.data, round_number=3, tokens=10)
    return Vectors.of(contribution, weights.data, GRIDS, lineage=0), weights


class Pair:
    """A dials, B listens; `run` returns what each side got, exceptions as values."""

    def __init__(self, folder: Path) -> None:
        self.network = MemoryNetwork(progress_timeout_s=0.3)
        self.folder, self.executor = folder, ThreadPoolExecutor(2)
        self.why: wire.Why | None = None
        self.judge: dict[str, Refusal] = {}

    async def run(self, vary_a: Vary = lambda v: v, vary_b: Vary = lambda v: v) -> tuple[object, object]:
        (mine, _), (theirs, _) = vectors(1), vectors(2)
        listened: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        receiver = self.network.transport(B)

        async def serve(stream: ByteStream) -> None:
            try:
                offered = await swap.read_offer(stream)
                if self.why is not None:
                    await swap.decline(stream, offered, self.why)
                    listened.set_result(None)
                    return
                own = vary_b(theirs)
                await swap.accept(stream, offered, own.terms)
                listened.set_result(await self._swap(stream, own, offered.terms, "b").run())
            except Exception as error:
                listened.set_result(error)

        receiver.serve(wire.PROTOCOL, serve)
        stream = await self.network.transport(A).open(B, wire.PROTOCOL)
        try:
            own = vary_a(mine)
            dialled: object = await self._swap(stream, own, await swap.offer(stream, own.terms), "a").run()
        except Exception as error:
            dialled = error
        finally:
            await stream.close()
        return dialled, await listened

    def _swap(self, stream: ByteStream, own: Vectors, theirs: wire.Terms, side: str) -> Swap:
        inbox = Inbox(GRIDS, self.folder)
        return Swap(stream, own, theirs, GRIDS, inbox, self.executor, lambda _: self.judge.get(side))


@pytest.fixture
async def pair(tmp_path: Path):
    made = Pair(tmp_path)
    yield made
    await made.network.close()
    made.executor.shutdown()


async def test_both_sides_end_with_the_others_bytes_and_the_same_distance(pair: Pair):
    dialled, listened = await pair.run()
    (mine, near), (theirs, far) = vectors(1), vectors(2)
    assert isinstance(dialled, Taken)
    assert isinstance(listened, Taken)
    assert bytes(dialled.inbox.delta) == bytes(theirs.delta)
    assert bytes(dialled.inbox.weights) == bytes(theirs.weights)
    assert bytes(listened.inbox.delta) == bytes(mine.delta)
    assert bytes(listened.inbox.weights) == bytes(mine.weights)
    distance = float(np.linalg.norm(near.astype(np.float64) - far))
    assert dialled.distance == pytest.approx(distance)
    assert listened.distance == pytest.approx(distance)


async def test_a_peer_that_declines_is_nobodys_misconduct(pair: Pair):
    pair.why = "taken"
    dialled, _ = await pair.run()
    assert isinstance(dialled, Declined)
    assert dialled.why == "taken"


@pytest.mark.parametrize("after_bytes", [0, 300, 5_000, 40_000, 60_000])
@pytest.mark.parametrize("kind", [CutStream, StallStream])
async def test_a_stream_that_ends_or_stands_still_leaves_both_sides_with_nothing(pair: Pair, kind, after_bytes: int):
    pair.network.inject(kind(sender=B, receiver=A, after_bytes=after_bytes, protocol=wire.PROTOCOL))
    dialled, listened = await pair.run()
    assert isinstance(dialled, StreamClosed | RemoteProtocolError)
    assert isinstance(listened, Exception)


@pytest.mark.parametrize("offset", [2_000, 20_000, 50_000])
async def test_a_byte_that_changes_on_its_way_ends_the_swap_without_effect(pair: Pair, offset: int):
    pair.network.inject(CorruptStream(sender=B, receiver=A, offset=offset, protocol=wire.PROTOCOL))
    dialled, listened = await pair.run()
    assert isinstance(dialled, RemoteProtocolError)
    assert dialled.rule in ("chunk", "commitment", "leaves")
    assert not isinstance(listened, Taken)


async def test_a_chunk_that_was_not_committed_to_is_refused_by_its_receiver(pair: Pair):
    def another_chunk(own: Vectors) -> Vectors:
        changed = bytearray(own.delta)
        changed[40] ^= 1
        return replace(own, delta=memoryview(changed))

    dialled, listened = await pair.run(vary_b=another_chunk)
    assert isinstance(dialled, RemoteProtocolError)
    assert dialled.rule == "chunk"
    assert dialled.peer == B
    assert not isinstance(listened, Taken)


async def test_leaves_that_do_not_make_the_committed_root_are_refused_before_any_chunk(pair: Pair):
    def smaller_norm(own: Vectors) -> Vectors:
        stated = own.terms.delta.model_copy(update={"squared_norm": own.terms.delta.squared_norm / 4})
        return replace(own, terms=own.terms.model_copy(update={"delta": stated}))

    dialled, _ = await pair.run(vary_b=smaller_norm)
    assert isinstance(dialled, RemoteProtocolError)
    assert dialled.rule == "commitment"


async def test_weights_with_a_nan_are_refused_although_they_were_committed_to(pair: Pair):
    def with_nan(own: Vectors) -> Vectors:
        values = np.frombuffer(bytes(own.weights), np.float32).copy()
        values[7] = np.nan
        from blake3 import blake3

        data = memoryview(values.tobytes())
        leaves = [
            Leaf(blake3(data[GRIDS.weights.encoded_range(c)]).digest(), 1.0) for c in range(GRIDS.weights.num_chunks)
        ]
        tree = Tree(leaves)
        terms = own.terms.model_copy(update={"weights": wire.Commitment.of(tree.root)})
        return replace(own, terms=terms, weights=data, weights_tree=tree)

    dialled, listened = await pair.run(vary_b=with_nan)
    assert isinstance(dialled, RemoteProtocolError)
    assert dialled.rule == "chunk"
    assert "not finite" in dialled.detail
    assert not isinstance(listened, Taken)


async def test_who_refuses_says_why_and_the_other_side_abandons_too(pair: Pair):
    pair.judge["a"] = Refusal("absurd distance", 9.0, 1.0)
    dialled, listened = await pair.run()
    assert isinstance(dialled, NotAdmitted)
    assert (dialled.rule, dialled.refusal.value, dialled.refusal.limit) == ("absurd distance", 9.0, 1.0)
    assert isinstance(listened, Abandoned)
    assert "absurd distance" in listened.why


async def test_an_answer_to_another_offer_is_no_answer(pair: Pair):
    async def replayed(stream: ByteStream) -> None:
        await swap.read_offer(stream)
        answer = wire.Answer(echo="0" * 32, nonce="1" * 32, terms=vectors(2)[0].terms)
        await stream.write(answer.canonical())

    pair.network.transport(B).serve(wire.PROTOCOL, replayed)
    stream = await pair.network.transport(A).open(B, wire.PROTOCOL)
    with pytest.raises(RemoteProtocolError, match="nonce"):
        await swap.offer(stream, vectors(1)[0].terms)
    await stream.close()


def test_a_chunk_is_what_its_leaf_says_or_nothing():
    own, _ = vectors(1)
    leaf = own.delta_tree.leaves[0]
    check_chunk(GRID, 0, own.delta[GRID.encoded_range(0)], leaf)
    with pytest.raises(ValueError, match="not the one"):
        check_chunk(GRID, 1, own.delta[GRID.encoded_range(1)], leaf)
    with pytest.raises(ValueError, match="long"):
        check_chunk(GRID, 0, own.delta[:10], leaf)


def test_a_disk_without_room_is_said_before_anything_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Inbox(GRIDS, tmp_path)
