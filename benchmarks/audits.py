"""What the audit of owners costs: rounds of whole drivers on the in-memory network, with and without it.

    python benchmarks/audits.py [--peers 4] [--megabytes 16] [--rounds 5] [--chunks 8]

Prints one JSON line per figure: bytes that a peer receives per round for the audit (also as a share of everything that
it receives), seconds from the results to the vote, and seconds per round with and without audits. No model, no network
delay: what is measured is the protocol's own work.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from _figures import report

from atoll.kernels.codec import codec
from atoll.protocol.amendments import RunRules
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.driver import DriverSetup
from atoll.protocol.heartbeats import NodeFacts
from atoll.protocol.identity import Identity
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import Committed, RoundEvent
from atoll.protocol.round_driver import RoundDriver
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import Genesis, MembershipConfig, TrustConfig
from atoll.protocol.standing import Standing
from atoll.protocol.transport import Buffer

CHUNK_ELEMENTS = 65_536


class Digests:
    """A replica that keeps only the hash of every mean so far."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis, self.chain, self.state_hash = genesis, list[Commit](), genesis.initial_state

    @property
    def head_round(self) -> int:
        return len(self.chain)

    @property
    def standing(self) -> Standing:
        return Standing.after(self.chain[-1]) if self.chain else Standing.of_genesis(self.genesis)

    async def apply(self, commit: Commit, mean: Buffer) -> str:
        self.chain.append(commit)
        self.state_hash = hashlib.sha256(self.state_hash.encode() + bytes(mean)).hexdigest()
        return self.state_hash

    def commits(self, first: int, count: int) -> list[Commit]:
        return self.chain[max(first, 1) - 1 : first - 1 + count]

    async def begin_lineage(self) -> None:
        raise NotImplementedError("nobody resets this run")


def genesis_of(people: list[Identity], num_chunks: int) -> Genesis:
    roster = tuple(person.peer_id for person in people)
    return Genesis(
        name="audits",
        protocol_version=1,
        initial_state=hashlib.sha256(b"0").hexdigest(),
        operators=roster[:1],
        model={},
        membership=MembershipConfig(roster=roster),
        trust=TrustConfig(audited_chunks=num_chunks, audited_share=1024.0),
    )


async def rounds(folder: Path, num_peers: int, grid: ChunkGrid, num_rounds: int, num_chunks: int) -> dict[str, list]:
    """Seconds and received bytes per round, and what ``audit.done`` says."""
    people = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(num_peers)]
    genesis, network, audits = genesis_of(people, num_chunks), MemoryNetwork(), list[RoundEvent]()
    setups = [
        DriverSetup(
            identity=person,
            book=RuleBook(RunRules(genesis)),
            transport=network.transport(person),
            directory=network.directory(person),
            folder=folder / person.peer_id,
            replica=Digests(genesis),
            grid=grid,
            facts=NodeFacts(lease_samples=1),
            observer=lambda event: audits.append(event) if event.point == "audit.done" else None,
        )
        for person in people
    ]
    drivers = [RoundDriver(setup) for setup in setups]
    for driver in drivers:
        await driver.start()
    lasted_s = []
    for number in range(1, num_rounds + 1):
        contributions = [contribution_of(grid, number, seed) for seed in range(num_peers)]
        started_s = time.perf_counter()
        outcomes = await asyncio.gather(*(d.contribute(c) for d, c in zip(drivers, contributions, strict=True)))
        lasted_s.append(time.perf_counter() - started_s)
        assert all(isinstance(outcome, Committed) and outcome.counted for outcome in outcomes)
    received = [driver.transport.traffic.received_bytes / num_rounds for driver in drivers]
    for driver in drivers:
        await driver.close()
    await network.close()
    return {"lasted_s": lasted_s, "received_bytes": received, "audits": [event.fields for event in audits]}


def contribution_of(grid: ChunkGrid, number: int, seed: int) -> Contribution:
    values = np.random.default_rng(seed).standard_normal(grid.num_elements).astype(np.float32)
    encoded = np.empty(grid.total_encoded, np.uint8)
    for chunk in range(grid.num_chunks):
        grid.codec.encode(values[grid.elements(chunk)], encoded[grid.encoded_range(chunk)])
    return Contribution.of(grid, encoded.data, round_number=number, tokens=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=16, help="encoded size of the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=8)
    arguments = parser.parse_args()
    grid = ChunkGrid(int(arguments.megabytes * 2**20), CHUNK_ELEMENTS, codec("int8"))
    found = {}
    for num_chunks in (arguments.chunks, 0):
        with tempfile.TemporaryDirectory() as folder:
            work = rounds(Path(folder), arguments.peers, grid, arguments.rounds, num_chunks)
            found[num_chunks] = asyncio.run(work)
    audited, plain = found[arguments.chunks], found[0]
    facts = {"peers": arguments.peers, "megabytes": arguments.megabytes, "audited_chunks": arguments.chunks}
    num_bytes = statistics.mean(audit["received_bytes"] for audit in audited["audits"])
    share = num_bytes / statistics.mean(audited["received_bytes"])
    report("audit_received", num_bytes, "bytes per peer and round", share_of_all=round(share, 4), **facts)
    report("audit_time", statistics.median(audit["lasted_s"] for audit in audited["audits"]), "s", **facts)
    report("round_audited", statistics.median(audited["lasted_s"]), "s", **facts)
    report("round_plain", statistics.median(plain["lasted_s"]), "s", **facts)


if __name__ == "__main__":
    main()
