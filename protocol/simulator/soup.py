"""The soup: a priority queue of everything that will happen, and what a node's machine asks for carried out in it."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..grace import NUM_ROUNDS
from ..identity import PeerId
from ..messages import (
    Commit,
    CommitRequest,
    Heartbeat,
    InvalidMessage,
    Message,
    Plan,
    Ready,
    Record,
    SpanResult,
    Vote,
    round_of,
)
from ..round_machine import (
    Acceptor,
    Action,
    CancelExchange,
    Contributed,
    Decide,
    Event,
    ExchangeEnded,
    FetchResults,
    GiveUp,
    PeerView,
    Persist,
    Phase,
    Received,
    ResultsHeld,
    Rules,
    Send,
    SpanLost,
    SpanReduced,
    StartExchange,
    Tick,
    advance,
    begin,
    pace_of,
)
from ..spec import Genesis
from ..standing import Standing
from ..transport import RemoteProtocolError
from .nodes import Node, Violation, digest

MAX_WAITS = 20
"""How often an owner looks again for contributions before it goes on without them."""


Work: TypeAlias = Callable[[], None]


@dataclass(order=True)
class Pending:
    """Something that will happen: a delivery, a timer, the end of a transfer."""

    due_s: float
    number: int
    work: Work = field(compare=False)


class Soup:
    """A swarm of nodes. `run` follows the clock; `pick` lets a test choose what happens next, in any order.

    ``loss`` and ``duplication`` are probabilities per message. ``amnesia`` makes restarted nodes forget their votes and
    ``rules_type`` replaces the rules: seeded bugs that the checks must find.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        seed: int = 0,
        loss: float = 0.0,
        duplication: float = 0.0,
        latency_s: tuple[float, float] = (0.01, 0.1),
        amnesia: bool = False,
        rules_type: type[Rules] = Rules,
        num_chunks: int = 8,
    ) -> None:
        self.genesis = genesis
        self.now = 0.0
        self.random = random.Random(seed)
        self.loss, self.duplication, self.latency_s = loss, duplication, latency_s
        self.nodes = {peer: Node(peer) for peer in genesis.membership.roster}
        self.pending: list[Pending] = []
        self.decided: dict[int, str] = {}
        """Round → record id, the first time somebody decides."""
        self.rejected: list[RemoteProtocolError] = []
        """Messages that a node refused. Stays empty unless a bug was seeded: honest nodes break no rule."""
        self.passes: Callable[[PeerId, PeerId, Message], bool] = lambda _sender, _receiver, _body: True
        """Whether a message gets through; tests cut links here."""
        self.on_action: Callable[[Node, Action], None] = lambda _node, _action: None
        """Called before an action is performed; tests crash nodes here."""
        self._amnesia, self._rules_type, self._num_chunks = amnesia, rules_type, num_chunks
        self._numbers = itertools.count()
        self._said: set[tuple[PeerId, int, int, str]] = set()
        """Votes that were truly given: voter, round, ballot, record."""
        for peer in self.nodes:
            self.start(peer)
            self._beat(peer)

    # --- faults -------------------------------------------------------------------------------------------------------

    def crash(self, peer: PeerId) -> None:
        self.nodes[peer].state = None

    def start(self, peer: PeerId) -> None:
        """Start or restart a node from its disk."""
        node = self.nodes[peer]
        if self._amnesia:
            node.disk.acceptors.clear()
        self._begin(node, {})

    # --- running ------------------------------------------------------------------------------------------------------

    def join(self, peer: PeerId) -> None:
        """A peer outside the roster appears, with the genesis state on its disk."""
        self.nodes[peer] = Node(peer)
        self.start(peer)
        self._beat(peer)

    def run(self, duration_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Follow the clock; returns whether ``until`` came true."""
        end_s = self.now + duration_s
        while self.pending and self.pending[0].due_s <= end_s:
            if until():
                return True
            item = heapq.heappop(self.pending)
            self.now = max(self.now, item.due_s)
            item.work()
        self.now = max(self.now, end_s)
        return until()

    def pick(self, index: int) -> None:
        """Let any pending thing happen now, whatever its time."""
        item = self.pending.pop(index % len(self.pending))
        heapq.heapify(self.pending)
        item.work()

    def contribute(self, peer: PeerId, tokens: int = 1000, tokens_per_s: float = 0.0) -> None:
        """The node's inner steps are done."""
        state = self.nodes[peer].state
        if state is None or state.phase is not Phase.TRAINING or state.ready is not None:
            return
        rules = state.rules
        commitment = digest(peer, rules.round, self.now)
        ready = Ready(
            round=rules.round,
            parent=rules.parent,
            parent_state=rules.parent_state,
            tokens=tokens,
            tokens_per_s=tokens_per_s,
            commitment=commitment,
        )
        self.feed(self.nodes[peer], Contributed(ready))

    def feed(self, node: Node, event: Event) -> None:
        """Give an event to a machine and perform what it asks for."""
        if node.state is None:
            return
        try:
            node.state, actions = advance(node.state, event, self.now)
        except RemoteProtocolError as error:
            self.rejected.append(error)
            return
        for action in actions:
            if not node.is_up:
                return  # crashed between two actions
            self.on_action(node, action)
            if node.is_up:
                self.perform(node, action)

    def later(self, work: Work, delay_s: float | None = None) -> None:
        delay_s = self.random.uniform(*self.latency_s) if delay_s is None else delay_s
        heapq.heappush(self.pending, Pending(self.now + delay_s, next(self._numbers), work))

    def _begin(self, node: Node, peers: dict[PeerId, PeerView]) -> None:
        commits = node.disk.commits
        rules = self._rules_type(
            genesis=self.genesis,
            me=node.peer,
            standing=Standing.after(commits[-1]) if commits else Standing.of_genesis(self.genesis),
            parent_state=self.state_hash(commits),
            lease_samples=10,
            num_chunks=self._num_chunks,
            open_vote=self._open_vote,
            recent=tuple(node.paces[-NUM_ROUNDS:]),
        )
        node.arrived.clear()
        node.state = begin(rules, node.disk.acceptors.get(rules.round, Acceptor()), peers, self.now)
        for plan_id, digests in list(node.disk.held.items()):
            self.feed(node, ResultsHeld(plan_id, digests))

    def state_hash(self, commits: list[Commit]) -> str:
        """Stands for the hash of the weights after ``commits``."""
        return digest(*(commit.record.content_id() for commit in commits[-1:]), len(commits))

    def _beat(self, peer: PeerId) -> None:
        """Heartbeat and tick, for ever."""
        node, interval_s = self.nodes[peer], self.genesis.timing.heartbeat_interval_s
        self.later(lambda: self._beat(peer), interval_s / 2)
        if node.state is None:
            return
        applied = len(node.disk.commits)
        body = Heartbeat.model_validate(
            {
                "round": applied,
                "state_hash": self.state_hash(node.disk.commits),
                "phase": node.phase,
                "reachable": node.reachable,
                **node.progress,
            }
        )
        for receiver in self.nodes:
            self._post(peer, receiver, body)
        self.feed(node, Tick())

    # --- actions ------------------------------------------------------------------------------------------------------

    def perform(self, node: Node, action: Action) -> None:
        match action:
            case Persist(acceptor):
                node.disk.acceptors[node.round] = acceptor
            case Send(to, message):
                for receiver in to:
                    self._post(node.peer, receiver, message)
            case StartExchange(plan):
                self._start_exchange(node, plan)
            case FetchResults(record):
                self._fetch(node, record)
            case Decide(commit):
                self._decide(node, commit)
            case GiveUp(reason):
                node.given_up.append(reason)
            case CancelExchange():
                pass

    def _post(self, sender: PeerId, receiver: PeerId, body: Message) -> None:
        if receiver not in self.nodes:
            return
        if isinstance(body, Vote):
            self._check_vote(sender, body)
        if receiver == sender:
            self.later(lambda: self._deliver(sender, receiver, body), 0.0)
            return
        if not self.passes(sender, receiver, body):
            return
        num_copies = 0 if self.random.random() < self.loss else 1 + (self.random.random() < self.duplication)
        for _ in range(num_copies):
            self.later(lambda: self._deliver(sender, receiver, body))

    def _deliver(self, sender: PeerId, receiver: PeerId, body: Message) -> None:
        node = self.nodes[receiver]
        if not node.is_up:
            return
        if isinstance(body, CommitRequest):
            if body.round < node.round:
                self._post(receiver, sender, node.disk.commits[body.round - 1])
        elif isinstance(body, Heartbeat) or round_of(body) == node.round:
            raw = f"{sender} {body.model_dump_json()}".encode()
            self.feed(node, Received(sender, body, raw))

    def _start_exchange(self, node: Node, plan: Plan) -> None:
        plan_id = plan.content_id()
        for index, span in enumerate(plan.spans):
            if span.owner == node.peer:
                self.later(lambda index=index: self._reduce(node, plan, plan_id, index))
            else:
                self.later(
                    lambda index=index: self._miss(node, plan, plan_id, index),
                    self.genesis.timing.progress_timeout_s,
                )

    def _reduce(self, node: Node, plan: Plan, plan_id: str, index: int, num_waits: int = 0) -> None:
        if not self._is_in(node, plan_id):
            return
        if num_waits < MAX_WAITS and not all(self._sends(member.peer, plan_id) for member in plan.members):
            self.later(lambda: self._reduce(node, plan, plan_id, index, num_waits + 1))
            return
        included = tuple(member.peer == node.peer or self._sends(member.peer, plan_id) for member in plan.members)
        result = SpanResult(plan=plan_id, span=index, included=included, digest=digest(plan_id, index, included))
        self.feed(node, SpanReduced(result))
        for member in plan.members:
            self.later(lambda peer=member.peer: self._arrive(self.nodes[peer], plan, plan_id, result))

    def _arrive(self, node: Node, plan: Plan, plan_id: str, result: SpanResult) -> None:
        """A span's mean reaches a member and is durable there."""
        if not self._is_in(node, plan_id) or not self.nodes[plan.spans[result.span].owner].is_up:
            return
        node.arrived[plan_id, result.span] = result
        results = [node.arrived.get((plan_id, index)) for index in range(len(plan.spans))]
        digests = tuple(result.digest for result in results if result is not None)
        if len(digests) == len(plan.spans):
            node.disk.held[plan_id] = digests
            self.feed(node, ResultsHeld(plan_id, digests))
            self.feed(node, ExchangeEnded(plan_id))

    def _miss(self, node: Node, plan: Plan, plan_id: str, index: int) -> None:
        if self._is_in(node, plan_id) and (plan_id, index) not in node.arrived:
            self.feed(node, SpanLost(plan_id, index, "no progress"))

    def _is_in(self, node: Node, plan_id: str) -> bool:
        attempt = None if node.state is None else node.state.attempt
        return attempt is not None and attempt.plan_id == plan_id

    def _sends(self, peer: PeerId, plan_id: str) -> bool:
        return self._is_in(self.nodes[peer], plan_id)

    def _fetch(self, node: Node, record: Record) -> None:
        plan_id, wanted = record.plan.content_id(), tuple(result.digest for result in record.results)
        if node.state is None or node.state.rules.round != record.plan.round:
            return
        if any(other.is_up and other.disk.held.get(plan_id) == wanted for other in self.nodes.values()):
            node.disk.held[plan_id] = wanted
            self.feed(node, ResultsHeld(plan_id, wanted))
        else:
            self.later(lambda: self._fetch(node, record), 1.0)

    def _decide(self, node: Node, commit: Commit) -> None:
        """Apply a commit (whose bytes, by S2, somebody can serve) and begin the next round."""
        self.check_decision(commit)
        node.disk.commits.append(commit)
        peers = {} if node.state is None else dict(node.state.peers)
        if node.state is not None and (pace := pace_of(node.state)) is not None:
            node.paces.append(pace)
        self._begin(node, peers)

    # --- properties ---------------------------------------------------------------------------------------------------

    def _check_vote(self, voter: PeerId, vote: Vote) -> None:
        """S2: a vote is only given for results that are durably held."""
        accepted = self.nodes[voter].disk.acceptors[vote.round].accepted
        if accepted is None or (accepted.ballot, accepted.record.content_id()) != (vote.ballot, vote.record):
            raise Violation(f"{voter} voted for something else than its disk says")
        digests = tuple(result.digest for result in accepted.record.results)
        if self.nodes[voter].disk.held.get(accepted.record.plan.content_id()) != digests:
            raise Violation(f"{voter} voted without holding the results")
        self._said.add((voter, vote.round, vote.ballot, vote.record))

    def check_decision(self, commit: Commit) -> None:
        """S1: one record per round. S2: its certificate holds only votes that were given, of more than half."""
        number, record_id = commit.record.plan.round, commit.record.content_id()
        if self.decided.setdefault(number, record_id) != record_id:
            raise Violation(f"round {number} has decided two records")
        voters = {self._open_vote(raw)[0] for raw in commit.votes}
        if any((voter, number, commit.ballot, record_id) not in self._said for voter in voters):
            raise Violation(f"round {number}'s certificate holds a vote that nobody gave")
        if 2 * len(voters) < len(commit.record.plan.roster):
            raise Violation(f"round {number} was decided by {len(voters)} votes")

    def _open_vote(self, raw: str) -> tuple[PeerId, Vote]:
        sender, _, body = bytes.fromhex(raw).decode().partition(" ")
        vote = Vote.model_validate_json(body)
        if (sender, vote.round, vote.ballot, vote.record) not in self._said:
            raise InvalidMessage("a forged vote")
        return PeerId(sender), vote
