"""The node as a value: the immutable snapshot that the API serves and the page shows.

Times are aware UTC datetimes (RFC 3339 in JSON); the daemon may pass Unix seconds, pydantic converts them. Unknown is
None and becomes ``null``; so does a float that is not finite, because JSON has no NaN. Sizes and rates carry their
unit in the name.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from .reasons import Reason, Severity, State, Tone

PeerState = Literal["done", "training", "ready", "exchanging", "joining", "paused", "late", "rejected", "absent"]
"""``done``: in the mean of the shown round; ``rejected``: banned, or ejected; ``absent``: not heard of for longer than
the heartbeat's time limit."""
PhaseName = Literal["train", "gather", "reduce", "commit", "apply"]
LossKind = Literal["local", "swarm", "validation"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_PEER_NAME_CHARS = 64
MAX_LOG_CHARS = 500


def _null_if_not_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def clip_name(value: str) -> str:
    """Names come from strangers: control and direction-changing characters go, the length is bounded."""
    return "".join(character for character in value if character.isprintable())[:MAX_PEER_NAME_CHARS]


Real = Annotated[float, PlainSerializer(_null_if_not_finite, return_type=float | None, when_used="json")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
DisplayName = Annotated[str, AfterValidator(clip_name)]


class Value(BaseModel):
    """Base of every part of the snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class RunInfo(Value):
    """What the run is, from its signed spec, in words for people. `spec` of the API has the whole text."""

    name: DisplayName = ""
    run_id: str | None = None
    signer: str | None = None
    model: str | None = None
    """For example ``139,584 parameters, 2 layers``."""
    num_parameters: Count | None = None
    inner_method: str | None = None
    outer_method: str | None = None
    codec: str | None = None
    num_rounds: Count | None = None
    """Round after which the run ends; None: open-ended."""


class NodeInfo(Value):
    name: DisplayName = ""
    peer_id: str | None = None
    version: str = ""
    started_at: datetime | None = None
    device: str | None = None


class StateInfo(Value):
    """What the node does, and why. ``sentence`` is for now, ``live_sentence`` has ``{eta}`` in it."""

    state: State = State.STARTING
    reason: Reason | None = None
    sentence: str = ""
    live_sentence: str = ""
    timeless_sentence: str = ""
    """For a reader whose stream broke: no time is in it."""
    fix: str = ""
    severity: Severity = "info"
    is_normal: bool = True
    is_ready: bool = False
    tone: Tone = "calm"
    exit_code: int = 3
    since: datetime | None = None
    ends_at: datetime | None = None


class Phase(Value):
    """One part of the round that is going on."""

    name: PhaseName
    started_at: datetime | None = None
    seconds: Real | None = None
    """Measured, once the phase is over."""
    expected_s: Real | None = None
    """From this node's own last rounds; None before the first."""
    progress: Share | None = None
    """Measured share of the phase's work, where there is one (inner steps, spans)."""


class RoundInfo(Value):
    """The round that the node works on."""

    number: Count = 0
    is_provisional: bool = False
    phase: PhaseName | None = None
    phases: tuple[Phase, ...] = ()
    ends_at: datetime | None = None
    """When the exchange starts (while training) or the new weights are there (while exchanging)."""
    num_members: Count | None = None
    quorum: Real | None = None
    """Votes that commit the round."""
    leader: str | None = None


Role: TypeAlias = Literal["delegate", "follower"]


class GroupInfo(Value):
    """In a two-tier run, the group that this node is in. All None: it is in none."""

    role: Role | None = None
    delegate: str | None = None
    delegate_name: DisplayName = ""
    num_peers: Count | None = None
    """Of the group, its delegate included."""
    size: Count | None = None
    """Most peers that it may have."""


Reach: TypeAlias = Literal["direct", "libp2p", "relayed"]
"""Encrypted TCP beside libp2p; libp2p without a relay; only through a relay, so that no bulk data go there."""


class PeerInfo(Value):
    """One member of the swarm, this node included. No addresses: they are private to the node."""

    peer_id: str
    name: DisplayName = ""
    version: DisplayName = ""
    is_self: bool = False
    is_leader: bool = False
    role: DisplayName = ""
    """In a two-tier run: ``delegate of 4``, or ``follows NAME``."""
    state: PeerState = "absent"
    note: DisplayName = ""
    """Why late or rejected, for example ``missed the start by 4 s``."""
    round: Count | None = None
    """Last commit that the peer has applied."""
    num_rounds: Count | None = None
    """Rounds in whose mean the peer was, as far as this node saw."""
    tokens: Count | None = None
    """In the shown round."""
    share: Share | None = None
    """Of the last mean."""
    tokens_per_s: Real | None = None
    reach: Reach | None = None
    """How bulk data go there at present; None: it is not connected."""
    round_trip_ms: Real | None = None
    clock_offset_ms: Real | None = None
    """Its clock minus this node's."""
    last_seen_at: datetime | None = None
    state_hash: str | None = None


class ContributionInfo(Value):
    """What this node has given to the run."""

    joined_round: Count | None = None
    num_counted: Count = 0
    num_skipped: Count = 0
    num_rejected: Count = 0
    last_rejection: str | None = None
    tokens: Count = 0
    tokens_this_round: Count = 0
    last_share: Share | None = None
    last_receipt_round: Count | None = None
    counts_from_round: Count | None = None
    """While the node is on probation: the round from which its work weighs something."""


class TrainingInfo(Value):
    step: Count = 0
    """Inner steps done in this round."""
    num_steps: Count | None = None
    tokens_per_s: Real | None = None
    loss: Real | None = None
    """Local training loss, nats per token."""
    validation_loss: Real | None = None
    validation_round: Count | None = None
    gradient_norm: Real | None = None
    sample_text: str | None = None


class ExchangeInfo(Value):
    """The last exchange, counted at the socket."""

    round: Count | None = None
    bytes_at_32_bits: Count | None = None
    """What the same exchange would have sent with float32 values."""
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    codec_error: Real | None = None
    """Root mean square of the quantisation error, relative to that of the update."""
    gather_s: Real | None = None
    seconds: Real | None = None


class AgreementInfo(Value):
    """Whether the peers' state hashes agree. ``num_same`` counts this node."""

    round: Count | None = None
    state_hash: str | None = None
    num_same: Count = 0
    num_known: Count = 0
    agrees: bool | None = None
    is_exempt: bool = False
    """In a gossip run: every peer has weights of its own, and equal hashes mean nothing."""
    partner: str | None = None
    """In a gossip run: the peer that this node swapped with last."""
    spread: Real | None = None
    """Distance between that partner's weights and ours before the step, over the norm of ours."""
    spread_in_rounds: Real | None = None
    """The same distance over the median norm of our recent pseudo-gradients."""
    spread_round: Count | None = None


class CheckpointInfo(Value):
    round: Count | None = None
    saved_at: datetime | None = None
    size_bytes: Count | None = None
    is_verified: bool | None = None
    num_kept: Count | None = None
    kept_bytes: Count | None = None


class NetworkInfo(Value):
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    num_connected: Count | None = None
    num_direct: Count | None = None
    """Connected peers to which bulk data go over encrypted TCP beside libp2p."""
    num_libp2p: Count | None = None
    """Connected peers to which they go over libp2p."""
    num_relay_only: Count | None = None
    """Connected peers for which no connection without a relay came about: no bulk data go there."""
    direct_port: Count | None = None
    """TCP port on which peers may connect beside libp2p; None: they may not."""
    is_reachable: bool | None = None
    """Whether others can dial this node; None: nobody has measured it."""
    reachability: str = ""
    """Who confirmed it, or which port failed where."""
    reachability_fix: str = ""
    measured_by: tuple[str, ...] = ()
    """Peer ids of those who dialled back."""
    is_relayed: bool = False
    """Whether others come to this node through a relay."""
    num_seeds: Count | None = None
    num_seeds_answering: Count | None = None
    clock_offset_ms: Real | None = None
    """The peers' clocks minus this node's, the median."""


class Alert(Value):
    """Something that a person should know; stays until the daemon takes it away."""

    code: str
    severity: Severity = "warning"
    text: str
    fix: str = ""
    at: datetime


class LogLine(Value):
    at: datetime
    level: LogLevel = "info"
    text: Annotated[str, AfterValidator(lambda text: text[:MAX_LOG_CHARS])]
    num_repeats: Annotated[int, Field(ge=1)] = 1


class LossPoint(Value):
    """One point of a loss curve. ``value`` null means that it was not finite: the page marks it, never hides it."""

    kind: LossKind
    round: Real
    """Fractional within a round: 4.5 is half-way through the inner steps of round 5."""
    tokens: Count | None = None
    at: datetime
    value: Real | None


class Snapshot(Value):
    """Everything the first dashboard shows. Each field is one unit of change in the stream."""

    run: RunInfo = RunInfo()
    node: NodeInfo = NodeInfo()
    status: StateInfo = StateInfo()
    round: RoundInfo = RoundInfo()
    group: GroupInfo = GroupInfo()
    peers: tuple[PeerInfo, ...] = ()
    contribution: ContributionInfo = ContributionInfo()
    training: TrainingInfo = TrainingInfo()
    exchange: ExchangeInfo = ExchangeInfo()
    agreement: AgreementInfo = AgreementInfo()
    checkpoint: CheckpointInfo = CheckpointInfo()
    network: NetworkInfo = NetworkInfo()
    alerts: tuple[Alert, ...] = ()


def as_json(value: Value) -> dict[str, Any]:
    """JSON-able form: RFC 3339 times, no NaN."""
    return value.model_dump(mode="json")
