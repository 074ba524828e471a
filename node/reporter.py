"""Turns what the node's parts say into the snapshot, the journal and the event lines. Decides nothing about rounds."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..protocol.identity import PeerId
from ..protocol.leader import permutation
from ..protocol.messages import Commit
from ..protocol.outcomes import Committed, RoundEvent
from ..protocol.quorum import Quorum, tolerated_faults
from ..protocol.round_machine import Phase
from ..training.reducer import Hello, Progress
from .figures import short_id
from .replica import Replica
from .round_clock import RoundClock
from .run_spec import RunSpec
from .situation import Facts, situation
from .snapshot import (
    CheckpointInfo,
    ExchangeInfo,
    LossKind,
    LossPoint,
    NetworkInfo,
    NodeInfo,
    PhaseName,
    RoundInfo,
    RunInfo,
    TrainingInfo,
)
from .status import utc
from .telemetry import Telemetry
from .view import Clocks, Self, agreement, names_of, peer_infos, shares

if TYPE_CHECKING:
    from ..protocol.rounds import RoundDriver
    from ..protocol.swarm import Swarm
    from .trainer_rounds import TrainerRounds

_STRAGGLER_AFTER_S = 3.0
_CURVES: tuple[tuple[LossKind, str], ...] = (("swarm", "loss"), ("validation", "validation_loss"))
"""Curve of the page <- metric of the journal."""
_SENTENCES: dict[str, str] = {
    "round.plan_sent": "round {round}: plan sent to its members",
    "round.proposed": "round {round}: result proposed for voting",
    "round.voted": "round {round}: voted",
    "round.committed": "round {round}: committed",
    "exchange.sending": "round {round}: sending the contribution",
    "exchange.reducing": "round {round}: averaging an own span",
}
_PHASE_OF_POINT: dict[str, PhaseName] = {
    "exchange.sending": "reduce",
    "exchange.reducing": "reduce",
    "round.voted": "commit",
    "round.committed": "apply",
}
_WARNINGS: dict[str, str] = {
    "round.aborted": "round {round} was given up: {reason}; nothing is lost, the work counts in the next attempt",
    "exchange.lost": "round {round}: {peer} dropped out while averaging ({why}); others average its part again",
    "exchange.excluded": "round {round}: {peer} was left out of a span: {why}",
    "exchange.failed": "round {round}: {why}",
    "peer.rejected": "a message of {peer} was rejected ({rule}): {detail}",
    "state.disagrees": "this node's state after round {head} differs from the swarm's; the right one is being loaded",
    "state.syncing": "loading the swarm's state",
    "votes.unwritable": "votes cannot be written: {why}; this node does not vote",
    "votes.abstaining": "this node's earlier votes are lost, so it does not vote in round {round}",
    "node.woke": "this machine slept for {slept_s:.0f} s; catching up",
}


class Reporter:
    """One node's facts, kept until they are looked at. Methods never wait and never raise for what peers say."""

    def __init__(
        self, telemetry: Telemetry, spec: RunSpec, me: PeerId, name: str, version: str, replica: Replica
    ) -> None:
        self._telemetry, self._spec, self._me, self._name, self._version = telemetry, spec, me, name, version
        self._replica = replica
        self._board = telemetry.board
        self._clock = RoundClock()
        self._round_started_s = time.monotonic()
        self._sent_bytes = self._received_bytes = 0
        self._num_rounds: Counter[PeerId] = Counter()
        self._tokens = self._num_counted = self._num_skipped = 0
        self._joined_round: int | None = None
        self._training_round: int | None = None
        self._sync: tuple[int | None, int] = (None, 0)
        self._ready_since_s: float | None = None
        self._device = "this machine"
        self._driver: RoundDriver | None = None
        self._swarm: Swarm | None = None
        self._loop: TrainerRounds | None = None
        self._board.update(run=_run_info(spec), node=self._node_info())
        self._board.spec = spec.genesis.model_dump(mode="json")
        self._restore()

    def _restore(self) -> None:
        """What earlier starts of this node have seen, from the journal."""
        points = [
            LossPoint(kind=kind, round=row["round"], at=datetime.fromtimestamp(row["unix_s"], UTC), value=row["value"])
            for kind, name in _CURVES
            for row in self._telemetry.journal.metrics(name)
            if row["round"] is not None
        ]
        if points:
            self._board.restore_loss(points)
        for row in self._telemetry.journal.rounds(limit=20_000):
            is_counted = row["outcome"] == "committed"
            self._num_counted += is_counted
            self._num_skipped += not is_counted
            facts: dict[str, Any] = row["data"] or {}
            self._tokens += int(facts.get("tokens") or 0)
            if is_counted and self._joined_round is None:
                self._joined_round = row["round"]

    def attach(self, driver: RoundDriver, swarm: Swarm, loop: TrainerRounds) -> None:
        """The parts that exist only once the network is up."""
        self._driver, self._swarm, self._loop = driver, swarm, loop

    def _node_info(self) -> NodeInfo:
        return NodeInfo(
            name=self._name or short_id(self._me),
            peer_id=self._me,
            version=self._version,
            started_at=utc(time.time()),
        )

    # --- facts --------------------------------------------------------------------------------------------------------

    def enter(self, phase: PhaseName) -> None:
        """A phase of the round begins."""
        now_s = time.monotonic()
        self._clock.enter(phase, now_s)
        self._ready_since_s = now_s if phase == "gather" else None
        self.look()

    def trainer(self, hello: Hello) -> None:
        self._device = "the CPU" if hello.device == "cpu" else hello.device
        self._board.patch("node", device=hello.device)

    def progress(self, progress: Progress) -> None:
        if progress.round != self._training_round:
            self._training_round = progress.round
            text = f"round {progress.round}: the first of {progress.num_steps} inner steps is done"
            self._telemetry.point("round.training", text, round_number=progress.round)
        if self._clock.phase is None:
            self.enter("train")
        self._board.update(
            training=TrainingInfo(
                step=progress.step,
                num_steps=progress.num_steps,
                tokens_per_s=progress.tokens_per_s,
                loss=progress.loss,
                gradient_norm=progress.gradient_norm,
                validation_loss=self._board.snapshot().training.validation_loss,
                validation_round=self._board.snapshot().training.validation_round,
            )
        )
        share = progress.step / max(progress.num_steps, 1)
        tokens = self._tokens + progress.num_tokens
        self._board.add_loss("local", progress.round - 1 + min(share, 1.0), progress.loss, tokens=tokens)

    def evaluation(self, round_number: int, validation_loss: float) -> None:
        """The committed state of a round was evaluated, here or by another peer."""
        shown = self._board.snapshot().training.validation_round
        if shown is not None and shown >= round_number:
            return
        self._board.patch("training", validation_loss=validation_loss, validation_round=round_number)
        self._board.add_loss("validation", round_number, validation_loss)
        self._telemetry.journal.metric("validation_loss", validation_loss, round=round_number)
        self._telemetry.event("evaluation", round=round_number, validation_loss=_finite(validation_loss))

    def checkpoint(self, round_number: int, num_bytes: int, num_kept: int) -> None:
        """A committed state is saved."""
        self._board.update(
            checkpoint=CheckpointInfo(
                round=round_number,
                saved_at=utc(time.time()),
                size_bytes=num_bytes,
                is_verified=True,
                num_kept=num_kept,
                kept_bytes=num_kept * num_bytes,
            )
        )

    def syncing(self, percent: int | None, num_donors: int) -> None:
        """A state download is that far; None: none is going on."""
        self._sync = (percent, num_donors)
        self.look()

    def round_event(self, event: RoundEvent) -> None:
        """A journal point or a warning of the driver."""
        fields = {**event.fields, "round": event.round, "head": event.round - 1}
        if isinstance(peer := fields.get("peer"), str):
            fields["peer"] = self._names().get(PeerId(peer), short_id(peer))
        if event.point in _SENTENCES:
            text = _SENTENCES[event.point].format(**fields)
            self._telemetry.point(event.point, text, round_number=event.round)
        elif event.point in _WARNINGS:
            self._warn(event.point, _WARNINGS[event.point].format(**fields), event.round)
        if event.point == "state.disagrees":
            self._telemetry.event("disagreement", round=event.round - 1, reason="state_disagrees")
        if (phase := _PHASE_OF_POINT.get(event.point)) and self._clock.is_before(phase):
            self.enter(phase)

    def _warn(self, point: str, text: str, round_number: int) -> None:
        self._telemetry.say(text, "warning")
        self._telemetry.journal.point(point, text, round=round_number, level="warning")

    def applied(self, outcome: Committed) -> None:
        """A round is applied: figures, journal, and the event line that programs read."""
        commit, now_s = outcome.commit, time.monotonic()
        number = commit.record.plan.round
        durations = self._clock.finish(now_s)
        for peer in shares(commit):
            self._num_rounds[peer] += 1
        self._num_counted += outcome.counted
        if self._joined_round is None and outcome.counted:
            self._joined_round = number
        self._num_skipped += not outcome.counted
        sent, received = self._traffic_since_last_round()
        work = self._loop.last_work if self._loop else None
        counted_work = work if work is not None and work.round == number and outcome.counted else None
        self._tokens += counted_work.num_tokens if counted_work else 0
        self._show_exchange(number, sent, received)
        facts: dict[str, Any] = {
            "round": number,
            "loss": _finite(counted_work.loss) if counted_work else None,
            "state_hash": outcome.state_hash,
            "bytes_sent": sent,
            "seconds": round(now_s - self._round_started_s, 3),
            "participants": sorted(self._names().get(peer, short_id(peer)) for peer in shares(commit)),
            "counted": outcome.counted,
            "tokens": counted_work.num_tokens if counted_work else 0,
        }
        self._round_started_s = now_s
        self._journal_round(commit, outcome, facts, dict(durations))
        self._telemetry.event("round", **facts)
        num_peers = len(facts["participants"])
        self._telemetry.say(
            f"round {number} committed by {num_peers} peer{'s' * (num_peers != 1)} in {facts['seconds']:.1f} s, "
            f"state {outcome.state_hash[:4]}…{outcome.state_hash[-4:]}"
        )

    def _journal_round(self, commit: Commit, outcome: Committed, facts: dict[str, Any], durations: Any) -> None:
        self._telemetry.journal.round(
            commit.record.plan.round,
            "committed" if outcome.counted else "missed",
            state_hash=outcome.state_hash,
            plan=commit.record.plan.model_dump(mode="json"),
            record=commit.model_dump(mode="json"),
            data={**facts, "phases_s": durations},
        )
        if facts["loss"] is not None:
            self._telemetry.journal.metric("loss", facts["loss"], round=facts["round"], tokens=self._tokens)
            self._board.add_loss("swarm", facts["round"], facts["loss"], tokens=self._tokens)

    def _traffic_since_last_round(self) -> tuple[int, int]:
        if self._swarm is None:
            return 0, 0
        traffic = self._swarm.transport.traffic
        sent, received = traffic.sent_bytes - self._sent_bytes, traffic.received_bytes - self._received_bytes
        self._sent_bytes, self._received_bytes = traffic.sent_bytes, traffic.received_bytes
        return sent, received

    def _show_exchange(self, number: int, sent: int, received: int) -> None:
        counters = self._driver.counters if self._driver else None
        commits = self._replica.commits(number, 1)
        num_members = len(commits[0].record.plan.members) if commits else 1
        at_32_bits = int(4 * self._spec.layout.num_elements * 2 * (num_members - 1) / num_members)
        self._board.update(
            exchange=ExchangeInfo(
                round=number,
                bytes_at_32_bits=at_32_bits,
                sent_bytes=sent,
                received_bytes=received,
                codec_error=counters.codec_error if counters and counters.squared_mean else None,
                gather_s=self._clock.expected_s.get("gather"),
                seconds=self._clock.expected_s.get("reduce"),
            )
        )

    # --- the picture --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Renew what depends on time and on others."""
        driver, swarm, loop = self._driver, self._swarm, self._loop
        if driver is None or swarm is None or loop is None:
            return
        self._say_situation(self._facts(driver, swarm, loop))
        commits = self._replica.commits(self._replica.head_round, 1)
        commit = commits[0] if commits else None
        clocks = Clocks(time.monotonic(), time.time())
        timeout_s = self._spec.genesis.timing.heartbeat_timeout_s
        me = self._self()
        self._board.update(
            peers=peer_infos(me, driver.peers, driver.roster, commit, self._num_rounds, clocks, timeout_s),
            agreement=agreement(self._replica.head_round, self._replica.state_hash, driver.peers),
            round=self._round_info(driver, commit, clocks),
            network=self._network_info(swarm),
        )
        share = shares(commit).get(self._me)
        self._board.patch(
            "contribution",
            joined_round=self._joined_round,
            num_counted=self._num_counted,
            num_skipped=self._num_skipped,
            tokens=self._tokens,
            tokens_this_round=me.tokens,
            last_share=share,
        )
        for known in driver.peers.values():
            if known.heartbeat is not None and known.heartbeat.evaluated_round is not None:
                self.evaluation(known.heartbeat.evaluated_round, known.heartbeat.validation_loss or 0.0)

    def _say_situation(self, facts: Facts) -> None:
        now = situation(facts)
        self._telemetry.state(now.state, now.reason, ends_in_s=now.ends_in_s, **now.values)

    def _facts(self, driver: RoundDriver, swarm: Swarm, loop: TrainerRounds) -> Facts:
        now_s, genesis = time.monotonic(), self._spec.genesis
        timeout_s = genesis.timing.heartbeat_timeout_s
        alive = {p for p, i in driver.peers.items() if i.heard_s is not None and now_s - i.heard_s < timeout_s}
        roster = driver.roster
        unanswered = [result for result in swarm.seed_results if not result.answered]
        straggler, behind_s = self._straggler(driver, alive, now_s)
        return Facts(
            round=driver.round,
            phase=driver.phase,
            is_member=self._me in roster,
            num_others=len(alive & set(roster)),
            roster_size=len(roster),
            quorum_size=self._quorum_size(roster, driver.round),
            min_peers=genesis.membership.min_peers,
            has_trainer=loop.has_trainer,
            has_started=loop.has_started,
            is_finishing=0 < genesis.stop.num_rounds <= self._replica.head_round,
            is_syncing=self._sync[0] is not None,
            sync_percent=self._sync[0],
            num_donors=self._sync[1],
            p2p_alive=swarm.health().alive,
            num_seeds=len(swarm.seed_results),
            num_seeds_answering=len(swarm.seed_results) - len(unanswered),
            seed_causes=", ".join(str(result.cause).replace("_", " ") for result in unanswered),
            straggler=straggler,
            straggler_s=behind_s,
            device=self._device,
            exchange_eta_s=self._clock.remaining_s(now_s, "gather"),
            weights_eta_s=self._clock.remaining_s(now_s, "apply"),
        )

    def _straggler(self, driver: RoundDriver, alive: set[PeerId], now_s: float) -> tuple[str | None, float]:
        """A live member that still trains while we have been ready for a while."""
        if self._ready_since_s is None or now_s - self._ready_since_s < _STRAGGLER_AFTER_S:
            return None, 0.0
        names = self._names()
        for peer in driver.roster:
            info = driver.peers.get(peer)
            if peer in alive and info is not None and info.heartbeat is not None and info.heartbeat.phase == "training":
                return names[peer], now_s - self._ready_since_s
        return None, 0.0

    def _quorum_size(self, roster: tuple[PeerId, ...], round_number: int) -> int:
        """Fewest members, this one among them, that can commit the round."""
        genesis = self._spec.genesis
        order = permutation(genesis.run_id, genesis.lineage, 0, round_number, roster)
        quorum = Quorum(roster, tolerated_faults(len(roster), genesis.membership.fault_tolerance), order[0])
        voters = [self._me, *(peer for peer in order if peer != self._me)]
        return next((size for size in range(1, len(voters) + 1) if quorum.reached(voters[:size])), len(roster))

    def _round_info(self, driver: RoundDriver, commit: Commit | None, clocks: Clocks) -> RoundInfo:
        training = self._board.snapshot().training
        progress = training.step / training.num_steps if training.num_steps and self._clock.phase == "train" else None
        end_phase: PhaseName = "gather" if driver.phase is Phase.TRAINING else "apply"
        left_s = self._clock.remaining_s(clocks.monotonic_s, end_phase)
        return RoundInfo(
            number=driver.round,
            phase=self._clock.phase,
            phases=self._clock.view(clocks.monotonic_s, clocks.unix_s - clocks.monotonic_s, progress),
            ends_at=None if left_s is None else utc(clocks.unix_s + left_s),
            num_members=len(driver.roster),
            quorum=float(self._quorum_size(driver.roster, driver.round)),
            leader=commit.record.plan.leader if commit else None,
        )

    def _network_info(self, swarm: Swarm) -> NetworkInfo:
        traffic, health = swarm.transport.traffic, swarm.health()
        return NetworkInfo(
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            num_connected=len(health.connected_peers),
            num_seeds=len(swarm.seed_results),
            num_seeds_answering=sum(result.answered for result in swarm.seed_results),
        )

    def _self(self) -> Self:
        training = self._board.snapshot().training
        driver = self._driver
        per_step = self._spec.training.inner.batch_size * self._spec.training.model.sequence_length
        return Self(
            peer=self._me,
            name=self._name or short_id(self._me),
            version=self._version,
            phase=driver.phase if driver else Phase.TRAINING,
            tokens=training.step * per_step,
            tokens_per_s=training.tokens_per_s,
            state_hash=self._replica.state_hash,
            head_round=self._replica.head_round,
        )

    def _names(self) -> dict[PeerId, str]:
        return names_of(self._self(), self._driver.peers if self._driver else {})


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def _run_info(spec: RunSpec) -> RunInfo:
    genesis, training = spec.genesis, spec.training
    inner, outer = training.inner, training.outer
    return RunInfo(
        name=genesis.name,
        run_id=genesis.run_id,
        signer=spec.signer,
        model=f"{spec.layout.num_elements:,} parameters, {training.model.num_layers} layers",
        num_parameters=spec.layout.num_elements,
        inner_method=f"{inner.optimizer}, {inner.num_steps} steps of {inner.batch_size} samples",
        outer_method=f"{outer.optimizer} {outer.lr:g}, momentum {outer.momentum:g}",
        codec=genesis.exchange.codec,
        num_rounds=genesis.stop.num_rounds or None,
    )
