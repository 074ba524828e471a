"""The world: nodes, the network between them, and what each node's round machine asks for carried out.

`World.run` follows the clock. Everything random is drawn from one seeded generator, and nothing depends on the order of
a set or on hashes, so a seed replays a run exactly. Faults are methods, for schedules; `passes` and `on_action` are
hooks, for tests that strike at one message or one moment. `mail`, `heartbeats` and `exchanges` move what nodes say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, assert_never

from ..grace import NUM_ROUNDS
from ..identity import PeerId
from ..messages import Commit, Message, Ready
from ..round_machine import (
    Acceptor,
    Action,
    CancelExchange,
    Contributed,
    Decide,
    Event,
    FetchResults,
    GiveUp,
    PeerView,
    Persist,
    Phase,
    Received,
    ResultsHeld,
    Rules,
    Send,
    StartExchange,
    Tick,
    Woke,
    advance,
    begin,
    pace_of,
)
from ..spec import Genesis
from ..standing import Standing
from ..transport import RemoteProtocolError
from .checks import Checks
from .clock import Clock, Work
from .exchanges import Exchanges
from .heartbeats import Heartbeats
from .mail import Mail
from .network import Link, Network, NetworkModel
from .nodes import Node, digest, state_hash

_MAX_INBOX = 4096
"""Messages that a suspended node's sockets hold; later ones are lost."""


