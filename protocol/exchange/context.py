"""What the owners' and the members' side of one exchange share."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import ParamSpec, TypeVar

from ..chunks import ChunkGrid, Contribution
from ..identity import PeerId
from ..offload import off_loop
from ..payload import pieces, read_payload
from ..recent import Recent
from ..record import Plan, SpanResult
from ..results import ResultBuffer
from ..spec import LimitsConfig, TrustConfig
from ..transport import Buffer, ByteStream, Transport
from .events import ExchangeCounters, ExchangeEvent, ExchangeSettings, FirstChunkReduced, FirstChunkSent

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ExchangeHost:
    """What one node brings to all its exchanges."""

    me: PeerId
    grid: ChunkGrid
    transport: Transport
    executor: Executor
    """For CPU and disk work."""
    settings: ExchangeSettings
    is_alive: Callable[[PeerId], bool]
    """Whether a member is still heard from; owners do not wait for the others."""
    recent: Recent
    """What this node has reduced in the last rounds: what is sent again is a copy."""


@dataclass(frozen=True)
class Attempt:
    """One plan, and what its exchange goes by on this node."""

    plan: Plan
    contribution: Contribution | None
    """This node's own; None if it has none: it then serves the spans it owns and nothing else."""
    result: ResultBuffer
    trust: TrustConfig
    """Of the rules that the plan is made under, as `limits`: they decide weights and aggregation."""
    limits: LimitsConfig
    sign: Callable[[SpanResult], SpanResult]
    """Signs a result of ours and notes it on disk first. Blocking; raises `AlreadySigned`, or OSError."""
    on_event: Callable[[ExchangeEvent], None]
    """Called in the event loop, in order."""
    receivers: frozenset[PeerId] | None = None
    """Who gets the means of others' spans; None: everybody. The others only hear what their owners have signed."""

    @cached_property
    def plan_id(self) -> str:
        return self.plan.content_id()

    def gives_means_to(self, peer: PeerId) -> bool:
        return self.receivers is None or peer in self.receivers


@dataclass
class ExchangeContext:
    """One attempt on one node, while it goes on: what its owners and members share."""

    host: ExchangeHost
    attempt: Attempt
    """Its contribution is the one that the plan counts on, or None."""
    counters: ExchangeCounters = field(default_factory=ExchangeCounters)
    _said: set[type[ExchangeEvent]] = field(default_factory=set[type[ExchangeEvent]])

    def say_once(self, event: FirstChunkSent | FirstChunkReduced) -> None:
        if type(event) not in self._said:
            self._said.add(type(event))
            self.attempt.on_event(event)

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run CPU or disk work in the executor."""
        return await off_loop(self.host.executor, work, *args, **kwargs)

    async def write(self, stream: ByteStream, frame: Buffer) -> None:
        start_s = time.perf_counter()
        await stream.write(frame)
        self.counters.send_s += time.perf_counter() - start_s
        self.counters.count_sent(stream.remote, len(frame))

    async def write_payload(self, stream: ByteStream, payload: Buffer) -> None:
        for piece in pieces(payload, self.host.settings.frame_bytes):
            await self.write(stream, piece)

    async def read_payload(self, stream: ByteStream, num_bytes: int) -> Buffer:
        start_s = time.perf_counter()
        payload = await read_payload(stream, num_bytes)
        self.counters.wait_s += time.perf_counter() - start_s
        self.counters.count_received(stream.remote, num_bytes)
        return payload

    async def hold(self, span: int, result: SpanResult) -> None:
        """Make a complete span durable."""
        await self.off_loop(self.attempt.result.hold, self.attempt.plan.spans[span], result.digest)
