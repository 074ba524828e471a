"""The rules of the run at every simulated node: how amendments spread, when they are in force, and new lineages.

Decisions are `amendments`', `recovery`'s and `rule_book`'s; what is done about them here, `round_loop`, `rule_changes`
and `amending` do at a real node. Signatures of amendments are real.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..amending import parsed
from ..amendments import Amendment, InvalidAmendment, RunRules
from ..changes import Change
from ..identity import Identity, PeerId
from ..messages import Amendments, AmendmentsRequest, Heartbeat
from ..recovery import Recovery, Sight, lacks_signatures
from ..round_machine import PeerView, Received, live_roster
from ..rule_book import RuleBook
from ..spec import Genesis
from .charter import Charter
from .nodes import Node, identity_of, state_hash

if TYPE_CHECKING:
    from .faulty import FaultySwarm


_LAST_ROUND = 10**9


class SignedOnDisk:
    """`recovery.SignedResets` on a simulated disk."""

    def __init__(self, resets: MutableMapping[int, str]) -> None:
        self._resets = resets

    def known(self) -> MutableMapping[int, str]:
        return self._resets

    def note(self, number: int, digest: str) -> None:
        self._resets[number] = digest


class Statutes:
    """Of one swarm. A node's rules are on its disk; `adopt` puts new ones in force."""

    def __init__(self, swarm: FaultySwarm, charter: Charter) -> None:
        self._swarm, self._charter = swarm, charter
        self._recoveries: dict[PeerId, Recovery] = {}
        self._identities: dict[PeerId, Identity] = {}
        self.deaf: set[PeerId] = set()
        """Peers that no amendments get through to at present."""

    # --- what holds ---------------------------------------------------------------------------------------------------

    def rules_of(self, node: Node) -> RunRules:
        return node.disk.rules or self._charter.first

    def genesis_of(self, node: Node) -> Genesis:
        """The rules of the round that a node works on, as far as it knows."""
        return self.rules_of(node).at(node.round) if node.state is None else node.state.rules.genesis

    def facts_of(self, node: Node) -> dict[str, Any]:
        """What the rules say of `Rules` for the node's round."""
        rules, number, commits = self.rules_of(node), node.round, node.disk.commits
        possible = tuple(rules.possible(number)) if rules.amendments else (rules.genesis,)
        standing = rules.standing(commits[-1] if commits else None)
        return {"genesis": possible[0], "alternatives": possible[1:], "standing": standing}

    # --- how they spread ----------------------------------------------------------------------------------------------

    def hear(self, node: Node, sender: PeerId, heartbeat: Heartbeat) -> bool:
        """A peer says how many amendments it knows; whether it is asked for them."""
        is_ahead = heartbeat.num_amendments > len(self.rules_of(node).amendments)
        if is_ahead:
            self._ask(node, sender)
        return is_ahead

    def mind_the_gap(self, node: Node, sender: PeerId, lineage: int) -> None:
        """A message of another lineage: whoever is in the older one has missed an amendment."""
        if lineage > node.disk.lineage:
            self._ask(node, sender)
        else:
            self._swarm.heartbeats.say_to(node, sender)  # then it asks

    def _ask(self, node: Node, peer: PeerId) -> None:
        self._post(node, (peer,), AmendmentsRequest(first=len(self.rules_of(node).amendments) + 1))

    def _post(self, node: Node, to: Iterable[PeerId], body: Amendments | AmendmentsRequest) -> None:
        self._swarm.mail.post(node, [peer for peer in to if peer != node.peer], body)

    def take(self, node: Node, event: Received) -> None:
        """A question is answered; what is new is checked and put in force."""
        match event.body:
            case AmendmentsRequest() as request if request.first <= len(self.rules_of(node).amendments):
                texts = RuleBook(self.rules_of(node)).texts(request.first)
                self._post(node, (event.sender,), Amendments(amendments=texts))
            case Amendments() as message if node.peer not in self.deaf:
                self.learn(node, parsed(event.sender, message.amendments).amendments)
            case _:
                pass

    def learn(self, node: Node, amendments: tuple[Amendment, ...]) -> None:
        """As `rule_changes.RuleChanges.learn`."""
        rules, newest = self.rules_of(node), amendments[-1] if amendments else None
        if newest is not None and node.state is not None and lacks_signatures(rules, newest):
            amendments = amendments[:-1]
            sight, recovery = self._sight(node), self._recoveries[node.peer]
            if recovery.is_lost(node.state.rules.genesis, has_quorum=sight.has_quorum):
                self._send_reset(node, recovery.cosign(newest, sight))
        try:
            rules = self.rules_of(node).extended(amendments)
        except InvalidAmendment:
            return
        if rules.head != self.rules_of(node).head:
            self.adopt(node, rules)

    # --- resets by delegates ------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """The process is new; it has lost no quorum yet."""
        if node.peer not in self._charter.genesis.recovery.delegates:
            return
        identity = self._identities.setdefault(node.peer, self._identity_of(node.peer))
        self._recoveries[node.peer] = Recovery(
            identity, SignedOnDisk(node.disk.signed_resets), lambda: self._swarm.now + node.clock_offset_s
        )

    def _identity_of(self, peer: PeerId) -> Identity:
        return identity_of(self._swarm.people.index(peer) + 1)

    def tick(self, node: Node) -> None:
        """As `rule_changes.RuleChanges.recover`."""
        recovery, state = self._recoveries.get(node.peer), node.state
        if recovery is None or state is None:
            return
        genesis, sight = state.rules.genesis, self._sight(node)
        is_lost = recovery.is_lost(genesis, has_quorum=sight.has_quorum)
        if is_lost and recovery.is_my_turn(genesis, sight.live):
            self._send_reset(node, recovery.propose(sight))

    def _send_reset(self, node: Node, amendment: Amendment | None) -> None:
        """Enough signatures: it holds. Else the other delegates are asked for theirs."""
        if amendment is None:
            return
        rules = self.rules_of(node)
        if lacks_signatures(rules, amendment):
            message = Amendments(amendments=(amendment.canonical().decode(),))
            self._post(node, rules.genesis.recovery.delegates, message)
        else:
            self.learn(node, (amendment,))

    def _sight(self, node: Node) -> Sight:
        state = node.state
        assert state is not None
        now, timeout_s = self._swarm.now + node.clock_offset_s, state.rules.genesis.timing.heartbeat_timeout_s
        live = live_roster(state, now)
        ahead = (view for view in state.peers.values() if view.heartbeat and view.heartbeat.round >= node.round)
        return Sight(
            rules=self.rules_of(node),
            standing=state.rules.standing,
            state_hash=state_hash(node.disk.commits),
            live=live,
            has_quorum=state.rules.quorum.reached(set(live)),
            is_level=not any(now - view.heard_s <= timeout_s for view in ahead),
        )

    # --- in force -----------------------------------------------------------------------------------------------------

    def issue(self, peer: PeerId, change: Change, from_round: int) -> Amendment | None:
        """Operators sign a change at a peer's node, if it runs and their tool lets them.

        Where delegates may sign too, they only do while everybody is there and hears of it at once: two amendments of
        one number would divide the run for good, which is said in `docs/round.md`.
        """
        node, swarm = self._swarm.nodes[peer], self._swarm
        if node.state is None or not self.is_heard(node):
            return None
        receivers = [node]
        if self._charter.genesis.recovery.delegates:
            admits, now = node.state.rules.standing.admits, self._charter.rules.at(node.round)
            receivers = [other for other in swarm.nodes.values() if admits(now, other.peer)]
            heads = {self.rules_of(other).head for other in receivers}
            if heads != {self._charter.rules.head} or not all(other.is_running for other in receivers):
                return None
        amendment = self._charter.issue(change, from_round, node.round, node.state.rules.roster)
        if amendment is not None:
            for receiver in receivers:
                self.learn(receiver, self._charter.rules.amendments)
        return amendment

    def publish_again(self) -> None:
        """What only peers know that all others shut out (a ban lifted where it was not forgotten) spreads no more.

        Operators see that it is not in force, and give it to one of the others.
        """
        head, nodes = self._charter.rules.head, self._swarm.nodes.values()
        lacking = [node for node in nodes if node.is_running and self.rules_of(node).head != head]
        knowing = [node.peer for node in nodes if node.is_running and self.rules_of(node).head == head]
        if lacking and not any(self._lets_in(node, peer) for node in lacking for peer in knowing):
            self.learn(lacking[0], self._charter.rules.amendments)

    def _lets_in(self, node: Node, peer: PeerId) -> bool:
        return node.state is not None and node.state.rules.standing.admits(node.state.rules.genesis, peer)

    def is_heard(self, node: Node) -> bool:
        """Whether a node runs and the others let it in, so that operators had better sign there."""
        if not node.is_running or node.state is None:
            return False
        rules = self._charter.rules.at(_LAST_ROUND)  # a ban may be signed and not yet in force
        return node.state.rules.standing.admits(rules, node.peer) and node.peer not in self._swarm.courts.guilty

    def adopt(self, node: Node, rules: RunRules) -> None:
        """Put new rules in force: for this round at once, as `round_loop.RoundLoop` does."""
        before = self.rules_of(node)
        rules = self._charter.shared(rules)
        self._charter.absorb(rules)
        node.disk.rules, node.disk.lineage = rules, rules.lineage
        self._swarm.num_writes += 1
        if rules.lineage != before.lineage:
            self._change_lineage(node, rules)
        elif rules.at(node.round).rules_id != before.at(node.round).rules_id:
            self._begin_anew(node)
        self._note(node)

    def _begin_anew(self, node: Node) -> None:
        state = node.state
        if state is None or state.decided is not None:
            return  # the next round begins under the new rules
        self._swarm.cancel_attempt(node)
        self._swarm.begin_round(node, dict(state.peers))

    def _change_lineage(self, node: Node, rules: RunRules) -> None:
        """Leave the present lineage. Nothing that was said in it counts in the new one."""
        state, fork, commits = node.state, rules.fork, node.disk.commits
        self._swarm.cancel_attempt(node)
        self._swarm.leave_lineage(node)
        node.disk.acceptors = {}
        node.early = {}
        if fork is not None and len(commits) > fork.round and not rules.is_present(commits[fork.round]):
            del commits[fork.round :]
        views = {} if state is None else {**state.peers, **node.heard}
        self._swarm.begin_round(node, {peer: _without_words(view) for peer, view in views.items()})

    def _note(self, node: Node) -> None:
        node.progress["num_amendments"] = len(self.rules_of(node).amendments)


def _without_words(view: PeerView) -> PeerView:
    return replace(view, heartbeat=None)
