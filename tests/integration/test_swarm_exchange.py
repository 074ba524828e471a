"""The all-reduce and results by digest between real p2p daemons on loopback."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from atoll.kernels.codec import codec
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.exchange import (
    Attempt,
    Exchange,
    ExchangeEvent,
    ExchangeHost,
    ExchangeReport,
    ExchangeSettings,
    MemberExcluded,
    SpanInbox,
)
from atoll.protocol.identity import Identity
from atoll.protocol.recent import Recent
from atoll.protocol.record import Member, Plan, Record, Span
from atoll.protocol.result_transfer import ResultFetcher, ResultServer
from atoll.protocol.results import ResultStore
from atoll.protocol.signed_results import signed
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.swarm import Swarm

from .swarm_lab import Lab

GRID = ChunkGrid(700_001, 65_536, codec("int8"))
SETTINGS = ExchangeSettings(contact_timeout_s=8.0, keepalive_interval_s=0.3)


class Node:
    """A swarm's peer with a random contribution."""

    def __init__(self, swarm: Swarm, identity: Identity, seed: int, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.swarm, self.identity = swarm, identity
        self.store = ResultStore(folder, GRID)
        self.events: list[ExchangeEvent] = []
        self.host = ExchangeHost(
            swarm.peer_id, GRID, swarm.transport, executor, SETTINGS, is_alive=lambda _: True, recent=Recent(GRID)
        )
        self.inbox = SpanInbox(self.host)
        ResultServer(swarm.transport, self.store)
        self.values = np.random.default_rng(seed).standard_normal(GRID.num_elements).astype(np.float32)
        encoded = np.empty(GRID.total_encoded, np.uint8)
        for chunk in range(GRID.num_chunks):
            GRID.codec.encode(self.values[GRID.elements(chunk)], encoded[GRID.encoded_range(chunk)])
        self.contribution = Contribution.of(GRID, encoded.data, round_number=1, tokens=100)

    async def exchange(self, plan: Plan) -> ExchangeReport:
        attempt = Attempt(
            plan=plan,
            contribution=self.contribution,
            result=self.store.attempt(plan),
            trust=TrustConfig(),
            limits=LimitsConfig(),
            sign=partial(signed, self.identity),
            on_event=self.events.append,
        )
        return await Exchange(self.host, self.inbox, attempt).run()


def plan_of(members: list[Node], owners: list[Node]) -> Plan:
    roster = tuple(node.swarm.peer_id for node in members)
    edges = [GRID.num_chunks * i // len(owners) for i in range(len(owners) + 1)]
    return Plan(
        lineage=0,
        fragment=0,
        round=1,
        ballot=0,
        leader=roster[0],
        parent="0" * 64,
        parent_state="0" * 64,
        members=tuple(
            Member(
                peer=node.swarm.peer_id,
                tokens=100,
                commitment=node.contribution.commitment,
                squared_norm=node.contribution.squared_norm,
            )
            for node in members
        ),
        spans=tuple(
            Span(first_chunk=edges[i], num_chunks=edges[i + 1] - edges[i], owner=owner.swarm.peer_id)
            for i, owner in enumerate(owners)
        ),
        roster=roster,
        next_roster=roster,
        data_cursor=0,
        rules="5" * 64,
        attempt_timeout_s=30.0,
    )


async def start(lab: Lab, tmp_path: Path, executor: ThreadPoolExecutor) -> list[Node]:
    first = await lab.start("a")
    swarms = [first, *await asyncio.gather(lab.start("b", first), lab.start("c", first))]
    return [
        Node(swarm, lab.identity(name), i, tmp_path / f"results-{i}", executor)
        for i, (name, swarm) in enumerate(zip("abc", swarms, strict=True))
    ]


async def test_three_peers_reduce_and_a_latecomer_fetches_the_mean(lab: Lab, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        nodes = await start(lab, tmp_path, executor)
        plan = plan_of(nodes, nodes)
        reports = await asyncio.gather(*(node.exchange(plan) for node in nodes))
        record = Record(plan=plan, results=tuple(reports[0].held[span] for span in range(3)))
        means = {bytes(node.store.mean(record)) for node in nodes}
        assert len(means) == 1
        mean = np.empty(GRID.num_elements, np.float32)
        encoded = np.frombuffer(means.pop(), np.uint8)
        for chunk in range(GRID.num_chunks):
            GRID.codec.decode(encoded[GRID.encoded_range(chunk)], mean[GRID.elements(chunk)])
        np.testing.assert_allclose(mean, sum(node.values for node in nodes) / 3, atol=0.03)

        late = ResultStore(tmp_path / "late", GRID)
        fetcher = ResultFetcher(nodes[2].swarm.transport, late, executor)
        await fetcher.fetch(record, [node.swarm.peer_id for node in nodes])
        assert bytes(late.mean(record)) == encoded.tobytes()


async def test_a_peer_that_is_gone_costs_its_own_contribution_only(lab: Lab, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        nodes = await start(lab, tmp_path, executor)
        plan = plan_of(nodes, nodes[:2])
        await nodes[2].swarm.stop()
        reports = await asyncio.gather(*(node.exchange(plan) for node in nodes[:2]))
        assert [reports[0].held[span].included for span in range(2)] == [(True, True, False)] * 2
        assert reports[0].held == reports[1].held
        assert {event.rule for event in nodes[0].events if isinstance(event, MemberExcluded)} == {"no contact"}
