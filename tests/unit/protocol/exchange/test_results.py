"""Encoded means survive a crash once they count as held, and reach those who missed them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.kernels.codec import codec
from atoll.protocol.chunks import ChunkGrid, span_chunks, span_digest, span_range
from atoll.protocol.identity import Identity
from atoll.protocol.memory import CorruptStream, CutStream
from atoll.protocol.record import Span
from atoll.protocol.result_transfer import ResultFetcher, ResultServer, ResultsUnavailable
from atoll.protocol.results import ResultBuffer, ResultStore
from atoll.protocol.transport import StreamClosed

LATE = Identity.from_seed(bytes([99]) * 32).peer_id


async def finished(lab, tmp_path, **changes):
    """A swarm after its exchange, the record it may decide, and a latecomer's fetcher."""
    swarm = lab(progress_timeout_s=2.0, **changes)
    record = swarm.record((await swarm.run())[0])
    for peer in swarm.peers:
        ResultServer(swarm.transports[peer], swarm.stores[peer])
    store = ResultStore(tmp_path / "late", swarm.grid)
    misconduct = []
    fetcher = ResultFetcher(swarm.network.transport(LATE), store, swarm.executor, misconduct.append)
    fetcher.seen = misconduct
    return swarm, record, fetcher


def whole(swarm):
    return b"".join(swarm.mean(0, span) for span in range(len(swarm.plan.spans)))


