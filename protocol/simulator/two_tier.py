"""Two-tier rounds among many peers: inside groups with transfers added up, between groups by real round machines.

Tier 1: a group reduces to its mean by a butterfly whose spans end at the group's *delegate*, the reachable member with
the fastest uplink. Tier 2: the delegates hold an ordinary round, with every message, in a `World`. Then each delegate
hands the result down: it deals the spans out, and the members pass them on among each other.

Bytes that a member sends in a group of n, in units of the encoded vector: (n - 1)/n to the owners of spans, 1/n to the
delegate, (n - 1)/n to the others on the way down. The delegate sends the same in tier 1, one vector on the way down,
and what tier 2 takes. A link carries its bytes at its rate, and a tier takes as long as its slowest link.
A member that is more than ``timing.ready_grace_s`` behind its group's median is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ..identity import PeerId
from ..messages import Commit
from ..spec import Genesis
from .network import Link, NetworkModel
from .nodes import Node
from .population import Population
from .world import World

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .traces import Trace
    from .trainers import InnerLoop


@dataclass(frozen=True)
class TwoTier:
    """Figures of a run."""

    num_peers: int
    num_groups: int
    num_rounds: int
    """Committed among the delegates."""
    round_s: float
    """Median."""
    tier_1_s: float
    tier_2_s: float
    """Median time from the first delegate that is ready to the commit."""
    utilisation: float
    sent_bytes_per_peer_and_round: float
    largest_sent_bytes: float
    """Of one delegate, per round."""
    members_per_round: float
    """Peers whose work is in the mean."""

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"topology": "two_tier", **vars(self)}


class TwoTierRun:
    """One run; `run` gives its figures."""

    def __init__(
        self,
        genesis: Genesis,
        trace: Trace,
        loop: InnerLoop,
        *,
        num_peers: int,
        group_size: int,
        contribution_bytes: float,
        num_chunks: int,
        seed: int,
    ) -> None:
        self._trace, self._loop, self._bytes = trace, loop, contribution_bytes
        self._grace_s = genesis.timing.ready_grace_s
        self._random = np.random.default_rng(seed)
        self._peers = Population.of(trace, num_peers, self._random)
        self._groups = np.array_split(np.arange(num_peers), -(-num_peers // group_size))
        self._delegates = [self._delegate_of(group) for group in self._groups]
        self._ids = list(genesis.membership.roster)
        self.world = World(
            genesis,
            seed=seed,
            network=NetworkModel(latency_s=trace.network.latency_s, links=self._links(), has_relay=trace.network.relay),
            num_chunks=num_chunks,
            contribution_bytes=contribution_bytes,
        )
        self._busy_s = np.zeros(num_peers)
        self._tier_1_s: list[float] = []
        self._counts: dict[tuple[int, int], int] = {}
        """Round and group → members in the group's mean."""
        self._ready_s: dict[int, float] = {}
        self._decided_s: dict[int, float] = {}
        self._members: list[int] = []

    def _delegate_of(self, group: NDArray[np.intp]) -> int:
        reach = np.where(self._peers.is_dial_out_only[group], 0.0, self._peers.up_bps[group])
        return int(group[int(np.argmax(reach))])

    def _links(self) -> dict[PeerId, Link]:
        peers = self._peers
        return {
            peer: Link(float(peers.up_bps[index]), float(peers.down_bps[index]), bool(peers.is_dial_out_only[index]))
            for peer, index in zip(self._ids, self._delegates, strict=True)
        }

    def run(self, num_rounds: int) -> TwoTier:
        """Until so many rounds are decided, or none has been for long."""
        self.world.on_begin = self._begin
        self.world.on_decide = lambda node, commit: self._decide(commit, num_rounds)
        for node in self.world.nodes.values():
            self._begin(node)
        timing = self.world.genesis.timing
        self.world.run(num_rounds * 2 * (self._loop.num_steps * self._loop.step_s + timing.quorum_timeout_s))
        return self._figures()

    # --- a round of one group -----------------------------------------------------------------------------------------

    def _begin(self, node: Node) -> None:
        """Hand the last result down, train, reduce inside the group; then its delegate is ready."""
        index, loop, world = self._ids.index(node.peer), self._loop, self.world
        group = self._groups[index]
        drift = self._random.uniform(1 - self._trace.compute.drift, 1 + self._trace.compute.drift, len(group))
        train_s = loop.num_steps * loop.step_s / (self._peers.speed[group] * drift)
        is_there = self._random.random(len(group)) >= self._trace.churn.leaving_per_round
        is_in_time = train_s <= np.median(train_s) + self._grace_s
        is_in = is_there & is_in_time
        if not is_in.any():
            is_in[int(np.argmin(train_s))] = True
        self._busy_s[group[is_there]] += train_s[is_there]
        members = group[is_in]
        down_s = self._hand_down_s(group) if node.round > 1 else 0.0
        tier_1_s = self._reduce_s(members)
        self._tier_1_s.append(down_s + tier_1_s)
        self._counts[node.round, index] = len(members)
        ready_s = world.now + down_s + float(train_s[is_in].max()) + loop.encode_s + tier_1_s
        world.at(ready_s, self._offer, node, node.round, len(members))

    def _offer(self, node: Node, number: int, num_members: int) -> None:
        if node.round == number:
            self._ready_s[number] = min(self._ready_s.get(number, self.world.now), self.world.now)
            self.world.contribute(node.peer, num_members * self._loop.num_steps * self._loop.tokens_per_step)

    def _reduce_s(self, members: NDArray[np.intp]) -> float:
        """Butterfly whose spans end at the delegate: everybody sends and receives about one vector."""
        n = len(members)
        return self._slowest_s(members, sent=1.0, received=(n - 1) / n) + self._delegate_s(members, received=1.0)

    def _hand_down_s(self, group: NDArray[np.intp]) -> float:
        """The delegate deals the spans out, the members pass them on; both at once."""
        n = len(group)
        return max(self._slowest_s(group, sent=(n - 1) / n, received=1.0), self._delegate_s(group, sent=1.0))

    def _slowest_s(self, members: NDArray[np.intp], *, sent: float, received: float) -> float:
        bits, peers = 8 * self._bytes, self._peers
        slowest = np.maximum(sent / peers.up_bps[members], received / peers.down_bps[members]).max()
        return float(bits * slowest) + float(np.mean(self._trace.network.latency_s))

    def _delegate_s(self, members: NDArray[np.intp], *, sent: float = 0.0, received: float = 0.0) -> float:
        delegate, peers = self._delegate_of(members), self._peers
        return float(8 * self._bytes * (sent / peers.up_bps[delegate] + received / peers.down_bps[delegate]))

    # --- outcome ------------------------------------------------------------------------------------------------------

    def _decide(self, commit: Commit, num_rounds: int) -> None:
        plan = commit.record.plan
        if plan.round in self._decided_s:
            return
        self._decided_s[plan.round] = self.world.now
        included: list[PeerId] = [member.peer for member in plan.members]
        self._members.append(sum(self._counts[plan.round, self._ids.index(peer)] for peer in included))
        if plan.round >= num_rounds:
            self.world.stop()

    def _figures(self) -> TwoTier:
        num_peers, num_rounds = len(self._peers), len(self._decided_s)
        ends = [0.0, *self._decided_s.values()]
        tier_2 = [self._decided_s[number] - self._ready_s[number] for number in self._decided_s]
        sent = self.world.network.sent_bytes
        own = 2.0 * self._bytes * num_peers  # both ways inside the groups
        dealt = len(self._groups) * self._bytes
        return TwoTier(
            num_peers=num_peers,
            num_groups=len(self._groups),
            num_rounds=num_rounds,
            round_s=median(after - before for before, after in pairwise(ends)) if num_rounds else 0.0,
            tier_1_s=median(self._tier_1_s),
            tier_2_s=median(tier_2) if tier_2 else 0.0,
            utilisation=float(self._busy_s.sum() / max(self.world.now * num_peers, 1e-9)),
            sent_bytes_per_peer_and_round=(own + dealt + sum(sent.values()) / max(1, num_rounds)) / num_peers,
            largest_sent_bytes=3 * self._bytes + max(sent.values(), default=0) / max(1, num_rounds),
            members_per_round=float(np.mean(self._members)) if self._members else 0.0,
        )
