"""What groups have reduced, as their delegates have signed it: who knows of it tells whoever has missed it."""

from __future__ import annotations

from dataclasses import dataclass

from ..envelope import Envelope, InvalidMessage
from ..identity import PeerId
from ..messages import GroupResult
from ..record import Plan, Record
from ..round_machine.validity import check_result
from ..signed_results import is_signed
from ..transport import RemoteProtocolError
from .mustering import order_of

_KEPT = 32
"""Results: of a few rounds, with a few attempts each."""


@dataclass(frozen=True)
class Entry:
    """A group's result."""

    record: Record
    envelope: bytes
    """The delegate's `GroupResult`, as it was signed."""


class GroupLedger:
    """The newest results, by the commitment to the group's mean. In memory: every peer of the group has them."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._entries: dict[str, Entry] = {}

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def records(self) -> dict[str, Record]:
        return {commitment: entry.record for commitment, entry in self._entries.items()}

    def knows(self, plan: Plan) -> bool:
        """Whether the attempt of ``plan`` has a result."""
        return any(entry.record.plan == plan for entry in self._entries.values())

    def envelope(self, commitment: str) -> bytes | None:
        entry = self._entries.get(commitment)
        return None if entry is None else entry.envelope

    def add(self, delegate: PeerId, result: GroupResult, envelope: bytes) -> None:
        """Note a result of ``delegate``; of two with equal means the later one. Raises `RemoteProtocolError`."""
        check_group_result(delegate, result)
        known = self._entries.get(result.commitment)
        if known is None or order_of(known.record.plan) < order_of(result.record.plan):
            self._entries[result.commitment] = Entry(result.record, envelope)
        if len(self._entries) > _KEPT:
            del self._entries[next(iter(self._entries))]

    def add_copy(self, sender: PeerId, raw: bytes, delegate: PeerId) -> GroupResult:
        """Note a result that ``sender`` passes on. Raises `RemoteProtocolError` of it."""
        try:
            envelope = Envelope.open(raw, run_id=self._run_id)
        except InvalidMessage as error:
            raise RemoteProtocolError(sender, "group_result_copy", str(error)) from None
        if not isinstance(envelope.body, GroupResult) or envelope.header.sender != delegate:
            raise RemoteProtocolError(sender, "group_result_copy", "not a result of the delegate")
        self.add(delegate, envelope.body, raw)
        return envelope.body


def check_group_result(delegate: PeerId, result: GroupResult) -> None:
    """Raise `RemoteProtocolError` for a result that ``delegate`` cannot have, or that its owners have not signed."""
    plan, plan_id = result.record.plan, result.record.plan.content_id()
    if plan.leader != delegate or len(result.record.results) != len(plan.spans):
        raise RemoteProtocolError(delegate, "group_result.record", "not one result per span of its own plan")
    for index, each in enumerate(result.record.results):
        check_result(plan, plan_id, each, delegate)
        if each.span != index or not is_signed(each, plan.spans[index].owner):
            raise RemoteProtocolError(delegate, "group_result.results", "not signed by the span's owner")