async def test_a_latecomer_fetches_a_record_by_its_digests(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    assert fetcher.store.missing(record) == [0, 1, 2]
    buffer = await fetcher.fetch(record, swarm.peers)
    assert bytes(buffer.encoded) == whole(swarm) == bytes(fetcher.store.mean(record))
    assert fetcher.store.missing(record) == []


async def test_what_is_held_is_not_asked_for_again(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    await fetcher.fetch(record, swarm.peers)
    for peer in swarm.peers:
        swarm.network.kill(peer)
    await fetcher.fetch(record, swarm.peers)


async def test_peers_that_are_dead_lie_or_lack_a_span_are_passed_over(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    dead, liar, honest = swarm.peers
    swarm.network.kill(dead)
    swarm.network.inject(CorruptStream(sender=liar, receiver=LATE, offset=50, protocol="result"))
    buffer = await fetcher.fetch(record, [dead, liar, honest])
    assert bytes(buffer.encoded) == whole(swarm)
    assert {error.peer for error in fetcher.seen} == {liar}


async def test_a_transfer_that_is_cut_is_taken_over_by_another_peer(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    for peer in swarm.peers[:2]:
        swarm.network.inject(CutStream(sender=peer, receiver=LATE, after_bytes=300))
    buffer = await fetcher.fetch(record, swarm.peers)
    assert bytes(buffer.encoded) == whole(swarm)


async def test_when_nobody_can_give_a_span_the_error_names_everyone_and_why(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    swarm.network.kill(swarm.peers[0])
    ResultServer(swarm.transports[swarm.peers[1]], ResultStore(tmp_path / "empty", swarm.grid))
    with pytest.raises(ResultsUnavailable, match=r"round 1.*does not have it") as unavailable:
        await fetcher.fetch(record, swarm.peers[:2])
    assert set(unavailable.value.causes[2]) == set(swarm.peers[:2])
    with pytest.raises(ResultsUnavailable, match="no peer to ask"):
        await fetcher.fetch(record, [])


async def test_a_malformed_request_ends_the_stream(lab, tmp_path):
    swarm, _, fetcher = await finished(lab, tmp_path)
    stream = await fetcher.transport.open(swarm.peers[0], "result")
    await stream.write(b"\x80\x04pickle")
    with pytest.raises(StreamClosed):
        await stream.read(10)


async def test_held_spans_survive_a_restart_and_torn_index_lines_do_not_matter(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    await fetcher.fetch(record, swarm.peers)
    (index,) = (tmp_path / "late").glob("*.held")
    index.write_bytes(index.read_bytes()[:-7])
    again = ResultStore(tmp_path / "late", swarm.grid)
    (torn,) = again.missing(record)
    assert again.find(record.results[(torn + 1) % 3].digest) is not None
    fetcher.store = again
    await fetcher.fetch(record, swarm.peers)
    assert all(json.loads(line) for line in index.read_bytes().splitlines())
    assert ResultStore(tmp_path / "late", swarm.grid).missing(record) == []


async def test_a_span_whose_bytes_were_damaged_on_disk_is_not_held(lab, tmp_path):
    swarm, record, fetcher = await finished(lab, tmp_path)
    await fetcher.fetch(record, swarm.peers)
    (path,) = (tmp_path / "late").glob("*.mean")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    again = ResultStore(tmp_path / "late", swarm.grid)
    assert again.missing(record) == [0]
    with pytest.raises(KeyError, match=r"\[0\]"):
        again.mean(record)


async def test_a_file_without_an_index_is_removed_at_the_start(lab, tmp_path):
    swarm = lab()
    store = ResultStore(tmp_path / "s", swarm.grid)
    path = store.attempt(swarm.plan).path
    assert path.exists()
    ResultStore(tmp_path / "s", swarm.grid)
    assert not path.exists()


async def test_committing_forgets_rival_attempts_and_old_rounds(lab, tmp_path):
    swarm, record, _ = await finished(lab, tmp_path)
    store = ResultStore(tmp_path / "s", swarm.grid, keep_rounds=2)

    def at(round_number, ballot=0):
        plan = record.plan.model_copy(update={"round": round_number, "ballot": ballot})
        return record.model_copy(update={"plan": plan})

    paths = {key: store.attempt(at(*key).plan).path for key in [(1, 0), (2, 0), (3, 0), (3, 1), (4, 0)]}
    store.prune(at(3, 1))
    assert {key for key, path in paths.items() if path.exists()} == {(2, 0), (3, 1), (4, 0)}


def test_a_full_disk_is_an_error_before_the_round(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    store = ResultStore(tmp_path, ChunkGrid(10, 10, codec("int8")))
    with pytest.raises(OSError, match="No space"):
        store.open(1, "0" * 64)


async def test_bytes_of_another_digest_than_the_records_are_fetched_again(lab, tmp_path):
    """An owner has shown this node another mean than the one that the round decided."""
    swarm, record, fetcher = await finished(lab, tmp_path)
    buffer = fetcher.store.attempt(record.plan)
    false = bytes(swarm.grid.encoded_bytes(0))
    for chunk in span_chunks(swarm.grid, record.plan.spans[0]):
        buffer.write_chunk(chunk, false[: swarm.grid.encoded_bytes(chunk)])
    buffer.hold(record.plan.spans[0], "f" * 64)
    assert fetcher.store.missing(record) == [0, 1, 2]
    assert bytes((await fetcher.fetch(record, swarm.peers)).encoded) == whole(swarm)
    assert fetcher.store.find("f" * 64) is None


async def test_a_full_disk_ends_an_exchange_with_one_plain_error(lab, monkeypatch):
    swarm = lab()
    store = swarm.stores[swarm.peers[1]]

    def full(span, digest):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.attempt(swarm.plan), "hold", full)
    with pytest.raises(OSError, match="No space"):
        await swarm.run()


def test_spans_that_are_held_side_by_side_are_all_found_again(tmp_path: Path) -> None:
    """Two threads once both began the index, which could then not be read after a restart."""
    grid = ChunkGrid(16 * 4096, 4096, codec("int8"))
    for attempt in range(20):
        buffer = ResultBuffer(tmp_path / f"{attempt}.mean", 1, "plan", grid)
        spans = [Span(first_chunk=chunk, num_chunks=1, owner=LATE) for chunk in range(16)]
        for span in spans:
            buffer.write_chunk(span.first_chunk, bytes(grid.encoded_bytes(span.first_chunk)))
        digests = [span_digest(grid, span, buffer.encoded[span_range(grid, span)]) for span in spans]
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(buffer.hold, spans, digests))
        again = ResultBuffer(tmp_path / f"{attempt}.mean", 1, "plan", grid)
        assert all(again.holds(span, digest) for span, digest in zip(spans, digests, strict=True))