class World(Clock):
    """A swarm of nodes. `run` follows the clock; `pick` lets a test choose what happens next, in any order.

    ``amnesia`` makes restarted nodes forget their votes and ``rules_type`` replaces the rules: seeded bugs that the
    checks must find. ``loss``, ``duplication`` and ``latency_s`` are a short way to say a `NetworkModel`.
    ``contribution_bytes`` is the size of one encoded pseudo-gradient, ``state_bytes`` what a newcomer downloads.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        seed: int = 0,
        network: NetworkModel | None = None,
        loss: float = 0.0,
        duplication: float = 0.0,
        latency_s: tuple[float, float] = (0.01, 0.1),
        amnesia: bool = False,
        rules_type: type[Rules] = Rules,
        num_chunks: int = 8,
        contribution_bytes: float = 0.0,
        state_bytes: float = 0.0,
        lease_samples: int = 10,
    ) -> None:
        super().__init__()
        self.genesis = genesis
        self.random = random.Random(seed)
        model = network or NetworkModel(latency_s=latency_s, loss=loss, duplication=duplication)
        self.network = Network(model, self.random)
        self.nodes = {peer: Node(peer) for peer in genesis.membership.roster}
        self.set_network(model)
        self.checks = Checks()
        self.rejected: list[RemoteProtocolError] = []
        """Messages that a node refused. Stays empty unless somebody misbehaves: honest nodes break no rule."""
        self.passes: Callable[[PeerId, PeerId, Message], bool] = lambda _sender, _receiver, _body: True
        """Whether a message gets through; tests cut links here."""
        self.on_action: Callable[[Node, Action], None] = lambda _node, _action: None
        """Called before an action is performed; tests crash nodes here."""
        self.on_begin: Callable[[Node], None] = lambda _node: None
        """Called when a node begins a round, or goes on with one after a restart; trainers start here."""
        self.on_give_up: Callable[[Node, int], None] = lambda _node, _tokens: None
        """Called when a contribution is withdrawn, with its tokens."""
        self.on_decide: Callable[[Node, Commit], None] = lambda _node, _commit: None
        """Called when a node learns that a round is decided."""
        self._amnesia, self._rules_type = amnesia, rules_type
        self._num_chunks, self._lease_samples, self._state_bytes = num_chunks, lease_samples, state_bytes
        self._exchanges = Exchanges(self, contribution_bytes, num_chunks)
        self.mail, self.heartbeats = self._make_mail(), Heartbeats(self)
        for number, peer in enumerate(self.nodes):
            self.start(peer)
            self.heartbeats.begin(peer, number)

    def _make_mail(self) -> Mail:
        return Mail(self)

    @property
    def decided(self) -> dict[tuple[int, int], str]:
        """Lineage and round → record id, the first time somebody decides."""
        return self.checks.decided

    # --- faults -------------------------------------------------------------------------------------------------------

    def crash(self, peer: PeerId) -> None:
        """The process is gone at once; what is on its disk stays."""
        node = self.nodes[peer]
        if node.is_up:
            node.up_s += self.now - node.started_s
        node.state, node.is_asleep, node.inbox, node.early, node.heard = None, False, [], {}, {}
        self.network.release(peer, self.now)

    def start(self, peer: PeerId) -> None:
        """Start or restart a node from its disk."""
        node = self.nodes[peer]
        if node.is_up:
            node.up_s += self.now - node.started_s
        node.num_starts, node.started_s = node.num_starts + 1, self.now
        if self._amnesia:
            node.disk.acceptors.clear()
        self._begin(node, {})

    def sleep(self, peer: PeerId) -> None:
        """Suspend the process, as a laptop's lid or SIGSTOP does: it neither hears, says nor notices anything."""
        node = self.nodes[peer]
        if node.is_running:
            node.is_asleep, node.slept_since_s = True, self.now

    def wake(self, peer: PeerId) -> None:
        """Let a suspended process go on, with what came meanwhile."""
        node = self.nodes[peer]
        if not node.is_asleep:
            return
        node.is_asleep = False
        inbox, node.inbox = node.inbox, []
        if self.now - node.slept_since_s > self.genesis.timing.heartbeat_timeout_s:
            self.feed(node, Woke())
        for event in inbox:
            self.mail.take(node, event)
        self.feed(node, Tick())

    def jump_clock(self, peer: PeerId, by_s: float) -> None:
        """Set a node's clock forward or back at once."""
        self.nodes[peer].clock_offset_s += by_s

    def partition(self, *groups: Iterable[PeerId]) -> None:
        """Only peers of one group hear each other, until `heal`."""
        self.network.partition(*groups)

    def heal(self) -> None:
        """No link is cut any more."""
        self.network.heal()

    def set_link(self, peer: PeerId, link: Link) -> None:
        """Reconnect a peer with another line from now on."""
        self.network.set_link(peer, link)
        self.nodes[peer].reachable = not link.is_dial_out_only

    def set_network(self, model: NetworkModel) -> None:
        """Another network from now on, with nothing cut."""
        self.network.replace(model)
        for peer, node in self.nodes.items():
            node.reachable = not self.network.link_of(peer).is_dial_out_only

    def join(self, peer: PeerId) -> None:
        """A peer outside the roster appears and downloads the state; then it can be admitted."""
        node = self.nodes[peer] = Node(peer, reachable=not self.network.link_of(peer).is_dial_out_only)
        donor = max((other for other in self.nodes.values() if other.is_running), key=_progress, default=None)
        if donor is None or not donor.disk.commits:
            self._enter(node, None)
            return
        share = self._state_bytes / len(self.nodes)
        due_s = max(self.network.book(other, peer, share, self.now) for other in self.nodes if other != peer)
        self.at(due_s, self._enter, node, donor)

    def _enter(self, node: Node, donor: Node | None) -> None:
        if donor is not None:
            node.disk.commits = list(donor.disk.commits)
        self.start(node.peer)
        self.heartbeats.begin(node.peer, len(self.nodes) - 1)

    # --- running ------------------------------------------------------------------------------------------------------

    def contribute(self, peer: PeerId, tokens: int = 1000, num_inner_steps: int = 0, tokens_per_s: float = 0.0) -> None:
        """The node's inner steps are done."""
        node = self.nodes[peer]
        state = node.state
        if state is None or node.is_asleep or state.phase is Phase.DECIDED or state.ready is not None:
            return
        rules = state.rules
        ready = node.behaviour.contributes(
            Ready(
                round=rules.round,
                parent=rules.parent,
                parent_state=rules.parent_state,
                tokens=tokens,
                commitment=self.commitment_of(node, rules),
                num_inner_steps=num_inner_steps,
                life=node.num_starts,
                tokens_per_s=tokens_per_s,
            )
        )
        if ready is not None:
            node.offered_tokens = tokens
            self.feed(node, Contributed(ready))

    def commitment_of(self, node: Node, rules: Rules) -> str:
        """Stands for the bytes of what a node contributes now."""
        return digest(node.peer, rules.round, self.now)

    def feed(self, node: Node, event: Event) -> None:
        """Give an event to a machine and perform what it asks for."""
        if node.state is None:
            return
        if node.is_asleep:
            if len(node.inbox) < _MAX_INBOX or not isinstance(event, Received):
                node.inbox.append(event)
            return
        if node.heard:
            node.state = node.state.renewed(node.heard)
            node.heard = {}
        try:
            node.state, actions = advance(node.state, event, self.now + node.clock_offset_s)
        except RemoteProtocolError as error:
            self.rejected.append(error)
            return
        for action in actions:
            self.on_action(node, action)
            if not node.is_up:
                return  # crashed between two actions
            self.perform(node, action)
            if not node.is_up:
                return

    def later(self, work: Work, delay_s: float | None = None) -> None:
        """Do something after ``delay_s``, by default a latency."""
        delay_s = self.random.uniform(*self.network.model.latency_s) if delay_s is None else delay_s
        self.at(self.now + delay_s, work)

    def connects(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether a stream from one to the other moves."""
        return self.network.connects(sender, receiver)

    def rules_of(self, node: Node) -> Rules:
        """The rules of the round that a node works on."""
        return self._rules_type(**self._facts_of(node))

    def _facts_of(self, node: Node) -> dict[str, Any]:
        commits = node.disk.commits
        return {
            "genesis": self.genesis,
            "me": node.peer,
            "standing": Standing.after(commits[-1]) if commits else Standing.of_genesis(self.genesis),
            "parent_state": state_hash(commits),
            "lease_samples": self._lease_samples,
            "num_chunks": self._num_chunks,
            "open_vote": self.checks.open_vote,
            "recent": tuple(node.paces[-NUM_ROUNDS:]),
        }

    def _begin(self, node: Node, peers: dict[PeerId, PeerView]) -> None:
        node.heard = {}
        rules = self.rules_of(node)
        acceptor = node.disk.acceptors.get(rules.round, Acceptor())
        node.state = begin(rules, acceptor, peers, self.now + node.clock_offset_s)
        if acceptor.accepted is not None and (plan_id := acceptor.accepted.record.plan.content_id()) in node.disk.held:
            self.feed(node, ResultsHeld(plan_id, node.disk.held[plan_id]))
        early, node.early = node.early, {}
        for event in early.values():
            self.mail.take(node, event)
        if node.is_up:
            self.on_begin(node)

    def deliver(self, receiver: PeerId, event: Received) -> None:
        """A message has come through the network."""
        node = self.nodes[receiver]
        if node.is_asleep:
            self.feed(node, event)
        elif node.is_up:
            self.mail.take(node, event)

    # --- actions ------------------------------------------------------------------------------------------------------

    def perform(self, node: Node, action: Action) -> None:
        """Carry out what a machine asks for."""
        match action:
            case Persist(acceptor):
                node.disk.acceptors[node.round] = acceptor
            case Send(to, message):
                self.mail.post(node, to, message)
            case StartExchange(plan):
                self._exchanges.start(node, plan)
            case FetchResults(record):
                self._exchanges.fetch(node, record)
            case Decide(commit):
                self._decide(node, commit)
            case GiveUp(reason):
                node.given_up.append(reason)
                self.on_give_up(node, node.offered_tokens)
            case CancelExchange(plan_id):
                self._exchanges.cancel(node, plan_id)
            case _:
                assert_never(action)

    def _decide(self, node: Node, commit: Commit) -> None:
        """Apply a commit once its bytes are here, and begin the next round. By S2, somebody can serve them."""
        self.checks.check_decision(commit)
        self.on_decide(node, commit)
        self._exchanges.obtain(node, commit.record, lambda: self._apply(node, commit))

    def _apply(self, node: Node, commit: Commit) -> None:
        node.disk.commits.append(commit)
        peers = {} if node.state is None else dict(node.state.peers)
        if node.state is not None and (pace := pace_of(node.state)) is not None:
            node.paces.append(pace)
        self._begin(node, peers)


def _progress(node: Node) -> int:
    return len(node.disk.commits)
