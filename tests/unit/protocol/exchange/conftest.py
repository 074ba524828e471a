"""A laboratory: some peers on one in-memory network, a plan among them, and a plain replay of what must come out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.protocol.chunks import ChunkGrid, Contribution, span_chunks, span_digest, span_range
from atoll.protocol.exchange import (
    Attempt,
    Exchange,
    ExchangeEvent,
    ExchangeHost,
    ExchangeReport,
    ExchangeSettings,
    SpanInbox,
)
from atoll.protocol.exchange.wire import SpanHeader
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.recent import Recent
from atoll.protocol.record import Member, Plan, Record, Span
from atoll.protocol.results import ResultStore
from atoll.protocol.signed_results import signed
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.weights import weights

PATIENT_S = 5.0
"""A test with such a time limit has no fault that time must reveal: then no other limit is short either."""
QUICK = ExchangeSettings(contact_timeout_s=0.15, keepalive_interval_s=0.05, frame_bytes=1000)
IDENTITIES = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 9)]
PEERS = [identity.peer_id for identity in IDENTITIES]


class Lab:
    """``num_peers`` members with random contributions; peer i owns the i-th of the spans."""

    def __init__(
        self,
        folder: Path,
        executor: ThreadPoolExecutor,
        num_peers: int = 3,
        num_elements: int = 1500,
        chunk_elements: int = 256,
        codec_name: str = "int8",
        tokens: Sequence[int] | None = None,
        owners: Sequence[int] | None = None,
        settings: ExchangeSettings = QUICK,
        progress_timeout_s: float = 0.25,
        attempt_timeout_s: float = 60.0,
    ) -> None:
        self.codec = codec(codec_name)
        self.grid = ChunkGrid(num_elements, chunk_elements, self.codec)
        self.network = MemoryNetwork(progress_timeout_s=progress_timeout_s, window_bytes=4000)
        self.identities, self.peers = IDENTITIES[:num_peers], PEERS[:num_peers]
        self.tokens = list(tokens or [100 + 37 * i for i in range(num_peers)])
        if settings is QUICK and progress_timeout_s >= PATIENT_S:
            settings = replace(QUICK, contact_timeout_s=progress_timeout_s)
        self.settings = settings
        self.executor = executor
        self.receivers: frozenset[PeerId] | None = None
        self.values = [self._values(i) for i in range(num_peers)]
        self.contributions = [self.contribution(i) for i in range(num_peers)]
        self.plan = self._plan(owners or range(num_peers), attempt_timeout_s)
        self.transports = {peer: self.network.transport(peer) for peer in self.peers}
        self.hosts = {peer: self._host(peer) for peer in self.peers}
        self.inboxes = {peer: SpanInbox(self.hosts[peer]) for peer in self.peers}
        self.stores = {peer: ResultStore(folder / peer, self.grid) for peer in self.peers}
        self.dead: set[PeerId] = set()
        """Peers whose heartbeats have stopped, as everybody sees it."""
        self.events: dict[PeerId, list[ExchangeEvent]] = {peer: [] for peer in self.peers}

    def _values(self, peer: int) -> np.ndarray:
        return np.random.default_rng(peer).standard_normal(self.grid.num_elements).astype(np.float32)

    def contribution(self, peer: int) -> Contribution:
        encoded = np.empty(self.grid.total_encoded, np.uint8)
        for chunk in range(self.grid.num_chunks):
            self.codec.encode(self.values[peer][self.grid.elements(chunk)], encoded[self.grid.encoded_range(chunk)])
        return Contribution.of(self.grid, encoded.data, round_number=1, tokens=self.tokens[peer])

    def header(self, peer: int, span: int) -> SpanHeader:
        """What the peer honestly opens a span's stream with."""
        chunks, tree = span_chunks(self.grid, self.plan.spans[span]), self.contributions[peer].tree
        entries = tree.leaves[chunks.start : chunks.stop] + tree.proof(chunks.start, len(chunks))
        return SpanHeader(self.plan.content_id(), span, entries)

    def commit_to(self, peer: int, contribution: Contribution) -> None:
        """Let the plan count on another contribution of this peer."""
        self.contributions[peer] = contribution
        members = list(self.plan.members)
        members[peer] = members[peer].model_copy(
            update={"commitment": contribution.commitment, "squared_norm": contribution.squared_norm}
        )
        self.plan = self.plan.model_copy(update={"members": tuple(members)})

    def _plan(self, owners: Iterable[int], attempt_timeout_s: float) -> Plan:
        owners = list(owners)[: self.grid.num_chunks]
        edges = [self.grid.num_chunks * i // len(owners) for i in range(len(owners) + 1)]
        spans = [
            Span(first_chunk=edges[i], num_chunks=edges[i + 1] - edges[i], owner=PEERS[owner])
            for i, owner in enumerate(owners)
        ]
        members = [
            Member(
                peer=peer,
                tokens=self.tokens[i],
                commitment=self.contributions[i].commitment,
                squared_norm=self.contributions[i].squared_norm,
            )
            for i, peer in enumerate(self.peers)
        ]
        return Plan(
            lineage=0,
            fragment=0,
            round=1,
            ballot=0,
            leader=self.peers[0],
            parent="0" * 64,
            parent_state="1" * 64,
            members=tuple(members),
            spans=tuple(spans),
            roster=tuple(self.peers),
            next_roster=tuple(self.peers),
            data_cursor=0,
            rules="5" * 64,
            attempt_timeout_s=attempt_timeout_s,
        )

    def _host(self, peer: PeerId) -> ExchangeHost:
        return ExchangeHost(
            me=peer,
            grid=self.grid,
            transport=self.transports[peer],
            executor=self.executor,
            settings=self.settings,
            is_alive=lambda other: other not in self.dead,
            recent=Recent(self.grid),
        )

    def exchange(self, peer: int) -> Exchange:
        me = self.peers[peer]
        attempt = Attempt(
            plan=self.plan,
            contribution=self.contributions[peer],
            result=self.stores[me].attempt(self.plan),
            trust=TrustConfig(),
            limits=LimitsConfig(),
            sign=partial(signed, self.identities[peer]),
            on_event=self.events[me].append,
            receivers=self.receivers,
        )
        return Exchange(self.hosts[me], self.inboxes[me], attempt)

    async def run(self, absent: Iterable[int] = ()) -> dict[int, ExchangeReport]:
        """Exchange on every peer that is not absent."""
        present = [i for i in range(len(self.peers)) if i not in set(absent)]
        reports = await asyncio.gather(*(self.exchange(i).run() for i in present))
        return dict(zip(present, reports, strict=True))

    def mean(self, peer: int, span: int) -> bytes:
        """What the peer holds of a span."""
        return bytes(
            self.stores[self.peers[peer]].attempt(self.plan).encoded[span_range(self.grid, self.plan.spans[span])]
        )

    def replay(self, span: int, included: Sequence[bool]) -> bytes:
        """The encoded mean of a span, computed the plain way."""
        shares = weights(self.plan, included, TrustConfig(), LimitsConfig())
        encoded = b""
        for chunk in span_chunks(self.grid, self.plan.spans[span]):
            mean = np.zeros(self.grid.chunk_length(chunk), np.float32)
            for peer in (i for i, is_in in enumerate(included) if is_in):
                data = np.frombuffer(self.contributions[peer].encoded[self.grid.encoded_range(chunk)], np.uint8)
                mean += weighted(self.codec.name, data, np.float32(shares[peer]))
            out = np.empty(self.grid.encoded_bytes(chunk), np.uint8)
            self.codec.encode(mean, out)
            encoded += out.tobytes()
        return encoded

    def check_agreement(self, reports: dict[int, ExchangeReport]) -> list[tuple[bool, ...]]:
        """Everybody who holds a span holds the same, and it is the replay's; returns the spans' inclusion flags."""
        flags = []
        for span in range(len(self.plan.spans)):
            holders = {i: report.held[span] for i, report in reports.items() if span in report.held}
            results = set(holders.values())
            assert len(results) == 1, f"span {span}: {results or 'nobody holds it'}"
            (result,) = results
            expected = self.replay(span, result.included)
            assert result.digest == span_digest(self.grid, self.plan.spans[span], expected)
            for peer in holders:
                assert self.mean(peer, span) == expected
                assert self.stores[self.peers[peer]].find(result.digest) == expected
            flags.append(result.included)
        return flags

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the event loop run until something has happened."""
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)

    def record(self, report: ExchangeReport) -> Record:
        return Record(plan=self.plan, results=tuple(report.held[i] for i in range(len(self.plan.spans))))

    def said(self, peer: int, kind: type) -> list:
        return [event for event in self.events[self.peers[peer]] if isinstance(event, kind)]


def weighted(codec_name: str, data: np.ndarray, weight: np.float32) -> np.ndarray:
    """weight × decoded values, rounded as the codec's docstring says."""
    if codec_name == "float32":
        return data.view("<f4") * weight
    num_blocks = next(n for n in range(1, len(data)) if -(-(len(data) - 2 * n) // 256) == n)
    scales = (data[: 2 * num_blocks].view("<u2").astype(np.uint32) << 16).view(np.float32) * weight
    codes = data[2 * num_blocks :].view(np.int8).astype(np.float32)
    return codes * np.repeat(scales, 256)[: len(codes)]


@pytest.fixture(scope="session")
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
async def lab(tmp_path: Path, executor: ThreadPoolExecutor):
    """Factory of a `Lab`; its network is closed at the end."""
    labs: list[Lab] = []

    def make(**changes) -> Lab:
        labs.append(Lab(tmp_path / str(len(labs)), executor, **changes))
        return labs[-1]

    yield make
    for each in labs:
        await each.network.close()


LabMaker = Callable[..., Lab]
