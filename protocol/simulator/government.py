"""What operators and accusers do in a fault schedule, begun and undone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from ..amendments import Amendment
from ..changes import Allow, Ban, Change, LearningRate, Limits, Pause, Reset, Resume, Rollback, Timing
from ..identity import PeerId
from .faults import Accuse, Amend, AmendedRule, BanPeer, DeafToRules, Forge, PauseRun, RollBack
from .faulty import FaultySwarm
from .nodes import Node, identity_of, state_hash

Order: TypeAlias = Amend | Forge | PauseRun | BanPeer | RollBack | DeafToRules | Accuse
_TRY_AGAIN_S = 1.0


class Government:
    """Of one run. After `heal` no peer is banned, nothing is paused, and everybody hears of it."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        self._owed: list[tuple[Change, int]] = []
        """Changes that undo others, with the earliest round in which they can."""

    def begin(self, fault: Order) -> Callable[[], None] | None:
        """Carry a fault out; returns what ends it."""
        swarm, people = self._swarm, self._swarm.people
        if isinstance(fault, DeafToRules):
            deaf = {people[number] for number in fault.peers}
            swarm.statutes.deaf |= deaf
            return partial(swarm.statutes.deaf.difference_update, deaf)
        node = swarm.nodes.get(people[fault.peer])
        if node is None or not node.is_running:
            return None
        match fault:
            case Accuse():
                finder = swarm.nodes.get(people[fault.finder])
                if finder is not None and finder.is_running:
                    swarm.courts.find(finder, node.peer, is_lie=fault.is_lie)
            case Forge():
                swarm.statutes.learn(node, (self._forged(node),))
            case Amend():
                self._order(node, self._change(fault.change), fault.in_rounds)
            case RollBack():
                self._roll_back(node, fault.num_rounds)
            case PauseRun():
                return self._until_undone(self._order(node, Pause(), fault.in_rounds), Resume())
            case BanPeer():
                banned = (people[fault.banned],)
                issued = self._order(node, Ban(peers=banned), fault.in_rounds)
                return self._until_undone(issued, Allow(peers=banned))
        return None

    def heal(self) -> None:
        """No amendment is missed any more, nor one that a disk has lost, and what has been stopped goes on."""
        swarm = self._swarm
        swarm.statutes.deaf.clear()
        node = next(filter(swarm.statutes.is_heard, swarm.nodes.values()), None)
        if node is not None:
            swarm.statutes.learn(node, swarm.charter.rules.amendments)
        self._pay()

    # --- orders -------------------------------------------------------------------------------------------------------

    def _order(self, node: Node, change: Change, in_rounds: int) -> Amendment | None:
        return self._swarm.statutes.issue(node.peer, change, node.round + in_rounds)

    def _change(self, rule: AmendedRule) -> Change:
        charter = self._swarm.charter
        number = len(charter.rules.amendments)
        match rule:
            case "learning_rate":
                return LearningRate(outer=0.5 + 0.01 * number)
            case "attempt_timeout":
                return Timing(values={"attempt_timeout_s": 8.0 + number % 3})
            case "max_peers":
                return Limits(values={"max_peers": 64 + number})
            case "keys":
                return charter.rotation()

    def _roll_back(self, node: Node, num_rounds: int) -> None:
        """As the operators' tool finds it in a node's folder (`atoll run amend rollback`)."""
        statutes, charter = self._swarm.statutes, self._swarm.charter
        rules = statutes.rules_of(node)
        first = max(0, len(node.disk.commits) - num_rounds)
        if rules.head != charter.rules.head:
            return
        standing = rules.standing(node.disk.commits[first - 1] if first else None)
        roster = tuple(peer for peer in standing.roster if standing.admits(rules.at(first + 1), peer))
        change = Rollback(
            lineage=rules.lineage + 1,
            round=first,
            record=standing.record_id,
            state_hash=state_hash(node.disk.commits[:first]),
            roster=roster or standing.roster,
        )
        statutes.issue(node.peer, change, first + 1)

    def _forged(self, node: Node) -> Amendment:
        """A change by former operators, or a reset that most delegates have not signed."""
        charter, rules = self._swarm.charter, self._swarm.statutes.rules_of(node)
        delegates = rules.genesis.recovery.delegates
        if node.peer not in delegates:
            return charter.forged(LearningRate(outer=1.5), node.round)
        standing = rules.standing(node.disk.commits[-1] if node.disk.commits else None)
        reset = Reset(
            lineage=rules.lineage + 1,
            round=standing.round,
            record=standing.record_id,
            state_hash=state_hash(node.disk.commits),
            roster=(node.peer,),
        )
        signer: PeerId = node.peer if len(delegates) > 1 else self._swarm.people[-1]
        unsigned = rules.next(reset, standing.round + 1)
        return unsigned.signed(identity_of(self._swarm.people.index(signer) + 1))

    # --- undoing ------------------------------------------------------------------------------------------------------

    def _until_undone(self, issued: Amendment | None, undo: Change) -> Callable[[], None] | None:
        if issued is None:
            return None
        owed = (undo, issued.from_round)
        self._owed.append(owed)
        return self._pay

    def _pay(self) -> None:
        """Undo what is to be undone, at any node that runs; again a little later if none does, or not now."""
        swarm = self._swarm
        node = next(filter(swarm.statutes.is_heard, swarm.nodes.values()), None)
        while node is not None and self._owed:
            change, from_round = self._owed[0]
            if swarm.statutes.issue(node.peer, change, max(node.round, from_round)) is None:
                break
            del self._owed[0]
        if self._owed:
            swarm.at(swarm.now + _TRY_AGAIN_S, self._pay)
