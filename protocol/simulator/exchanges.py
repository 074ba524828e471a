"""The bulk transfers of a simulated round: one event per span and peer for contributions, and one for results.

Bytes are symbolic (a result is its digest), times come from the network's bandwidth model. Chunks of a span are
reduced as they come, so contributions and results share the links from the start: a result is booked when its owner
begins, and arrives when its bytes have passed the links, but not before the last contribution has reached the owner.

An owner waits for a member as long as that member's stream moves; without progress for ``progress_timeout_s`` it goes
on without it. A member gives an owner up in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ..identity import PeerId
from ..record import Plan, Record, SpanResult
from ..round_machine import ExchangeEnded, ResultsHeld, SpanLost, SpanReduced
from .nodes import Node, digest

if TYPE_CHECKING:
    from .world import World

STALL_S = 1.0
"""How often a stalled transfer is tried again."""
T = TypeVar("T")


@dataclass
class SpanWork:
    """One owner's work on one of its spans. Forgotten when the owner crashes or is told to stop."""

    stalled_since_s: dict[PeerId, float]
    """Of members whose stream does not move: since when, as the owner knows."""
    arrived: set[PeerId] = field(default_factory=set[PeerId])
    given_up: set[PeerId] = field(default_factory=set[PeerId])
    due_s: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """When the results have passed the links to each member."""
    result: SpanResult | None = None


@dataclass
class Part:
    """One member's part in an exchange. A restart or a cancellation makes it void; its round's end does not."""

    node: Node
    num_starts: int
    has_contribution: bool
    """Whether it still has what the plan says it committed to; a restarted member has not."""
    owner_starts: list[int]
    """`Node.num_starts` of each span's owner when the streams were opened: a restart breaks them."""
    stalled_since_s: dict[int, float]
    """Of spans whose owner's stream does not move: since when, as the member knows."""
    results: dict[int, SpanResult] = field(default_factory=dict[int, SpanResult])
    lost: set[int] = field(default_factory=set[int])
    is_cancelled: bool = False
    on_end: Callable[[], None] | None = None
    """Called when every span is here or lost: a decided round waits for its bytes."""

    @property
    def is_current(self) -> bool:
        """Whether the member has neither crashed nor been told to stop since."""
        return not self.is_cancelled and self.node.is_up and self.num_starts == self.node.num_starts


@dataclass
class Exchange:
    """All parts of one plan's all-reduce."""

    plan: Plan
    plan_id: str
    parts: dict[PeerId, Part] = field(default_factory=dict[PeerId, Part])
    work: dict[int, SpanWork] = field(default_factory=dict[int, SpanWork])
    early: dict[int, list[Part]] = field(default_factory=dict[int, list[Part]])
    """Contributions to a span whose owner has not begun."""

    def part_of(self, peer: PeerId) -> Part | None:
        """The peer's part, if it is still in this exchange."""
        part = self.parts.get(peer)
        return part if part is not None and part.is_current else None


