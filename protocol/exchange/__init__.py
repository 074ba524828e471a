"""The all-reduce of one round: a butterfly over framed streams, chunk by chunk, with bit-identical results.

`Exchange` carries out one plan; `SpanInbox` is its listening side and lives as long as the node. Results go to
`results.ResultBuffer`. See ``exchange.py`` for the pattern, ``wire.py`` for the frames and ``ledger.py`` for what
happens when a member fails.
"""

from __future__ import annotations

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
    "Exchange",
    "ExchangeCounters",
    "ExchangeEvent",
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
