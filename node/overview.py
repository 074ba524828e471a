"""The picture of the swarm that depends on time and on others: renewed once a second and at every change of phase.

Reads the live parts, and writes the snapshot and the node's sentence. Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..protocol.gossip.account import Swapped
from ..protocol.identity import PeerId
from ..protocol.messages import Commit
from ..protocol.peers import PeerInfo as KnownPeer
from ..protocol.quorum import quorum_of
from ..protocol.round_machine import Phase
from .clock_watch import ClockWatch, tell
from .figures import short_id
from .group_view import group_info
from .own_state import OwnState
from .round_clock import RoundClock
from .run_spec import RunSpec
from .situation import Facts, situation
from .snapshot import AgreementInfo, NetworkInfo, NodeInfo, PhaseName, RoundInfo
from .status import utc
from .tally import Tally
from .telemetry import Telemetry
from .view import Clocks, OwnPeer, agreement, clock_offset_s, names_of, no_agreement, peer_infos, shares

if TYPE_CHECKING:
    from ..protocol.driver import Driver
    from ..protocol.swarm import Swarm
    from .trainer_rounds import TrainerRounds

_STRAGGLER_AFTER_S = 3.0


@dataclass(frozen=True)
class LiveParts:
    """The live parts of a node, which exist once the network is up."""

    driver: Driver
    swarm: Swarm
    rounds: TrainerRounds


@dataclass
class OwnFacts:
    """What only this node knows of itself, as `Reporter` has heard it last."""

    clock: RoundClock = field(default_factory=RoundClock)
    tally: Tally = field(default_factory=Tally)
    device: str = "this machine"
    ready_since_s: float | None = None
    """Monotonic time at which our contribution was ready, while we wait for others."""
    sync_percent: int | None = None
    """How far a download of the state is; None: none is going on."""
    num_donors: int = 0
    last_swap: Swapped | None = None
    """In a gossip run: the last round that had a partner."""


class Overview:
    """`look` renews the snapshot."""

    def __init__(
        self, telemetry: Telemetry, spec: RunSpec, me: NodeInfo, replica: OwnState, own: OwnFacts, parts: LiveParts
    ) -> None:
        self._telemetry, self._board, self._spec = telemetry, telemetry.board, spec
        self._me, self._name, self._version = PeerId(me.peer_id or ""), me.name, me.version
        self._replica, self._own = replica, own
        self._driver, self._swarm, self._rounds = parts.driver, parts.swarm, parts.rounds
        self._attached_s = time.monotonic()
        self._clock_watch = ClockWatch(self._driver.genesis.timing.heartbeat_timeout_s)

    def look(self) -> None:
        """Say what is going on now, and show who is there."""
        clocks = Clocks(time.monotonic(), time.time())
        now = situation(self._facts(clocks.monotonic_s))
        self._telemetry.state(now.state, now.reason, ends_in_s=now.ends_in_s, **now.values)
        commit, me, peers = self._replica.head, self._self(), self._driver.peers
        rules = self._driver.genesis
        num_rounds, health = self._own.tally.num_rounds, self._swarm.health()
        offset_s = clock_offset_s(peers.values(), clocks.monotonic_s, rules.timing.heartbeat_timeout_s)
        self._board.update(
            peers=peer_infos(me, peers, self._replica.standing, commit, num_rounds, clocks, rules, health.path),
            agreement=self._agreement(peers),
            round=self._round_info(commit, clocks),
            group=group_info(self._me, self._driver.group, self.names(), rules),
            network=self._network_info(offset_s),
        )
        tell(self._telemetry, self._clock_watch.note(offset_s, clocks.monotonic_s))
        self._show_contribution(me, commit)

    def _agreement(self, peers: Mapping[PeerId, KnownPeer]) -> AgreementInfo:
        head_round, state_hash = self._replica.head_round, self._replica.state_hash
        if self._driver.genesis.is_gossip:
            return no_agreement(head_round, state_hash, self._own.last_swap)
        return agreement(head_round, state_hash, peers)

    def names(self) -> dict[PeerId, str]:
        """Peer id -> name, for sentences."""
        return names_of(self._self(), self._driver.peers)

    def _show_contribution(self, me: OwnPeer, commit: Commit | None) -> None:
        tally = self._own.tally
        self._board.patch(
            "contribution",
            joined_round=tally.joined_round,
            num_counted=tally.num_counted,
            num_skipped=tally.num_skipped,
            tokens=tally.tokens,
            last_receipt_round=tally.last_receipt_round,
            tokens_this_round=me.tokens,
            last_share=shares(commit, self._driver.genesis).get(self._me),
            counts_from_round=self._counts_from(),
        )

    def _facts(self, now_s: float) -> Facts:
        driver, genesis, own = self._driver, self._driver.genesis, self._own
        roster, seeds = driver.roster, self._swarm.seed_results
        timeout_s = genesis.timing.heartbeat_timeout_s
        alive = {peer for peer, info in driver.peers.items() if info.is_alive(now_s, timeout_s)}
        unanswered = [result for result in seeds if not result.answered]
        straggler = self._straggler(alive, now_s)
        is_member, has_started = self._me in roster, self._rounds.has_started
        is_two_tier = genesis.exchange.topology == "two_tier"
        return Facts(
            round=driver.round,
            phase=driver.phase,
            is_member=is_member,
            is_follower=is_two_tier and not is_member and has_started,
            is_seeking=is_two_tier and not is_member and not has_started,
            num_others=len(alive & set(roster)),
            roster_size=len(roster),
            quorum_size=self._quorum_size(),
            min_peers=genesis.membership.min_peers,
            is_provisional=driver.provisional is not None,
            counts_from=self._counts_from(),
            has_trainer=self._rounds.has_trainer,
            has_started=has_started,
            has_met=any(info.heard_s is not None for info in driver.peers.values()),
            is_young=now_s - self._attached_s < timeout_s,
            is_finishing=0 < genesis.stop.num_rounds <= self._replica.head_round,
            is_paused=genesis.control.paused,
            is_banned=self._me in genesis.control.banned,
            is_ejected=self._me in self._replica.standing.ejected,
            required_protocol=genesis.control.required_protocol,
            is_syncing=own.sync_percent is not None,
            sync_percent=own.sync_percent,
            num_donors=own.num_donors,
            p2p_alive=self._swarm.health().alive,
            num_seeds=len(seeds),
            num_seeds_answering=len(seeds) - len(unanswered),
            seed_causes=", ".join(str(result.cause).replace("_", " ") for result in unanswered),
            straggler=straggler,
            straggler_s=0.0 if straggler is None or own.ready_since_s is None else now_s - own.ready_since_s,
            device=own.device,
            exchange_eta_s=own.clock.remaining_s(now_s, "gather", self._progress()),
            weights_eta_s=own.clock.remaining_s(now_s, "apply"),
        )

    def _straggler(self, alive: set[PeerId], now_s: float) -> str | None:
        """Name of a live member that still trains while we have been ready for a while."""
        ready_since_s = self._own.ready_since_s
        if ready_since_s is None or now_s - ready_since_s < _STRAGGLER_AFTER_S:
            return None
        heartbeats = {peer: info.heartbeat for peer, info in self._driver.peers.items() if peer in alive}
        for peer in self._driver.roster:
            heartbeat = heartbeats.get(peer)
            if heartbeat is not None and heartbeat.phase == "training":
                return self.names()[peer]
        return None

    def _counts_from(self) -> int | None:
        """While this node is on probation: the round from which its work counts."""
        counts_from = self._replica.standing.counts_from.get(self._me)
        return counts_from if counts_from is not None and counts_from > self._driver.round else None

    def _quorum_size(self) -> int:
        """Fewest members, this one among them, that can commit the round; in a gossip run one."""
        if self._driver.genesis.is_gossip:
            return 1
        return quorum_of(self._driver.genesis, self._driver.roster, self._driver.round).fewest_with(self._me)

    def _progress(self) -> float | None:
        """The share of this round's inner steps that is done, while they go on."""
        training = self._board.snapshot().training
        return training.step / training.num_steps if training.num_steps and self._own.clock.phase == "train" else None

    def _round_info(self, commit: Commit | None, clocks: Clocks) -> RoundInfo:
        driver, clock, progress = self._driver, self._own.clock, self._progress()
        end_phase: PhaseName = "gather" if driver.phase is Phase.TRAINING else "apply"
        left_s = clock.remaining_s(clocks.monotonic_s, end_phase, progress)
        return RoundInfo(
            number=driver.round,
            is_provisional=driver.provisional is not None,
            phase=clock.phase,
            phases=clock.view(clocks.monotonic_s, clocks.unix_s - clocks.monotonic_s, progress),
            ends_at=None if left_s is None else utc(clocks.unix_s + left_s),
            num_members=len(driver.roster),
            quorum=float(self._quorum_size()),
            leader=commit.record.plan.leader if commit else None,
        )

    def _network_info(self, clock_offset_s: float | None) -> NetworkInfo:
        traffic, health, seeds = self._swarm.transport.traffic, self._swarm.health(), self._swarm.seed_results
        return NetworkInfo(
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            num_connected=len(health.connected_peers),
            num_direct=len(health.direct_peers),
            num_libp2p=len(health.unrelayed_peers) - len(health.direct_peers),
            num_relay_only=len(health.relay_only_peers),
            is_reachable=health.reachable if health.measured_by else None,
            reachability=health.reachability,
            reachability_fix=health.reachability_fix,
            measured_by=health.measured_by,
            is_relayed=health.is_relayed,
            direct_port=health.direct_port or None,
            num_seeds=len(seeds),
            num_seeds_answering=sum(result.answered for result in seeds),
            clock_offset_ms=None if clock_offset_s is None else 1e3 * clock_offset_s,
        )

    def _self(self) -> OwnPeer:
        training = self._board.snapshot().training
        per_step = self._spec.training.inner.batch_size * self._spec.training.model.sequence_length
        return OwnPeer(
            peer=self._me,
            name=self._name or short_id(self._me),
            version=self._version,
            phase=self._driver.phase,
            tokens=training.step * per_step,
            tokens_per_s=training.tokens_per_s,
            state_hash=self._replica.state_hash,
            head_round=self._replica.head_round,
            group=self._driver.group,
        )
