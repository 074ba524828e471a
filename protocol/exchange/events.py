"""What an exchange tells its driver, what it is set to, and what it has measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ..identity import PeerId
from ..quotas import SPAN_STREAMS_PER_PEER
from ..record import SpanResult


@dataclass(frozen=True)
class SpanReduced:
    """I own the span and have reduced all of it: tell the leader (`messages.SpanDone`)."""

    span: int
    result: SpanResult


@dataclass(frozen=True)
class SpanHeld:
    """The span's mean matches its digest and is durable on this node's disk."""

    span: int
    result: SpanResult


@dataclass(frozen=True)
class SpanLost:
    """The span's owner (perhaps this node) cannot finish it here: tell the leader (`messages.SpanFailed`)."""

    span: int
    owner: PeerId
    why: str
    rule: str | None = None
    """The rule that the owner broke, if it misbehaved rather than died."""


@dataclass(frozen=True)
class MemberExcluded:
    """A span that I own goes on without this member's contribution."""

    span: int
    peer: PeerId
    rule: str
    detail: str = ""
    misconduct: bool = False
    """Whether the peer sent something that no honest peer sends, rather than too little."""
    value: float | None = None
    """What was measured, for rules that measure something."""
    limit: float | None = None
    """What the rule allows."""


@dataclass(frozen=True)
class MemberLeftOut:
    """The aggregation of a span that I own took no notice of this member in some chunks."""

    span: int
    peer: PeerId
    rule: str
    num_chunks: int
    """How many of the span's chunks."""
    value: float
    """The worst that was measured in one of them."""
    limit: float
    """What was allowed in that chunk."""


@dataclass(frozen=True)
class SelfExcluded:
    """The owner goes on without this node's contribution and says why; the result is fetched by digest later."""

    span: int
    owner: PeerId
    why: str


@dataclass(frozen=True)
class FirstChunkSent:
    """Journal point ``exchange.sending``."""

    span: int


@dataclass(frozen=True)
class FirstChunkReduced:
    """Journal point ``exchange.reducing``."""

    span: int


ExchangeEvent: TypeAlias = (
    SpanReduced
    | SpanHeld
    | SpanLost
    | MemberExcluded
    | MemberLeftOut
    | SelfExcluded
    | FirstChunkSent
    | FirstChunkReduced
)


@dataclass(frozen=True)
class ExchangeSettings:
    """Limits of an exchange. The transport bounds every single read and write by its own progress limit."""

    contact_timeout_s: float = 15.0
    """How long an owner waits for a member's stream, and a stream for the plan that it belongs to."""
    contribution_share: float = 0.6
    """Share of the plan's attempt time after which an owner goes on without members that have not delivered."""
    keepalive_interval_s: float = 1.0
    """An owner that waits for others says so this often; must be well below the transport's progress limit."""
    frame_bytes: int = 1 << 20
    """Payload pieces are at most this long; at most `transport.MAX_FRAME_BYTES`."""
    max_streams_per_peer: int = SPAN_STREAMS_PER_PEER
    """Concurrent span streams that one peer may have open here."""


@dataclass
class ExchangeCounters:
    """Measured by one exchange of one node. Times are summed over concurrent streams and jobs."""

    sent_bytes: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """Payload and control frames, without the transport's framing and encryption."""
    received_bytes: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    send_s: float = 0.0
    wait_s: float = 0.0
    """Waiting for chunks of others, as owner and as member."""
    check_s: float = 0.0
    reduce_s: float = 0.0
    encode_s: float = 0.0
    squared_error: float = 0.0
    squared_mean: float = 0.0

    @property
    def codec_error(self) -> float:
        """Relative L2 error of encoding the mean, over the spans that this node reduced; 0 if none."""
        return (self.squared_error / self.squared_mean) ** 0.5 if self.squared_mean else 0.0

    def count_sent(self, peer: PeerId, num_bytes: int) -> None:
        self.sent_bytes[peer] = self.sent_bytes.get(peer, 0) + num_bytes

    def count_received(self, peer: PeerId, num_bytes: int) -> None:
        self.received_bytes[peer] = self.received_bytes.get(peer, 0) + num_bytes


@dataclass(frozen=True)
class ExchangeReport:
    """How an exchange ended on this node. Spans that are in neither dict were not this node's to receive."""

    held: dict[int, SpanResult]
    lost: dict[int, SpanLost]
    counters: ExchangeCounters
