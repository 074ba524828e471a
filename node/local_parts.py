"""What a node has before its network starts: the rules it knows, the shared buffers, and the state it left off with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import codec
from ..protocol.amendments import InvalidAmendment, RunRules
from ..protocol.identity import Identity, PeerId
from ..protocol.rule_book import RuleBook
from ..protocol.spec import Genesis
from ..training.checkpoint import CheckpointStore, Saved
from ..training.config import TrainerSpec
from ..training.flat import initial_state
from ..training.outer import OuterConfig
from ..training.shared_buffers import SharedBuffers
from .amendment_store import AmendmentStore
from .chain import Chain
from .errors import UserError
from .gossip_replica import GossipReplica
from .injected_faults import nan_round
from .known_peers import KnownPeers
from .replica import FloatVector, Replica, archive_of, checkpoint_store
from .run_spec import RunSpec, training_config
from .settings import NodeSettings
from .spot_recomputer import SpotRecomputer
from .telemetry import Telemetry


@dataclass(frozen=True)
class LocalParts:
    """Of one node, for as long as it lives."""

    settings: NodeSettings
    spec: RunSpec
    identity: Identity
    telemetry: Telemetry
    grid: ChunkGrid
    buffers: SharedBuffers
    amendments: AmendmentStore
    book: RuleBook
    known_peers: KnownPeers
    replica: Replica | GossipReplica
    """A `GossipReplica` in gossip runs."""

    @property
    def common_replica(self) -> Replica:
        """Where all nodes have the same state: not in a gossip run."""
        if not isinstance(self.replica, Replica):
            raise TypeError("a gossip run has no common state")
        return self.replica

    @property
    def gossip_replica(self) -> GossipReplica:
        """In a gossip run."""
        if not isinstance(self.replica, GossipReplica):
            raise TypeError("this is no gossip run")
        return self.replica

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id

    @property
    def rules(self) -> Genesis:
        """Those that the present round is held under."""
        return self.book.rules.at(self.replica.head_round + 1)

    @classmethod
    def open(
        cls,
        settings: NodeSettings,
        spec: RunSpec,
        identity: Identity,
        telemetry: Telemetry,
        on_saved: Callable[[int, Saved, int], None],
    ) -> LocalParts:
        """Read what the folder holds. ``on_saved``: a round, its checkpoint, and how many are kept.

        Raises `UserError` where the amendments that came with the spec contradict it.
        """
        exchange = spec.genesis.exchange
        grid = ChunkGrid(spec.layout.num_elements, exchange.chunk_elements, codec(exchange.codec))
        buffers = SharedBuffers.create(grid.num_elements, grid.num_chunks, grid.total_encoded)
        amendments = AmendmentStore(settings.folder)
        book = RuleBook(_known_rules(amendments, spec), amendments.append)
        replica = _open_replica(settings, spec, identity.peer_id, telemetry, grid, buffers, book, on_saved)
        known_peers = KnownPeers(settings.folder / "peers.json")
        return cls(settings, spec, identity, telemetry, grid, buffers, amendments, book, known_peers, replica)

    def recomputer(self) -> SpotRecomputer:
        """Does others' inner steps again, for spot checks."""
        return SpotRecomputer(self.trainer_spec(), self.settings.folder, self.buffers)

    def trainer_spec(self) -> TrainerSpec:
        """What the trainer's process is started with."""
        exchange = self.spec.genesis.exchange
        return TrainerSpec(
            training=self.spec.training,
            chunk_elements=exchange.chunk_elements,
            codec=exchange.codec,
            num_threads=self.settings.num_threads or os.cpu_count() or 1,
            device=self.settings.device,
            shows_inner_state=self.spec.genesis.trust.spot_checks > 0,
            nan_round=nan_round(),
        )


def _known_rules(store: AmendmentStore, spec: RunSpec) -> RunRules:
    """By this node's disk, and by what came with the run spec; nothing is in force that is not kept."""
    rules = store.load(spec.genesis)
    try:
        known = rules.extended(spec.amendments)
    except InvalidAmendment as error:
        raise UserError("amendments of the run spec", str(error), "get them from the operator again") from None
    store.append(known.amendments[len(rules.amendments) :])
    return known


class _Common(TypedDict):
    """What both kinds of replica are made of."""

    book: RuleBook
    initial: Callable[[], FloatVector]
    buffers: SharedBuffers
    grid: ChunkGrid
    outer_of: Callable[[Genesis], OuterConfig]
    store: CheckpointStore
    on_saved: Callable[[Saved, int], None]


def _open_replica(
    settings: NodeSettings,
    spec: RunSpec,
    me: PeerId,
    telemetry: Telemetry,
    grid: ChunkGrid,
    buffers: SharedBuffers,
    book: RuleBook,
    on_saved: Callable[[int, Saved, int], None],
) -> Replica | GossipReplica:
    event_loop = asyncio.get_running_loop()

    # The thread that saves calls these.
    def on_point(point: str) -> None:
        telemetry.journal.point(point, "saving the committed state", round=replica.head_round)

    def on_warning(text: str) -> None:
        event_loop.call_soon_threadsafe(telemetry.warn, text)

    def on_checkpoint(saved: Saved, num_kept: int) -> None:
        event_loop.call_soon_threadsafe(on_saved, replica.head_round, saved, num_kept)

    common: _Common = {
        "book": book,
        "initial": lambda: initial_state(spec.training.model),
        "buffers": buffers,
        "grid": grid,
        "outer_of": lambda rules: training_config(rules, "rules in force").outer,
        "store": checkpoint_store(settings.folder, settings.num_checkpoints, on_warning, on_point),
        "on_saved": on_checkpoint,
    }
    if spec.genesis.is_gossip:
        replica = GossipReplica(**common)
    else:
        chain = Chain(settings.folder / "chain.jsonl")
        archive = archive_of(spec.genesis, me, settings.folder, grid.num_elements, on_warning)
        replica = Replica(**common, chain=chain, archive=archive)
    if replica.restore():
        telemetry.say(f"resumed after round {replica.head_round} from the checkpoint")
    return replica
