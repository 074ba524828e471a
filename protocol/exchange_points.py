"""What an exchange's events are in the journal: of a round's exchange, and of a group's."""

from __future__ import annotations

from dataclasses import asdict

from . import exchange as xchg
from .exchange import ExchangeEvent
from .outcomes import Observe


def journal(event: ExchangeEvent, observe: Observe) -> None:
    """Tell ``observe`` of an event that somebody may want to read about."""
    match event:
        case xchg.SpanLost():
            observe("exchange.lost", {"peer": event.owner, "span": event.span, "why": event.why})
        case xchg.MemberExcluded():
            observe("exchange.excluded", _exclusion(event))
        case xchg.MemberLeftOut():
            observe("exchange.left_out", asdict(event))
        case xchg.SelfExcluded():
            observe("exchange.excluded", {"peer": event.owner, "rule": "self", "why": event.why})
        case xchg.FirstChunkSent():
            observe("exchange.sending", {"span": event.span})
        case xchg.FirstChunkReduced():
            observe("exchange.reducing", {"span": event.span})
        case _:
            pass


def _exclusion(event: xchg.MemberExcluded) -> dict[str, object]:
    fields: dict[str, object] = {"peer": event.peer, "rule": event.rule, "why": event.detail or event.rule}
    if event.value is not None:
        fields |= {"value": event.value, "limit": event.limit}
    return fields
