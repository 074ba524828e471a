"""What a simulated run was like: per round, and as figures over all rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from ..identity import PeerId
from ..messages import Commit
from .nodes import Node
from .trainers import Trainers
from .world import World


@dataclass(frozen=True)
class RoundRow:
    """One committed round."""

    round: int
    duration_s: float
    """From the decision before it to its own."""
    num_attempts: int
    """Plans that were made for it, at least: 1 if the first leader's plan was decided."""
    num_members: int
    roster_size: int
    tokens: int
    """Truly trained, whatever members claim."""
    excluded: tuple[tuple[PeerId, str], ...]
    """Members of the roster whose work is not in the mean, or not in all of it, and why."""


@dataclass(frozen=True)
class Report:
    """Figures of a run."""

    num_peers: int
    rounds: tuple[RoundRow, ...]
    num_aborted: int
    """Rounds that at least half of the running peers gave up at some time, without effect."""
    simulated_s: float
    utilisation: float
    """Time in inner steps, as a share of the time that peers were up."""
    throughput: float
    """Tokens that entered means, as a share of what all peers could have trained if always training."""
    sent_bytes_per_peer_and_round: float
    largest_sent_bytes: float
    """Of one peer, per round."""
    messages_per_peer_and_round: float
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    """Rule → messages refused by it."""

    @property
    def commit_rate(self) -> float:
        """Rounds that committed, of those that committed or were given up."""
        return len(self.rounds) / max(1, len(self.rounds) + self.num_aborted)

    @property
    def round_s(self) -> float:
        """Median; 0 without rounds."""
        return median(row.duration_s for row in self.rounds) if self.rounds else 0.0

    def exclusions(self) -> dict[str, Counter[str]]:
        """Peer → reason → number of rounds."""
        found: dict[str, Counter[str]] = {}
        for row in self.rounds:
            for peer, why in row.excluded:
                found.setdefault(peer, Counter())[why] += 1
        return found

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: every figure, and every round."""
        return {
            "peers": self.num_peers,
            "rounds_committed": len(self.rounds),
            "rounds_aborted": self.num_aborted,
            "commit_rate": self.commit_rate,
            "utilisation": self.utilisation,
            "throughput": self.throughput,
            "round_s": self.round_s,
            "slowest_round_s": max((row.duration_s for row in self.rounds), default=0.0),
            "members_per_round": mean(row.num_members for row in self.rounds) if self.rounds else 0.0,
            "sent_bytes_per_peer_and_round": self.sent_bytes_per_peer_and_round,
            "largest_sent_bytes": self.largest_sent_bytes,
            "messages_per_peer_and_round": self.messages_per_peer_and_round,
            "simulated_s": self.simulated_s,
            "excluded": {peer: dict(reasons) for peer, reasons in self.exclusions().items()},
            "rejected": self.rejected,
            "rounds": [asdict(row) for row in self.rounds],
        }


class Recorder:
    """Watches a world and its trainers; `report` at the end."""

    def __init__(self, world: World, trainers: Trainers) -> None:
        self._world, self._trainers = world, trainers
        self.rows: list[RoundRow] = []
        self._last_s = world.now
        self._num_aborted = 0
        self._given_up: set[PeerId] = set()

    def on_decide(self, commit: Commit) -> bool:
        """Note a decision; whether it is the round's first."""
        plan = commit.record.plan
        if self.rows and plan.round <= self.rows[-1].round:
            return False
        now = self._world.now
        self.rows.append(
            RoundRow(
                round=plan.round,
                duration_s=now - self._last_s,
                num_attempts=1 + plan.ballot,
                num_members=len(plan.members),
                roster_size=len(plan.roster),
                tokens=sum(self._world.nodes[member.peer].offered_tokens for member in plan.members),
                excluded=tuple(self._excluded(commit)),
            )
        )
        self._last_s, self._given_up = now, set()
        return True

    def on_give_up(self, node: Node) -> None:
        """Note a withdrawn contribution."""
        self._given_up.add(node.peer)
        num_running = sum(other.is_running for other in self._world.nodes.values())
        if 2 * len(self._given_up) >= num_running:
            self._num_aborted += 1
            self._given_up = set()

    def _excluded(self, commit: Commit) -> list[tuple[PeerId, str]]:
        plan = commit.record.plan
        members = [member.peer for member in plan.members]
        found = [(peer, self._why_missing(self._world.nodes[peer])) for peer in plan.roster if peer not in members]
        for place, peer in enumerate(members):
            num_without = sum(not result.included[place] for result in commit.record.results)
            if num_without:
                of_all = "all spans" if num_without == len(plan.spans) else "some spans"
                found.append((peer, f"left out of {of_all}: its data did not reach their owners"))
        return found

    def _why_missing(self, node: Node) -> str:
        if not node.is_up:
            return "down"
        if node.is_asleep:
            return "suspended"
        trainer = self._trainers.of.get(node.peer)
        if trainer is None or trainer.works_for is not None:
            return "still training when the round closed"
        return "ready, but not heard in time by the leader"

    def report(self) -> Report:
        """Figures up to now."""
        world, network, num_rounds = self._world, self._world.network, max(1, len(self.rows))
        up_s = {peer: node.total_up_s(world.now) for peer, node in world.nodes.items()}
        busy_s = {peer: self._trainers.busy_s(world.nodes[peer]) for peer in world.nodes}
        loop = self._trainers.loop
        possible = sum(up_s[peer] * self._trainers.of[peer].speed for peer in up_s if peer in self._trainers.of)
        trained = sum(row.tokens for row in self.rows)
        return Report(
            num_peers=len(world.nodes),
            rounds=tuple(self.rows),
            num_aborted=self._num_aborted,
            simulated_s=world.now,
            utilisation=sum(busy_s.values()) / max(sum(up_s.values()), 1e-9),
            throughput=trained * loop.step_s / loop.tokens_per_step / max(possible, 1e-9),
            sent_bytes_per_peer_and_round=sum(network.sent_bytes.values()) / len(world.nodes) / num_rounds,
            largest_sent_bytes=max(network.sent_bytes.values(), default=0) / num_rounds,
            messages_per_peer_and_round=sum(network.num_messages.values()) / len(world.nodes) / num_rounds,
            rejected=dict(Counter(error.rule for error in world.rejected)),
        )
