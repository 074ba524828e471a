"""A node's part in two-tier rounds, as delegate or as follower, for the round driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..chunks import Contribution
from ..identity import PeerId
from ..messages import (
    Commit,
    Enlist,
    Group,
    GroupPlan,
    GroupResult,
    GroupResultCopy,
    GroupResultRequest,
    GroupWithdrawn,
    Message,
    Ready,
    Seat,
)
from ..outcomes import Aborted, Outcome
from ..pending import Pending
from ..round_machine import Phase
from ..spec import Genesis
from ..topology import Topology
from ..transport import Transport
from . import circle
from .counting import account, flags_of
from .follower import Follower
from .host import Host
from .parts import GroupParts
from .places import Place
from .probe import ProbeServer
from .seat_store import PartStore, SeatStore

Spoken = Enlist | Seat | GroupPlan | GroupResult | GroupResultRequest | GroupResultCopy | GroupWithdrawn
"""What only peers of two-tier rounds say to each other."""


class Groups(Topology):
    """Of runs with ``exchange.topology = "two_tier"``."""

    def __init__(self, parts: GroupParts, transport: Transport, pending: Pending, folder: Path) -> None:
        super().__init__(parts.me, parts.replica)
        self._parts = parts
        self._genesis: Genesis | None = None
        self._host = Host(parts, SeatStore(folder / "seats.json"))
        self._follower = Follower(parts, transport, pending, PartStore(folder / "parts.json"))
        ProbeServer(transport)

    # --- where this node stands ---------------------------------------------------------------------------------------

    @property
    def is_delegate(self) -> bool:
        return self._parts.me in self._parts.replica.standing.roster

    @property
    def place(self) -> Place | None:
        return super().place if self.is_delegate else self._follower.place

    @property
    def phase(self) -> Phase | None:
        if not self.is_delegate:
            return self._follower.phase
        return Phase.READY if self._host.is_gathering else None

    @property
    def group(self) -> Group | None:
        if self.is_delegate:
            return Group(delegate=self._parts.me, num_peers=1 + len(self._host.followers))
        delegate = self._follower.delegate
        return None if delegate is None else Group(delegate=delegate, num_peers=2 + len(self._follower.group))

    def circle(self) -> tuple[PeerId, ...]:
        """Whom this node speaks to unasked."""
        parts, genesis = self._parts, self._genesis
        roster, peers = parts.replica.standing.roster, parts.peers.all
        if self.is_delegate and genesis is not None:
            found = circle.of_delegate(roster, peers, parts.clock(), genesis.timing.heartbeat_timeout_s)
        elif self._follower.delegate is not None:
            found = circle.of_follower(self._follower.delegate, self._follower.group)
        else:
            found = circle.of_seeker(roster, peers, self._turn())
        return tuple(peer for peer in found if peer != parts.me)

    def _turn(self) -> int:
        """A peer without a group speaks to other delegates every other heartbeat."""
        interval_s = 2.0 if self._genesis is None else 2 * self._genesis.timing.heartbeat_interval_s
        return int(self._parts.clock() / interval_s)

    # --- a round ------------------------------------------------------------------------------------------------------

    async def begin(self, genesis: Genesis) -> None:
        self._genesis = genesis
        if self.is_delegate:
            self._follower.leave()
            await self._host.begin(genesis)
        else:
            self._host.leave()
            self._follower.begin(genesis)

    def tick(self) -> None:
        self._follower.tick()

    async def gather(self, own: Contribution) -> Contribution:
        if self.is_delegate:
            return await self._host.gather(own)
        return own

    def diverts(self, contribution: Contribution) -> bool:
        if not self.is_delegate:
            self._follower.offer(contribution)
        return not self.is_delegate

    async def settled(self, outcome: Outcome) -> None:
        if self.is_delegate:
            await self._host.end()
            if isinstance(outcome, Aborted):
                self._host.withdraw(outcome.reason)

    def decided(self, commit: Commit) -> None:
        """Followers hear of it from their delegates."""
        plan = commit.record.plan
        if self._parts.me in plan.roster:
            others = [peer for peer in self.circle() if peer not in plan.roster]
            self._parts.mail.post(others, commit)

    def sources(self, span: int, waited_s: float) -> Sequence[PeerId]:
        return () if self.is_delegate else self._follower.sources(span, waited_s)

    async def counted(self, commit: Commit) -> tuple[bool, ...]:
        self._parts.store.prune(commit.record)
        self._note_counted(commit)
        me = self._parts.me
        if me in commit.record.plan.roster:
            return flags_of(account(commit, me, me, self._parts.ledger.records()), commit)
        return await self._follower.account(commit)

    def _note_counted(self, commit: Commit) -> None:
        records = self._parts.ledger.records()
        for member in commit.record.plan.members:
            if (record := records.get(member.commitment)) is not None:
                self._parts.reduction.counted(record.plan)

    # --- what others say ----------------------------------------------------------------------------------------------

    def takes(self, sender: PeerId, body: Message) -> bool:
        if isinstance(body, Ready):
            return sender not in self._parts.replica.standing.roster
        return isinstance(body, Spoken)

    def hear(self, sender: PeerId, body: Message, raw: bytes) -> None:
        match body:
            case Enlist() | Ready():
                self._host.hear(sender, body)
            case Seat() | GroupPlan() | GroupWithdrawn():
                self._follower.hear(sender, body)
            case GroupResult():
                self._follower.learn(sender, body, raw)
            case GroupResultRequest():
                self._answer(sender, body)
            case GroupResultCopy():
                self._follower.learn_copy(sender, body.round, bytes.fromhex(body.envelope))
            case _:
                pass

    def _answer(self, sender: PeerId, request: GroupResultRequest) -> None:
        envelope = self._parts.ledger.envelope(request.commitment)
        if envelope is not None:
            copy = GroupResultCopy(round=request.round, envelope=envelope.hex())
            self._parts.mail.post((sender,), copy)

    async def close(self) -> None:
        await self._host.close()
        await self._follower.close()
