"""Liveness (L1 to L6) with explicit bounds: what is tried when every fault has healed, and what must happen in time.

Each probe brings the swarm to rest first: every node level, no contribution pending, everybody's heartbeat fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..identity import PeerId
from ..messages import Commit
from ..round_machine import Phase
from .faults import Probe
from .faulty import FaultySwarm
from .nodes import Node
from .properties import PropertyViolated, is_quorum


class LivenessProbes:
    """Runs probes on a swarm whose faults have healed. Raises `PropertyViolated` when a bound is exceeded."""

    def __init__(self, swarm: FaultySwarm) -> None:
        self._swarm = swarm
        timing = swarm.genesis.timing
        num_peers = len(swarm.people)
        patience_s = max(timing.attempt_timeout_s, timing.ready_grace_s + timing.heartbeat_timeout_s)
        self.heal_s = (
            2 * (patience_s + num_peers * timing.heartbeat_interval_s)
            + timing.quorum_timeout_s
            + timing.attempt_timeout_s
        )
        """Until everybody is level and has one round more: deadline, staggered takeovers, one repair."""
        self.learn_s = 10 * timing.heartbeat_interval_s
        """Until everybody has heard of all amendments."""
        self.repair_s = timing.attempt_timeout_s + 2 * timing.heartbeat_timeout_s + timing.progress_timeout_s
        """One death: its detection, the lost attempt, the repair."""
        self.at_once_s = 2.0 + 0.05 * num_peers
        """Everybody is ready: a few messages each way and one exchange."""
        self.grace_s = timing.ready_grace_s + self.at_once_s

    def run(self, probe: Probe) -> None:
        PROBES[probe](self)

    def _fail(self, name: str, detail: str) -> None:
        raise PropertyViolated(name, self._swarm.now, detail)

    def _expect(self, name: str, within_s: float, done: Callable[[], bool], detail: str) -> None:
        if not self._swarm.run(within_s, until=self._asked_rarely(done)):
            self._fail(name, f"{detail} within {within_s:.0f} s")

    def _asked_rarely(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """What is on disks is asked about only when some disk has changed."""
        asked_at = -1

        def is_done() -> bool:
            nonlocal asked_at
            if asked_at == self._swarm.num_writes:
                return False
            asked_at = self._swarm.num_writes
            return done()

        return is_done

    # --- states of the swarm ------------------------------------------------------------------------------------------

    @property
    def _up(self) -> list[Node]:
        return [node for node in self._swarm.nodes.values() if node.is_up]

    def _place(self, node: Node) -> tuple[int, int]:
        """Lineage, and rounds that are applied."""
        return node.disk.lineage, len(node.disk.commits)

    def _head(self) -> Node:
        """Who is furthest, in the newest lineage."""
        return max(self._up, key=self._place)

    def _newest(self) -> int:
        return self._place(self._head())[1]

    def _have(self, peers: Collection[PeerId], num_rounds: int) -> bool:
        target = (self._swarm.charter.rules.lineage, num_rounds)
        return all(self._place(self._swarm.nodes[peer]) >= target for peer in peers)

    def _roster(self) -> tuple[PeerId, ...]:
        state = self._head().state
        return state.rules.roster if state is not None else ()

    def _everybody(self) -> list[PeerId]:
        """All nodes that the run admits; who is shut out hears nothing any more."""
        head = self._head()
        if head.state is None:
            return list(self._swarm.nodes)
        genesis, standing = self._swarm.charter.rules.at(head.round), head.state.rules.standing
        return [peer for peer in self._swarm.nodes if standing.admits(genesis, peer)]

    def _is_possible(self, peers: Collection[PeerId]) -> bool:
        """Whether ``peers`` that may vote, and that nobody can prove anything of, are a quorum of the newest round."""
        place = self._place(self._head())
        states = [node.state for node in self._up if node.peer in peers and self._place(node) == place]
        voters = {state.rules.me for state in states if state is not None and not state.rules.abstain}
        lineage = self._swarm.statutes.genesis_of(self._head()).lineage
        return is_quorum(self._swarm, lineage, place[1] + 1, self._roster(), voters - self._swarm.courts.guilty)

    def settle(self) -> bool:
        """L1 and L5: whatever has happened, everybody is level again in time and a new round commits.

        False: members that must abstain, or that are proven to lie, are missing for a quorum. S1 goes before L1.
        """
        swarm = self._swarm
        swarm.run(3 * swarm.genesis.timing.heartbeat_interval_s)
        swarm.statutes.publish_again()
        self._expect("L5", self.learn_s, self._know_rules, "not everybody knows the rules in force")
        everybody, target = self._everybody(), self._newest() + 1
        if not self._is_possible(everybody) and not self._have(everybody, target):
            return False
        self._expect("L1", self.heal_s, lambda: self._have(everybody, target), f"not everybody has round {target}")
        return True

    def _know_rules(self) -> bool:
        """Whether everybody who is let in knows every amendment, and nothing that was stopped waits to go on."""
        rules, head = self._swarm.charter.rules, self._head()
        is_free = not rules.at(head.round).control.paused and not rules.at(head.round).control.banned
        nodes = (self._swarm.nodes[peer] for peer in self._everybody())
        return is_free and all(self._swarm.statutes.rules_of(node).head == rules.head for node in nodes)

    def _rest(self) -> int:
        """Hold all trainers back until nobody has anything pending; returns the last round that everybody has."""
        swarm = self._swarm
        swarm.held_back = set(swarm.people)
        swarm.run(self.heal_s, until=self._is_resting)
        if not self._is_resting():
            self._fail("L1", f"a contribution is still pending after {self.heal_s:.0f} s")
        swarm.run(3 * swarm.genesis.timing.heartbeat_interval_s)
        return self._newest()

    def _is_resting(self) -> bool:
        level = self._newest() + 1
        states = [self._swarm.nodes[peer].state for peer in self._everybody()]
        return all(
            state is not None and state.rules.round == level and state.phase is Phase.TRAINING for state in states
        )

    def _release(self, *, but: Collection[PeerId] = ()) -> None:
        """Everybody contributes now, except ``but``."""
        swarm = self._swarm
        swarm.held_back = set(but)
        for peer in swarm.people:
            if peer not in but and peer in swarm.nodes:
                swarm.contribute_now(peer)

    def _commit_of(self, number: int) -> Commit:
        return next(node.disk.commits[number - 1] for node in self._up if len(node.disk.commits) >= number)

    # --- probes -------------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """L1: two more rounds by themselves."""
        self._swarm.held_back = set()
        target, everybody = self._newest() + 2, self._everybody()
        if self._is_possible(everybody):
            self._expect("L1", 2 * self.grace_s + 10, lambda: self._have(everybody, target), f"no round {target}")

    def all_ready(self) -> None:
        """L3, and L6 for one peer: with everybody ready a round closes at once, with everybody in it."""
        head = self._rest()
        if not self._is_possible(self._everybody()):
            return
        self._release()
        self._expect("L3", self.at_once_s, lambda: self._have(self._roster_up(), head + 1), "all ready, no commit")
        self._check_counted("L3", head + 1, self._commit_of(head + 1).record.plan.roster)

    def straggler(self) -> None:
        """L2, L3: one live member is not ready; it is waited for until the grace is over, then its work is a carry."""
        head = self._rest()
        roster = [peer for peer in self._roster() if self._swarm.nodes[peer].is_up]
        if len(roster) < 3 or not self._is_possible(self._everybody()):
            return
        late = self._swarm.random.choice(roster)
        if not self._is_possible([peer for peer in roster if peer != late]):
            return
        self._release(but=(late,))
        self._expect("L2", self.grace_s + 1, lambda: self._have(roster, head + 1), "a straggler holds up everybody")
        self._check_counted("L2", head + 1, [peer for peer in roster if peer != late])

    def dead_peer(self) -> None:
        """L2 (L6 for the survivor of a pair): a death at any moment costs only its own contribution."""
        roster = [peer for peer in self._roster() if self._swarm.nodes[peer].is_up]
        self._one_dies("L2", self._swarm.random.choice(roster))

    def dead_leader(self) -> None:
        """L1: the leader dies at any moment of its round."""
        head_state = self._head().state
        self._one_dies("L1", None if head_state is None else head_state.rules.order[0])

    def _one_dies(self, name: str, victim: PeerId | None) -> None:
        head, swarm = self._rest(), self._swarm
        if not self._is_possible(self._everybody()):
            return
        if victim is None or name == "L1":
            node = self._head()
            victim = node.state.rules.leader_of(node.state.seen) if node.state is not None else node.peer
        others = [peer for peer in self._roster() if peer != victim]
        if not others:
            return
        self._release()
        swarm.run(swarm.random.choice((0.0, swarm.random.uniform(0.0, 1.0))))
        swarm.crash(victim)
        if self._is_possible(others) or self._have(others, head + 1):
            self._expect(name, self.repair_s, lambda: self._have(others, head + 1), "one death, no commit")
            self._check_counted(name, head + 1, others)
        else:
            self._say_alone(others, head)
        swarm.held_back = set()
        swarm.start(victim)
        self._expect("L1", self.heal_s, lambda: self._have(self._everybody(), head + 2), "no recovery from one death")

    def _say_alone(self, others: Collection[PeerId], head: int) -> None:
        """L5: without a quorum nobody decides, and everybody says why."""
        swarm = self._swarm
        before = {peer: len(swarm.nodes[peer].given_up) for peer in others}
        place = (swarm.charter.rules.lineage, head)
        swarm.run(swarm.genesis.timing.attempt_timeout_s + 3 * swarm.genesis.timing.heartbeat_timeout_s)
        if max(map(self._place, swarm.nodes.values())) != place:
            return  # it was decided before the death, or delegates have begun a new lineage
        # Nobody knows of a member that it abstains: with it they are a quorum, and wait for longer.
        states = [swarm.nodes[peer].state for peer in others]
        is_heard = any(state is not None and state.rules.abstain for state in states)
        for peer in others:
            state = swarm.nodes[peer].state
            is_in_doubt = state is not None and state.phase is Phase.IN_DOUBT
            if not is_in_doubt and not is_heard and len(swarm.nodes[peer].given_up) == before[peer]:
                self._fail("L5", f"…{peer[-5:]} sees no quorum and does not say so")

    def minority(self) -> None:
        """L5: who is cut off from the quorum decides nothing and says so, and adopts the lineage's state afterwards."""
        head, swarm = self._rest(), self._swarm
        roster = list(self._roster())
        swarm.random.shuffle(roster)
        few = roster[: max(1, (len(roster) - 1) // 2)]
        many = [peer for peer in roster if peer not in few]
        if not self._is_possible(many) or len(roster) < 3 or self._may_reset(few):
            return
        swarm.network.cut = {pair for a in few for b in swarm.people if b not in few for pair in ((a, b), (b, a))}
        self._release()
        swarm.held_back = set()
        self._say_alone(few, head)
        if any(len(swarm.nodes[peer].disk.commits) > head for peer in few):
            self._fail("L5", "a minority decides")
        if not self._have(many, head + 1):
            self._fail("L1", "the majority does not go on without the minority")
        swarm.network.cut = set()
        target = self._newest() + 1
        self._expect(
            "L5", self.heal_s, lambda: self._have(self._everybody(), target), "the minority does not come back"
        )

    def _may_reset(self, peers: Collection[PeerId]) -> bool:
        """Whether enough delegates for a new lineage are among ``peers``."""
        delegates = self._swarm.genesis.recovery.delegates
        return bool(delegates) and 2 * len({*delegates}.intersection(peers)) > len(delegates)

    def joiner(self) -> None:
        """L4: somebody joins; the round closes as ever, the next roster names it, and then it counts."""
        head, swarm = self._rest(), self._swarm
        strangers = [peer for peer in swarm.people if peer not in swarm.nodes and self._is_wanted(peer)]
        if not strangers or not self._is_possible(self._everybody()):
            return
        joiner = strangers[0]
        swarm.enter(joiner)
        swarm.run(swarm.random.uniform(0.0, 3.0))
        roster = self._roster_up()
        self._release(but=(joiner,))
        self._expect("L4", self.at_once_s, lambda: self._have(roster, head + 1), "a joiner delays the round")
        swarm.held_back = set()
        within_s = 3 * (self.grace_s + 5)
        self._expect("L4", within_s, lambda: self._counts(joiner), "the joiner does not count")

    def _is_wanted(self, peer: PeerId) -> bool:
        """Whether a stranger is listed, or has an invite that nothing else in the schedule can spoil."""
        schedule = self._swarm.schedule
        if not schedule.invites:
            return True
        own = schedule.invites[self._swarm.people.index(peer) - schedule.num_peers]
        is_alone = sum(own.owner == other.owner or own.invite == other.invite for other in schedule.invites) == 1
        return is_alone and own.until_round > self._newest() + 3

    def _counts(self, peer: PeerId) -> bool:
        plans = [commit.record.plan for commit in self._head().disk.commits[-3:]]
        return any(member.peer == peer for plan in plans for member in plan.members)

    def _roster_up(self) -> list[PeerId]:
        return [peer for peer in self._roster() if peer in self._swarm.nodes and self._swarm.nodes[peer].is_up]

    def _check_counted(self, name: str, number: int, peers: Collection[PeerId]) -> None:
        """Every span of the round's means includes these peers."""
        record = self._commit_of(number).record
        places = {member.peer: index for index, member in enumerate(record.plan.members)}
        for peer in {*peers} - self._swarm.courts.guilty:
            is_in = peer in places and all(result.included[places[peer]] for result in record.results)
            if not is_in:
                self._fail(name, f"…{peer[-5:]} was alive and ready, and round {number} is without it")


PROBES: Mapping[Probe, Callable[[LivenessProbes], None]] = {
    "progress": LivenessProbes.progress,
    "all_ready": LivenessProbes.all_ready,
    "straggler": LivenessProbes.straggler,
    "dead_peer": LivenessProbes.dead_peer,
    "dead_leader": LivenessProbes.dead_leader,
    "minority": LivenessProbes.minority,
    "joiner": LivenessProbes.joiner,
}