class Exchanges:
    """Performs `StartExchange` and `FetchResults` in a world."""

    def __init__(self, world: World, contribution_bytes: float, num_chunks: int) -> None:
        self._world = world
        self._bytes_per_chunk = contribution_bytes / num_chunks
        self._running: dict[str, Exchange] = {}

    # --- all-reduce ---------------------------------------------------------------------------------------------------

    def start(self, node: Node, plan: Plan) -> None:
        """A member begins: it sends its spans to their owners, and serves those that it owns."""
        plan_id, owners = plan.content_id(), [span.owner for span in plan.spans]
        self._forget_before(plan.round)
        exchange = self._running.setdefault(plan_id, Exchange(plan, plan_id))
        part = exchange.parts[node.peer] = self._part_of(node, plan)
        for index in _rotated(range(len(owners)), node.peer, owners):
            if owners[index] != node.peer:
                self._send_contribution(exchange, part, index)
        for index, owner in enumerate(owners):
            if owner == node.peer:
                self._own(exchange, part, index)
        self._world.at(self._world.now + self._patience_s, self._watch_owners, exchange, part)

    def cancel(self, node: Node, plan_id: str) -> None:
        """A member stops; what it holds, it keeps."""
        exchange = self._running.get(plan_id)
        if exchange is not None and node.peer in exchange.parts:
            exchange.parts[node.peer].is_cancelled = True
            self._world.network.release(node.peer, self._world.now)

    def _part_of(self, node: Node, plan: Plan) -> Part:
        ready = None if node.state is None else node.state.ready
        commitments = {member.peer: member.commitment for member in plan.members}
        return Part(
            node,
            node.num_starts,
            has_contribution=ready is not None and ready.commitment == commitments.get(node.peer),
            owner_starts=[self._world.nodes[span.owner].num_starts for span in plan.spans],
            stalled_since_s=dict.fromkeys(range(len(plan.spans)), self._world.now),
        )

    def _forget_before(self, round_number: int) -> None:
        old = [plan_id for plan_id, exchange in self._running.items() if exchange.plan.round < round_number - 2]
        for plan_id in old:
            del self._running[plan_id]

    @property
    def _patience_s(self) -> float:
        return self._world.genesis.timing.progress_timeout_s

    def _span_bytes(self, plan: Plan, index: int) -> float:
        return plan.spans[index].num_chunks * self._bytes_per_chunk

    def _send_contribution(self, exchange: Exchange, part: Part, index: int) -> None:
        world, peer, owner = self._world, part.node.peer, exchange.plan.spans[index].owner
        num_bytes = self._span_bytes(exchange.plan, index) if part.has_contribution else 0.0
        world.at(world.network.book(peer, owner, num_bytes, world.now), self._arrive, exchange, part, index)
        work = exchange.work.get(index)
        if work is not None and work.result is not None:  # it comes late: the mean is made, without it
            self._send_result(exchange, index, peer)

    def _own(self, exchange: Exchange, part: Part, index: int) -> None:
        """Book the mean's way to every member, and begin to wait for contributions."""
        world, owner = self._world, part.node.peer
        members = [member.peer for member in exchange.plan.members]
        work = exchange.work[index] = SpanWork(dict.fromkeys(members, world.now))
        for peer in _rotated(members, owner, members):
            if peer != owner:
                work.due_s[peer] = world.network.book(owner, peer, self._span_bytes(exchange.plan, index), world.now)
        self._take(exchange, part, part, index)
        for early in exchange.early.pop(index, ()):
            world.at(world.now, self._arrive, exchange, early, index)
        if work.result is None:
            world.at(world.now + self._patience_s, self._watch_members, exchange, part, index)

    def _arrive(self, exchange: Exchange, part: Part, index: int) -> None:
        """A contribution's last byte reaches a span's owner, unless the stream is broken or stands still."""
        owner = self._world.nodes[exchange.plan.spans[index].owner]
        if not part.is_current or owner.num_starts != part.owner_starts[index]:
            return
        owner_part = exchange.part_of(owner.peer)
        if owner_part is None:  # the plan has not reached it yet: its stream waits for it
            exchange.early.setdefault(index, []).append(part)
        elif self._moves(part.node, owner):
            self._take(exchange, owner_part, part, index)
        else:
            self._world.at(self._world.now + STALL_S, self._arrive, exchange, part, index)

    def _take(self, exchange: Exchange, owner: Part, member: Part, index: int) -> None:
        work, peer = exchange.work[index], member.node.peer
        if peer not in work.given_up:
            (work.arrived if member.has_contribution else work.given_up).add(peer)
            self._try_reduce(exchange, owner, index)

    def _moves(self, sender: Node, receiver: Node) -> bool:
        return sender.is_running and receiver.is_running and self._world.connects(sender.peer, receiver.peer)

    def _try_reduce(self, exchange: Exchange, part: Part, index: int) -> None:
        """With every contribution that can be had, the mean is made."""
        work, plan = exchange.work[index], exchange.plan
        if work.result is not None or len(work.arrived) + len(work.given_up) < len(plan.members):
            return
        included = tuple(member.peer in work.arrived for member in plan.members)
        if not any(member.tokens for member, flag in zip(plan.members, included, strict=True) if flag):
            return  # nothing to average: the others report the span as lost
        mean = digest(exchange.plan_id, index, included)
        honest = SpanResult(plan=exchange.plan_id, span=index, included=included, digest=mean)
        work.result = part.node.behaviour.reduces(honest)
        self._world.feed(part.node, SpanReduced(work.result))
        for member in plan.members:
            self._send_result(exchange, index, member.peer)

    def _watch_members(self, exchange: Exchange, part: Part, index: int) -> None:
        """An owner gives up the members that have not moved for too long."""
        work, world = exchange.work[index], self._world
        if work.result is not None or not part.is_current:
            return
        missing = [member.peer for member in exchange.plan.members if member.peer not in work.arrived | work.given_up]
        for peer in missing:
            sender = exchange.part_of(peer)
            is_open = sender is not None and sender.owner_starts[index] == part.num_starts  # else to our former process
            if sender is not None and is_open and self._moves(sender.node, part.node):
                work.stalled_since_s.pop(peer, None)
            elif world.now - work.stalled_since_s.setdefault(peer, world.now) >= self._patience_s:
                work.given_up.add(peer)
        self._try_reduce(exchange, part, index)
        world.at(world.now + self._patience_s / 2, self._watch_members, exchange, part, index)

    # --- results ------------------------------------------------------------------------------------------------------

    def _send_result(self, exchange: Exchange, index: int, peer: PeerId) -> None:
        owner = exchange.plan.spans[index].owner
        if peer == owner:
            self._world.at(self._world.now, self._receive, exchange, index, peer)
            return
        latest_s = self._world.now + self._world.network.latency_s(owner, peer)
        self._world.at(max(latest_s, exchange.work[index].due_s.get(peer, 0.0)), self._receive, exchange, index, peer)

    def _receive(self, exchange: Exchange, index: int, peer: PeerId) -> None:
        """A span's mean reaches a member and is durable there."""
        part, work = exchange.part_of(peer), exchange.work[index]
        owner_part = exchange.part_of(exchange.plan.spans[index].owner)
        if part is None or owner_part is None or index in part.results or work.result is None:
            return
        served: SpanResult | None = work.result
        if part is not owner_part:
            is_moving = self._moves(owner_part.node, part.node)
            served = owner_part.node.behaviour.serves(work.result, peer) if is_moving else None
        if served is None:  # as long as the link is cut, or the owner keeps it to itself
            self._world.at(self._world.now + STALL_S, self._receive, exchange, index, peer)
            return
        part.results[index] = served
        part.lost.discard(index)
        self._try_end(exchange, part)

    def _try_end(self, exchange: Exchange, part: Part) -> None:
        num_spans = len(exchange.plan.spans)
        if len(part.results) == num_spans:
            digests = tuple(part.results[index].digest for index in range(num_spans))
            part.node.disk.held[exchange.plan_id] = digests
            self._world.feed(part.node, ResultsHeld(exchange.plan_id, digests))
        if len(part.results) + len(part.lost) == num_spans:
            self._world.feed(part.node, ExchangeEnded(exchange.plan_id))
            if part.on_end is not None:
                part.on_end()

    def _watch_owners(self, exchange: Exchange, part: Part) -> None:
        """A member looks which owners have not moved for too long."""
        if not part.is_current or len(part.results) == len(exchange.plan.spans):
            return
        for index, span in enumerate(exchange.plan.spans):
            if index not in part.results and index not in part.lost and self._is_stuck(exchange, part, index):
                part.lost.add(index)
                self._world.feed(part.node, SpanLost(exchange.plan_id, index, f"no progress from …{span.owner[-5:]}"))
        if part.lost:
            self._try_end(exchange, part)
        self._world.at(self._world.now + self._patience_s / 2, self._watch_owners, exchange, part)

    def _is_stuck(self, exchange: Exchange, part: Part, index: int) -> bool:
        """Whether an owner's stream is broken, or has not moved for ``progress_timeout_s``."""
        owner = self._world.nodes[exchange.plan.spans[index].owner]
        if owner.num_starts != part.owner_starts[index]:
            return True
        if self._serves(exchange, owner, part, index):
            part.stalled_since_s.pop(index, None)
            return False
        since_s = part.stalled_since_s.setdefault(index, self._world.now)
        return self._world.now - since_s >= self._patience_s

    def _serves(self, exchange: Exchange, owner: Node, part: Part, index: int) -> bool:
        """Whether an owner is at work and does not keep the mean to itself."""
        if exchange.part_of(owner.peer) is None or not self._moves(owner, part.node):
            return False
        work = exchange.work[index]
        if len(work.given_up) == len(exchange.plan.members):
            return False  # nothing to average: there will be no mean
        result = work.result
        return result is None or owner.behaviour.serves(result, part.node.peer) is not None

    # --- fetching -----------------------------------------------------------------------------------------------------

    def obtain(self, node: Node, record: Record, done: Callable[[], None]) -> None:
        """Get the bytes of a decided record, from its own exchange if that still runs; then ``done``, once."""
        exchange = self._running.get(record.plan.content_id())
        part = None if exchange is None else exchange.part_of(node.peer)
        is_running = part is not None and len(part.results) + len(part.lost) < len(record.plan.spans)
        if part is not None and is_running:
            part.on_end = lambda: self.fetch(node, record, done)
        else:
            self.fetch(node, record, done)

    def fetch(self, node: Node, record: Record, done: Callable[[], None] | None = None) -> None:
        """Get a record's results by digest from whoever has them; asks again until they are here or not wanted."""
        if node.state is None or node.state.rules.round != record.plan.round:
            return
        if _holds(node, record):
            self._give(node, record, done)
            return
        donor = self._donor_of(node, record)
        if donor is None:
            self._world.at(self._world.now + STALL_S, self.fetch, node, record, done)
            return
        num_bytes = sum(span.num_chunks for span in record.plan.spans) * self._bytes_per_chunk
        due_s = self._world.network.book(donor.peer, node.peer, num_bytes, self._world.now)
        self._world.at(due_s, self._fetched, node, donor, record, node.num_starts, done)

    def _donor_of(self, node: Node, record: Record) -> Node | None:
        """Who holds a record's results and reaches us: the one whose uplink is free the soonest."""
        willing = (other for other in self._world.nodes.values() if _holds(other, record) and other.behaviour.donates)
        moving = [other for other in willing if self._moves(other, node)]
        return min(moving, key=lambda other: self._world.network.busy_until_s(other.peer), default=None)

    def _fetched(
        self, node: Node, donor: Node, record: Record, num_starts: int, done: Callable[[], None] | None
    ) -> None:
        is_wanted = node.state is not None and node.state.rules.round == record.plan.round
        if num_starts != node.num_starts or not is_wanted:
            return
        if not _holds(donor, record) or not self._moves(donor, node):
            self.fetch(node, record, done)
            return
        self._give(node, record, done)

    def _give(self, node: Node, record: Record, done: Callable[[], None] | None) -> None:
        node.disk.held[record.plan.content_id()] = _digests(record)
        if done is not None:
            done()
        else:
            self._world.feed(node, ResultsHeld(record.plan.content_id(), _digests(record)))


def _digests(record: Record) -> tuple[str, ...]:
    return tuple(result.digest for result in record.results)


def _holds(node: Node, record: Record) -> bool:
    """Whether the record's results are on the node's disk."""
    return node.disk.held.get(record.plan.content_id()) == _digests(record)


def _rotated(items: Sequence[T], me: PeerId, owners: Sequence[PeerId]) -> list[T]:
    """``items`` beginning after our own place, so that not everybody begins with the same receiver."""
    start = owners.index(me) + 1 if me in owners else sum(map(ord, me)) % max(1, len(owners))
    return [*items[start:], *items[:start]]
