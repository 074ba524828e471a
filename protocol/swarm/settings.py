"""What a caller sets and sees of the swarm: settings, health, events and the outcome of dialling a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..identity import PeerId
from .paths import PathKind

Seconds = Annotated[float, Field(gt=0)]


class SwarmSettings(BaseModel):
    """How one node takes part in one run's network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity_path: Path
    """Key file (`identity.Identity`); must exist."""
    run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1")
    """Multiaddresses. Port 0 takes a free port, kept while the swarm lives."""
    announce: tuple[str, ...] = ()
    """If given, exactly these are announced (published container ports, forwarded router ports)."""
    seeds: tuple[str, ...] = ()
    """Addresses of the spec's seeds, each ending in ``/p2p/<peer id>``."""
    known_peers: dict[PeerId, tuple[str, ...]] = {}
    """Addresses of peers met earlier, tried like seeds, so that a node starts when every seed is dead."""
    runtime_folder: Path | None = None
    """Where the private folder with p2pd's sockets is made. Falls back to $XDG_RUNTIME_DIR, then the system's
    temporary folder, if it is not given or its path is too long for a socket (about 80 characters)."""
    is_seed: bool = False
    """Serve as a relay for peers behind routers."""
    behind_router: bool | None = None
    """True: nobody can dial us, so reserve a slot at the seeds that answered, and stay out of the routing tables.
    False: never do so. None: do so once peers have measured twice in a row that no TCP port of ours leads here."""
    map_ports: bool = False
    """Ask the router to forward the port (UPnP/NAT-PMP)."""
    start_timeout_s: Seconds = 20.0
    """For the first attempt to start p2pd; each further one may take twice as long."""
    num_start_attempts: Annotated[int, Field(ge=1)] = 3
    connect_timeout_s: Seconds = 10.0
    """For dialling a peer, and for its application's answer to a hello."""
    seed_timeout_s: Seconds = 6.0
    progress_timeout_s: Seconds = 30.0
    """A stream on which nothing moves for this long is closed."""
    health_interval_s: Seconds = 2.0
    health_timeout_s: Seconds = 5.0
    first_redial_s: Seconds = 1.0
    """Pause before seeds and known peers that are not connected are dialled again; it doubles up to the next one."""
    redial_interval_s: Seconds = 15.0
    """How often seeds and known peers that are not connected are dialled again."""
    max_streams_per_peer: Annotated[int, Field(ge=1)] = 64
    """Concurrent incoming streams; a peer above it is disconnected and refused for `refuse_s`."""
    refuse_s: Seconds = 30.0
    max_streams: Annotated[int, Field(ge=1)] = 2048
    """Concurrent incoming streams of all peers together; further ones are closed at once."""
    direct_timeout_s: Seconds = 10.0
    """A pair with only a relayed connection for this long is relay-only and opens no bulk streams."""
    bulk_over_relay: bool = False
    """Allow bulk streams over relays (slow, and cut at 128 KiB where a relay is the only public peer)."""
    direct_ports: tuple[Annotated[int, Field(ge=0, le=65_535)], ...] = (0,)
    """TCP ports for streams beside libp2p, of which the first that is free is taken (0: any), on the addresses of
    `listen`. Empty: no such streams, neither incoming nor outgoing."""
    direct_dial_timeout_s: Seconds = 1.5
    """For a peer's direct port to answer; then libp2p carries the stream."""
    upload_bytes_per_s: Annotated[float, Field(gt=0)] | None = None
    """Cap of what is sent, over all paths together (`bandwidth.BandwidthCap`)."""
    download_bytes_per_s: Annotated[float, Field(gt=0)] | None = None
    min_open_files: Annotated[int, Field(ge=64)] = 4096
    """RLIMIT_NOFILE is raised to this if the hard limit allows; every stream takes descriptors here and in p2pd."""
    p2pd_command: tuple[str, ...] = ()
    """Another p2pd than hivemind's (tests)."""


class SeedCause(StrEnum):
    """What dialling a seed came to."""

    ANSWERED = "answered"
    INVALID_ADDRESS = "invalid_address"
    NAME_NOT_FOUND = "name_not_found"
    REFUSED = "refused"
    UNROUTABLE = "unroutable"
    TIMED_OUT = "timed_out"
    WRONG_PEER_ID = "wrong_peer_id"
    NOT_ATOLL = "not_atoll"
    WRONG_RUN = "wrong_run"
    FAILED = "failed"


@dataclass(frozen=True)
class SeedResult:
    """One seed's answer, or why there was none."""

    address: str
    peer: PeerId | None
    cause: SeedCause
    detail: str
    """One sentence for the user: what happened and what to check."""
    is_relay: bool = False
    """Whether it offers to relay connections to peers behind routers."""

    @property
    def answered(self) -> bool:
        return self.cause is SeedCause.ANSWERED


@dataclass(frozen=True)
class Health:
    """State of the network layer at one moment."""

    alive: bool
    """p2pd answers and its handlers are in place."""
    p2pd_pid: int | None
    num_restarts: int
    last_failure: str
    """Why p2pd was last restarted, or cannot be; empty if it never was."""
    connected_peers: tuple[PeerId, ...]
    unrelayed_peers: tuple[PeerId, ...]
    """Peers with at least one connection that is not relayed; bulk streams go to these only."""
    direct_peers: tuple[PeerId, ...]
    """Those of them to which bulk streams go beside libp2p (`direct`)."""
    relay_only_peers: tuple[PeerId, ...]
    """Connected peers for which no direct connection came about within `SwarmSettings.direct_timeout_s`."""
    addresses: tuple[str, ...]
    reachable: bool
    """Whether others can dial us, as far as it is known (see `reachability`)."""
    reachability: str
    """One sentence: who confirmed it, or which port failed where."""
    reachability_fix: str
    """What would mend it; empty if nothing has to."""
    measured_by: tuple[PeerId, ...]
    """The peers that dialled back."""
    is_relayed: bool
    """Whether others reach this node through a relay."""
    direct_port: int
    """Where peers are let in beside libp2p; 0: nowhere."""

    def path(self, peer: PeerId) -> PathKind | None:
        """How bulk data go to a peer; None: it is not connected."""
        if peer in self.direct_peers:
            return "direct"
        return "libp2p" if peer in self.unrelayed_peers else "relayed" if peer in self.connected_peers else None


EventKind = Literal[
    "started",
    "p2pd_failed",
    "p2pd_restarted",
    "seed",
    "identity",
    "peer_refused",
    "identity_conflict",
    "reachability",
    "relays",
    "addresses",
    "path",
    "stopped",
]


@dataclass(frozen=True)
class SwarmEvent:
    """Something the node may show or act on; `text` is one sentence."""

    kind: EventKind
    text: str
    peer: PeerId | None = None
    fix: str = ""
    """What the user can do, if anything has to be done."""


class SwarmError(Exception):
    """The swarm cannot start; the message is one sentence with the remedy."""


class DuplicateIdentity(SwarmError):
    """Another node runs with the same key file."""
