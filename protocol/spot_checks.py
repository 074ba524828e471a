"""Spot checks of inner steps: now and then a member recomputes what another one says that it has trained.

Everything that a contribution depends on is known or committed to: the anchor and the lease, how many steps (in the
plan), the learning rate (in the rules), and the inner optimizer's state at the round's start, of which `Member` names
the digest. Each member that owns a span draws in private, with chance ``trust.spot_checks`` a round, one other member:

1. With the plan it keeps a copy of the anchor and asks the member for its inner state (`inner_states`).
2. When the round is decided it takes a few chunks of the member's contribution out of its own span: these were checked
   against the commitment when they came, and nobody knows which ones they are.
3. A process of its own recomputes the steps, and the chunks are compared: cosine, ratio of norms, tokens.
4. With the next plan it asks for the state that the member goes on with: that must be where the steps have led. Or a
   member could claim a state from which any contribution follows.

A breach is a signed `Suspicion` that goes to everybody but the accused; what follows from it is `suspicions`' matter.
Not showing one's state is a breach after several times in a row. Nothing here delays a round or is part of its
decisions; who owns no span (a home) checks nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from . import inner_states
from .chunks import Contribution, span_chunks
from .evidence import included_members
from .exchange import Exchange, ExchangeHost
from .identity import Identity, PeerId
from .inner_states import InnerStateServer, NotShown
from .offload import off_loop
from .outcomes import Observe
from .recomputer import Recomputer, Work
from .record import Member, Plan, Record
from .replica import Replica
from .spec import Genesis
from .suspicions import Breach, Suspicion, Suspicions, Verdict, breach_of, may_hide, recheck_chance
from .tasks import Background
from .transport import Buffer, PeerUnreachable, RemoteProtocolError, StreamClosed

T = TypeVar("T")
NUM_CHUNKS = 16
"""Of a contribution that are compared."""


@dataclass
class _Case:
    """One member under examination."""

    plan: Plan
    member: Member
    rules: Genesis
    first_sample: int
    sample: asyncio.Future[dict[int, Buffer]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Chunk -> its encoding, once the round is decided; none if the member's contribution is not in it."""
    following: asyncio.Future[Path | str | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """What the member begins the next round with, or why it does not show it; None if it takes no part in that."""
    fetching: asyncio.Task[None] | None = None
    """Of what the member begins the next round with."""
    paths: set[Path] = field(default_factory=set[Path])
    """Files to remove in the end."""
    record: str = ""

    @property
    def peer(self) -> PeerId:
        return self.member.peer

    @property
    def round(self) -> int:
        return self.plan.round


class SpotChecks:
    """One node's checks of others, its answers to theirs, and what is suspected of whom.

    ``post`` (peers, suspicion) tells others; ``convict`` takes a verdict. Without a ``recomputer`` this node checks
    nobody and shows nothing, but hears what others suspect.
    """

    def __init__(
        self,
        host: ExchangeHost,
        genesis: Genesis,
        *,
        identity: Identity,
        replica: Replica,
        folder: Path,
        lease_samples: int,
        recomputer: Recomputer | None,
        observe: Observe,
        post: Callable[[Sequence[PeerId], Suspicion], object],
    ) -> None:
        self._identity, self._genesis, self._grid, self._transport = identity, genesis, host.grid, host.transport
        self._executor, self._replica, self._folder = host.executor, replica, folder
        self._lease_samples, self._recomputer = lease_samples, recomputer
        self._observe, self._post = observe, post
        self._random: random.Random = random.SystemRandom()
        self.convict: Callable[[Verdict], object] = lambda _: None
        self.suspicions = Suspicions(self._me)
        self._round, self._planned = 0, 0
        self._exchanges: dict[str, Exchange] = {}
        self._case: _Case | None = None
        self._background = Background()
        self._server = None
        for left in folder.glob("*"):  # by an earlier process
            left.unlink(missing_ok=True)
        if recomputer is not None and genesis.trust.spot_checks:
            self._server = InnerStateServer(
                host.transport, host.executor, lambda: replica.standing.roster, recomputer.sizes
            )

    @property
    def _me(self) -> PeerId:
        return self._identity.peer_id

    # --- the rounds ---------------------------------------------------------------------------------------------------

    def begin(self, genesis: Genesis) -> None:
        """A round begins (again)."""
        self._genesis, self._round = genesis, self._replica.head_round + 1
        self._exchanges.clear()
        self._planned = 0
        self.suspicions.forget_old(self._round, self._replica.standing.roster)
        case = self._case
        if case is not None and self._round != case.round:
            _settle(case.sample, {})  # unless it was taken
            if self._round != case.round + 1 and case.fetching is None:
                _settle(case.following, None)

    def show(self, contribution: Contribution) -> None:
        """Before anybody hears of a contribution: whoever asks may see what its steps began with."""
        if contribution.inner_state and self._server is not None and self._recomputer is not None:
            self._server.show(contribution.inner_state, self._recomputer.own_state(contribution.round))

    def planned(self, exchange: Exchange) -> None:
        """This node takes part in an attempt. Only the first of a round decides whether somebody is checked."""
        plan = exchange.plan
        self._exchanges[exchange.plan_id] = exchange
        if self._server is None or self._recomputer is None or plan.round == self._planned:
            return
        self._planned = plan.round
        if self._case is not None:
            self._follow(self._case, self._recomputer, plan)
        elif (member := self._choose(plan)) is not None:
            place = self._replica.standing.roster.index(member.peer)
            first = self._replica.standing.data_cursor + place * self._lease_samples
            self._case = _Case(plan, member, self._genesis, first)
            self._background.spawn(self._examine(self._case, self._recomputer))

    def decided(self, record: Record) -> None:
        """The round is over, and what was received in it is about to be forgotten: take what is to be compared."""
        case, plan = self._case, record.plan
        exchange = self._exchanges.get(plan.content_id())
        if case is not None and case.round == plan.round and exchange is not None:
            case.record = record.content_id()
            _settle(case.sample, self._taken(exchange, record, case.member))

    def hear(self, suspicion: Suspicion, sender: PeerId) -> None:
        """Another member suspects somebody."""
        if suspicion.accuser != sender or suspicion.lineage != self._genesis.lineage or sender == self._me:
            raise RemoteProtocolError(sender, "suspicion", "not its own, or of another lineage")
        self._note(suspicion)

    async def close(self) -> None:
        """End what goes on, without an outcome."""
        await self._background.close()

    # --- whom, and what of it -----------------------------------------------------------------------------------------

    def _choose(self, plan: Plan) -> Member | None:
        """Whom to check in this round: who did not show its state last time, whom others suspect, or anybody."""
        others = {member.peer: member for member in plan.members if member.peer != self._me}
        if not others or all(span.owner != self._me for span in plan.spans):
            return None
        hiding = [peer for peer in self.suspicions.num_hidden if peer in others]
        suspects = [peer for peer in self.suspicions.to_recheck(plan.round) if peer in others]
        if hiding:
            return others[self._random.choice(hiding)]
        if suspects and self._random.random() < recheck_chance(self._genesis, len(plan.roster)):
            return others[self._random.choice(suspects)]
        if self._random.random() < self._genesis.trust.spot_checks:
            return others[self._random.choice(list(others))]
        return None

    def _follow(self, case: _Case, recomputer: Recomputer, plan: Plan) -> None:
        """Ask at once for what a member under examination goes on with: in some rounds it is not there any more."""
        if plan.round == case.round + 1 and case.fetching is None:
            member = next((member for member in plan.members if member.peer == case.peer), None)
            if member is None:
                _settle(case.following, None)
            else:
                case.fetching = self._background.spawn(self._fetch_following(case, recomputer, member))

    async def _fetch_following(self, case: _Case, recomputer: Recomputer, member: Member) -> None:
        try:
            found = await self._obtain(case, member, recomputer)
            if isinstance(found, str):
                await asyncio.sleep(self._genesis.timing.heartbeat_interval_s)
                found = await self._obtain(case, member, recomputer)
        except OSError:  # our own disk: nobody's fault
            found = None
        _settle(case.following, found)

    def _taken(self, exchange: Exchange, record: Record, member: Member) -> dict[int, Buffer]:
        """Chunks of the member's contribution that this node has averaged, drawn at random; none if it is not in."""
        plan = record.plan
        if member not in plan.members:
            return {}
        place = plan.members.index(member)
        spans = [i for i, span in enumerate(plan.spans) if span.owner == self._me]
        spans = [i for i in spans if place in included_members(record.results[i])]
        chunks = [chunk for i in spans for chunk in span_chunks(self._grid, plan.spans[i])]
        drawn = sorted(self._random.sample(chunks, min(NUM_CHUNKS, len(chunks))))
        parts = {chunk: exchange.exhibit(chunk)[place] for chunk in drawn}
        return {chunk: part.data for chunk, part in parts.items() if part is not None}

    # --- one check ----------------------------------------------------------------------------------------------------

    async def _examine(self, case: _Case, recomputer: Recomputer) -> None:
        try:
            await self._check(case, recomputer)
        except OSError as error:
            self._observe("spot.failed", {"peer": case.peer, "why": error.strerror or str(error)})
        finally:
            self._case = None
            if case.fetching is not None:
                case.fetching.cancel()
            for path in case.paths:
                path.unlink(missing_ok=True)

    async def _check(self, case: _Case, recomputer: Recomputer) -> None:
        if case.member.inner_state == "" and may_hide(case.peer, self._parent_of(case)):
            return
        if not await recomputer.keep_anchor(case.round - 1):
            return
        state = await self._obtain(case, case.member, recomputer)
        sample = await case.sample
        if not sample:
            return  # its contribution is not part of the result
        if isinstance(state, str):  # it had reasons, perhaps: now it has time
            state = await self._obtain(case, case.member, recomputer)
        if isinstance(state, str):
            self._note_hidden(case, state)
            return
        breach = await self._compare(case, recomputer, state, sample)
        if breach is not None:
            self._suspect(case, breach)

    async def _compare(
        self, case: _Case, recomputer: Recomputer, state: Path, sample: dict[int, Buffer]
    ) -> Breach | None:
        member, chunks = case.member, tuple(sample)
        work = Work(case.rules, case.round, member.peer, case.first_sample, member.num_inner_steps, chunks, state)
        found = await recomputer.recompute(work)
        if found is None:
            self._observe("spot.failed", {"peer": case.peer, "why": "the steps could not be recomputed here"})
            return None
        case.paths.add(found.end)
        if found.fault:
            return Breach(rule="state", value=0.0, limit=1.0)
        products = await off_loop(self._executor, self._products, sample, found.encoded)
        breach = breach_of(products, member.tokens, found.num_tokens, case.rules.trust)
        if breach is None:
            await self._check_following(case, recomputer, found.end)
        return breach

    def _products(self, sample: dict[int, Buffer], recomputed: Sequence[Buffer]) -> tuple[float, float, float]:
        """⟨x, y⟩, ⟨x, x⟩ and ⟨y, y⟩ over the sampled chunks."""
        sums = [0.0, 0.0, 0.0]
        for (chunk, x), y in zip(sample.items(), recomputed, strict=True):
            length = self._grid.chunk_length(chunk)
            for index, (left, right) in enumerate(((x, y), (x, x), (y, y))):
                sums[index] += self._grid.codec.dot(left, right, length)
        return sums[0], sums[1], sums[2]

    async def _check_following(self, case: _Case, recomputer: Recomputer, end: Path) -> None:
        """Whether the member goes on from where its steps have led. If it does not, it may have a reason: once."""
        state = await case.following
        if isinstance(state, str):
            self._note_hidden(case, state)
            return
        if state is not None:
            value = await off_loop(self._executor, recomputer.continuity, end, state)
            if value is not None and value < case.rules.trust.min_continuity:
                self._note_hidden(case, f"it does not go on from where its steps have led (cosine {value:.3f})")
                return
            self.suspicions.note_shown(case.peer)
        self._pass(case)

    async def _obtain(self, case: _Case, member: Member, recomputer: Recomputer) -> Path | str:
        """Where the state is now that the member begins a round with, or why it is not."""
        digest, sizes = member.inner_state, recomputer.sizes
        if not digest:
            return "it says that it has nothing to show"
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{digest}.state"
        case.paths.add(path)
        try:
            await inner_states.fetch(self._transport, self._executor, member.peer, digest, sizes, path)
        except (PeerUnreachable, StreamClosed) as error:
            return error.why
        except NotShown as error:
            return str(error)
        return path

    def _parent_of(self, case: _Case) -> Record | None:
        commits = self._replica.commits(case.round - 1, 1) if case.round > 1 else ()
        return commits[0].record if commits else None

    # --- what follows -------------------------------------------------------------------------------------------------

    def _pass(self, case: _Case) -> None:
        self._observe("spot.passed", {"peer": case.peer, "checked_round": case.round})
        for accuser in self.suspicions.note_passed(case.peer, case.round):
            count = self.suspicions.num_unconfirmed[accuser]
            fields = {"rule": "unconfirmed suspicion", "value": count, "why": f"of …{case.peer[-5:]}"}
            self._observe("spot.unconfirmed", {"peer": accuser, **fields})

    def _note_hidden(self, case: _Case, why: str) -> None:
        breach = self.suspicions.note_hidden(case.peer)
        count = self.suspicions.num_hidden[case.peer]
        self._observe("spot.hidden", {"peer": case.peer, "rule": "hidden", "why": why, "count": count})
        if breach is not None:
            self._suspect(case, breach)

    def _suspect(self, case: _Case, breach: Breach) -> None:
        if case.rules.lineage != self._genesis.lineage:
            return  # what was trained in it is forgotten
        self.suspicions.note_breach(case.peer)
        suspicion = Suspicion(
            lineage=self._genesis.lineage,
            round=case.round,
            record=case.record,
            accused=case.peer,
            accuser=self._me,
            breach=breach,
        ).signed(self._identity)
        self._note(suspicion)
        roster = self._replica.standing.roster
        self._post([peer for peer in roster if peer not in (self._me, case.peer)], suspicion)

    def _note(self, suspicion: Suspicion) -> None:
        roster, accused = self._replica.standing.roster, suspicion.accused
        if not self.suspicions.add(suspicion, self._replica.head_round + 1, roster):
            return
        breach = suspicion.breach
        fields = {"by": suspicion.accuser, "rule": breach.rule, "value": breach.value, "limit": breach.limit}
        self._observe("spot.suspected", {"peer": accused, **fields})
        verdict = self.suspicions.verdict(accused, self._genesis, roster)
        if verdict is not None:
            self.convict(verdict)


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)
