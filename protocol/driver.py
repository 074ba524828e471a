"""What a node gives to the driver of its rounds, and what it asks of it, whatever the run's topology."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .amendments import Amendment
from .chunks import ChunkGrid, Contribution
from .exchange import ExchangeCounters, ExchangeSettings
from .heartbeats import NodeFacts
from .identity import Identity, PeerId
from .lag import Prove, Sync
from .messages import Group, Provisional
from .outcomes import Outcome
from .peers import PeerInfo
from .points import Observer
from .recomputer import Recomputer
from .replica import Replica
from .results import ResultStore
from .round_machine import Phase
from .rule_book import RuleBook
from .spec import Genesis
from .transport import Directory, Transport


@dataclass(frozen=True, kw_only=True)
class DriverSetup:
    """One node's part in one run, as far as drivers need to know it."""

    identity: Identity
    book: RuleBook
    transport: Transport
    """To everybody; the driver refuses those whom the run does not admit."""
    directory: Directory
    folder: Path
    """For what must outlive the process (votes, results, evidence); this node's alone."""
    replica: Replica
    grid: ChunkGrid
    facts: NodeFacts
    observer: Observer = lambda _: None
    """Called in the event loop; must not raise."""
    sync: Sync | None = None
    """Awaited when this node is too far behind to catch up by results, or when most of the roster has another state
    after the same commit. It must install a certified state into ``replica``, and is called again if it did not."""
    prove: Prove | None = None
    """Returns the newest round that other peers can prove by their chain of commits. It runs beside the rounds, and
    only what it returns, not what peers say of themselves, calls for a ``sync``."""
    recomputer: Recomputer | None = None
    """Recomputes others' inner steps; None: this node checks nobody's."""
    exchange: ExchangeSettings | None = None
    """None: as the run's time limits have it."""
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id

    @property
    def rules(self) -> Genesis:
        """Those that the round after the replica's head is held under."""
        return self.book.rules.at(self.replica.head_round + 1)


class Driver(Protocol):
    """Takes part in the rounds of one run. Made from a `DriverSetup` inside the event loop; then `start`, then `leave`.

    Properties are cheap, never wait, and hold from construction on. Where the topology knows no such thing (a run
    without roster or leader, say), the nearest honest answer is due: ``roster`` is then whoever is known to take part.
    """

    failed: asyncio.Future[None]
    """Gets the exception that ended the driver, if one does; whoever runs the driver must wait for it."""

    # --- what is the case ---------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being worked on: one after the last applied one."""
        ...

    @property
    def phase(self) -> Phase:
        """Where this node stands in the round."""
        ...

    @property
    def genesis(self) -> Genesis:
        """The rules that the present round is held under, amendments applied."""
        ...

    @property
    def roster(self) -> tuple[PeerId, ...]:
        """Who decides on this round; without this node while it is not admitted."""
        ...

    @property
    def group(self) -> Group | None:
        """In two-tier rounds, the group that this node is in, if it is in one."""
        ...

    @property
    def peers(self) -> Mapping[PeerId, PeerInfo]:
        """All other peers that are known, of the roster or not."""
        ...

    @property
    def num_alive(self) -> int:
        """Members of the roster that are heard from, this node included."""
        ...

    @property
    def provisional(self) -> Provisional | None:
        """While this node hears from too few to end a round: how many it hears from, how many it needs, since when."""
        ...

    @property
    def counters(self) -> ExchangeCounters | None:
        """Measured by the exchange that ran last; None before the first."""
        ...

    # --- for state sync -----------------------------------------------------------------------------------------------

    @property
    def transport(self) -> Transport:
        """The transport behind the run's gate: whoever serves streams on it serves admitted peers only."""
        ...

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Threads for CPU and disk work of the protocol."""
        ...

    @property
    def ahead(self) -> tuple[PeerId, ...]:
        """Peers that say that they have applied more rounds than we have, newest first."""
        ...

    @property
    def results(self) -> ResultStore:
        """Encoded means of recent rounds, for serving those who catch up."""
        ...

    def attestations(self, round_number: int) -> dict[PeerId, bytes]:
        """Signed `Attest` envelopes of a recent round; a quorum of them certifies its snapshot. Empty if unknown."""
        ...

    # --- what to do ---------------------------------------------------------------------------------------------------

    def set_progress(self, **changes: Any) -> None:
        """Change fields of `heartbeats.Progress`, which heartbeats carry; a change of phase is told at once."""
        ...

    def amend(self, amendments: Iterable[Amendment]) -> None:
        """Amendments of this node's operator: checked, kept, put in force and spread like those of others."""
        ...

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Offer a contribution and wait until its round is decided or it is withdrawn.

        ``contribution.encoded`` must not change until this returns. A contribution for a round that has been committed
        meanwhile returns that commit at once. Raises what ended the driver, if something did.
        """
        ...

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin (or, after a restart, go on with) the round after the replica's head. Raises what makes that unsafe."""
        ...

    async def leave(self) -> None:
        """Tell the others that we go, and stop. A contribution that is not decided is withdrawn."""
        ...

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave no task behind."""
        ...
