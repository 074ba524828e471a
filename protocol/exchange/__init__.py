"""The all-reduce of one round: a butterfly over framed streams, chunk by chunk, with bit-identical results.

`Exchange` carries out one plan (`Attempt`) on one node (`ExchangeHost`); `SpanInbox` is its listening side and lives as
long as the node. Results go to `results.ResultBuffer`. See ``exchange.py`` for the pattern, ``wire.py`` for the frames
and ``ledger.py`` for what happens when a member fails.
"""

from __future__ import annotations

from .context import Attempt, ExchangeHost
from .events import (
    ExchangeCounters,
    ExchangeEvent,
    ExchangeReport,
    ExchangeSettings,
    FirstChunkReduced,
    FirstChunkSent,
    MemberExcluded,
    MemberLeftOut,
    SelfExcluded,
    SpanHeld,
    SpanLost,
    SpanReduced,
)
from .exchange import Exchange, SpanInbox, check_plan

__all__ = [
    "Attempt",
    "Exchange",
    "ExchangeCounters",
    "ExchangeEvent",
    "ExchangeHost",
    "ExchangeReport",
    "ExchangeSettings",
    "FirstChunkReduced",
    "FirstChunkSent",
    "MemberExcluded",
    "MemberLeftOut",
    "SelfExcluded",
    "SpanHeld",
    "SpanInbox",
    "SpanLost",
    "SpanReduced",
    "check_plan",
]
