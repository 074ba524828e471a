"""Turns what the node's parts say into the snapshot, the journal and the event lines. Decides nothing about rounds.

`Overview` adds what depends on time and on other peers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..protocol.gossip.account import Swapped
from ..protocol.identity import PeerId
from ..protocol.messages import Commit
from ..protocol.outcomes import Committed, RoundEvent
from ..training.reducer import Hello, Progress
from .figures import short_id
from .overview import LiveParts, Overview, OwnFacts
from .own_state import OwnState
from .repeats import Repeats
from .round_texts import PHASE_OF_POINT, RoundText, applied_text, swap_facts, text_of
from .run_spec import RunSpec
from .snapshot import CheckpointInfo, ExchangeInfo, LossKind, LossPoint, NodeInfo, PhaseName, RunInfo, TrainingInfo
from .status import utc
from .tally import MAX_RESTORED_ROUNDS
from .telemetry import Telemetry
from .trainer_rounds import LastWork
from .view import participants

_CURVES: tuple[tuple[LossKind, str], ...] = (("local", "loss"), ("validation", "validation_loss"))
"""Curve of the page <- metric of the journal; of the local loss it keeps one value a round."""


_LOST_QUORUM_FIX = "Bring members back; if they are gone for good, the run’s operator can sign a reset."


class Reporter:
    """One node's facts, kept until they are looked at. Methods never wait and never raise for what peers say."""

    def __init__(
        self, telemetry: Telemetry, spec: RunSpec, me: PeerId, name: str, version: str, replica: OwnState
    ) -> None:
        self._telemetry, self._board, self._spec, self._replica = telemetry, telemetry.board, spec, replica
        self._me = NodeInfo(name=name or short_id(me), peer_id=me, version=version, started_at=utc(time.time()))
        self._own, self._repeats = OwnFacts(), Repeats()
        self._parts: LiveParts | None = None
        self._overview: Overview | None = None
        self._round_started_s = time.monotonic()
        self._sent_bytes = self._received_bytes = 0
        self._training_round: int | None = None
        self._board.update(run=_run_info(spec), node=self._me)
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
        self._own.tally.restore(self._telemetry.journal.rounds(limit=MAX_RESTORED_ROUNDS))

    def attach(self, parts: LiveParts) -> None:
        """The parts that exist only once the network is up."""
        self._parts = parts
        self._overview = Overview(self._telemetry, self._spec, self._me, self._replica, self._own, parts)

    # --- facts --------------------------------------------------------------------------------------------------------

    def enter(self, phase: PhaseName) -> None:
        """A phase of the round begins."""
        now_s = time.monotonic()
        self._own.clock.enter(phase, now_s)
        self._own.ready_since_s = now_s if phase == "gather" else None
        self.look()

    def trainer(self, hello: Hello) -> None:
        """A trainer is up."""
        self._own.device = "the CPU" if hello.device == "cpu" else hello.device
        self._board.patch("node", device=hello.device)

    def progress(self, progress: Progress) -> None:
        """An inner step is done. The first of a round is journalled."""
        if progress.round != self._training_round:
            self._training_round = progress.round
            text = f"round {progress.round}: the first of {progress.num_steps} inner steps is done"
            self._telemetry.point("round.training", text, round_number=progress.round)
        if self._own.clock.phase is None:
            self.enter("train")
        shown = self._board.snapshot().training
        self._board.update(
            training=TrainingInfo(
                step=progress.step,
                num_steps=progress.num_steps,
                tokens_per_s=progress.tokens_per_s,
                loss=progress.loss,
                gradient_norm=progress.gradient_norm,
                validation_loss=shown.validation_loss,
                validation_round=shown.validation_round,
            )
        )
        share = progress.step / max(progress.num_steps, 1)
        tokens = self._own.tally.tokens + progress.num_tokens
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
        self._own.sync_percent, self._own.num_donors = percent, num_donors
        self.look()

    def round_event(self, event: RoundEvent) -> None:
        """A journal point or a warning of the driver."""
        said = text_of(event, self._names())
        if said is not None and said.is_warning:
            self._say_warning(said)
            self._telemetry.journal.point(event.point, said.text, round=event.round, level="warning", data=event.fields)
        elif said is not None:
            self._telemetry.point(event.point, said.text, round_number=event.round)
        if event.point == "quorum.lost" and said is not None:
            self._telemetry.alert("quorum", said.text, fix=_LOST_QUORUM_FIX, is_error=True)
        if event.point == "quorum.found":
            self._telemetry.clear_alert("quorum")
        if event.point == "state.disagrees":
            self._telemetry.event("disagreement", round=event.round - 1, reason="state_disagrees")
        if (phase := PHASE_OF_POINT.get(event.point)) and self._own.clock.is_before(phase):
            self.enter(phase)

    def _say_warning(self, said: RoundText) -> None:
        """Of one that repeats while a trouble lasts, only the first, and then ever fewer."""
        num_unsaid = 0 if said.cause is None else self._repeats.note(said.cause, time.monotonic())
        if num_unsaid is None:
            return
        again = f" ({num_unsaid} times since this was said last)" if num_unsaid > 1 else ""
        self._telemetry.say(said.text + again, "warning")

    def applied(self, outcome: Committed) -> None:
        """A round is applied: figures, journal, the event line that programs read, and last its journal point."""
        self._repeats.forget()
        commit, number = outcome.commit, outcome.commit.record.plan.round
        durations = self._own.clock.finish(time.monotonic())
        self._note_swap(outcome)
        traffic = self._traffic_since_last_round()
        work = self._counted_work(outcome)
        members = participants(commit)
        self._own.tally.add(number, members, work.num_tokens if work else 0, counted=outcome.counted)
        self._show_exchange(commit, *traffic, durations)
        facts = self._round_facts(outcome, work, traffic[0])
        self._journal_round(outcome, {**facts, "phases_s": durations})
        if facts["loss"] is not None:
            self._telemetry.journal.metric("loss", facts["loss"], round=number, tokens=self._own.tally.tokens)
        self._telemetry.event("round", **facts)
        self._telemetry.say(applied_text(outcome, facts, self._names()))
        self._telemetry.point("round.applied", f"round {number} applied", round_number=number)

    def _note_swap(self, outcome: Committed) -> None:
        """In a gossip run: how far apart the pair was."""
        if isinstance(outcome, Swapped) and outcome.partner is not None:
            self._own.last_swap = outcome
            if outcome.spread is not None:
                self._telemetry.journal.metric("spread", outcome.spread, round=outcome.commit.record.plan.round)

    def receipt(self, number: int) -> None:
        """A receipt of a round is in the journal."""
        self._own.tally.last_receipt_round = number

    def _counted_work(self, outcome: Committed) -> LastWork | None:
        """Our contribution to the round, if it counted."""
        work = self._parts.rounds.last_work if self._parts else None
        number = outcome.commit.record.plan.round  # a gossip round may end as a later one than it was begun as
        is_of_round = work is not None and (work.round == number or isinstance(outcome, Swapped))
        return work if is_of_round and outcome.counted else None

    def _round_facts(self, outcome: Committed, work: LastWork | None, sent_bytes: int) -> dict[str, Any]:
        now_s, names = time.monotonic(), self._names()
        seconds, self._round_started_s = now_s - self._round_started_s, now_s
        swapped = swap_facts(outcome) if isinstance(outcome, Swapped) else {}
        return swapped | {
            "round": outcome.commit.record.plan.round,
            "loss": _finite(work.loss) if work else None,
            "state_hash": outcome.state_hash,
            "bytes_sent": sent_bytes,
            "seconds": round(seconds, 3),
            "participants": sorted(names.get(peer, short_id(peer)) for peer in participants(outcome.commit)),
            "counted": outcome.counted,
            "tokens": work.num_tokens if work else 0,
        }

    def _journal_round(self, outcome: Committed, data: Mapping[str, Any]) -> None:
        self._telemetry.journal.round(
            outcome.commit.record.plan.round,
            "committed" if outcome.counted else "missed",
            state_hash=outcome.state_hash,
            plan=outcome.commit.record.plan.model_dump(mode="json"),
            record=outcome.commit.model_dump(mode="json"),
            data=data,
        )

    def _traffic_since_last_round(self) -> tuple[int, int]:
        """Bytes (sent, received), counted at the sockets."""
        if self._parts is None:
            return 0, 0
        traffic = self._parts.swarm.transport.traffic
        sent, received = traffic.sent_bytes - self._sent_bytes, traffic.received_bytes - self._received_bytes
        self._sent_bytes, self._received_bytes = traffic.sent_bytes, traffic.received_bytes
        return sent, received

    def _show_exchange(
        self, commit: Commit, sent_bytes: int, received_bytes: int, durations: Mapping[PhaseName, float]
    ) -> None:
        counters = self._parts.driver.counters if self._parts else None
        num_members = len(commit.record.plan.members)
        vectors = 2 * (num_members - 1) / max(num_members, 1)  # that leave this node
        if self._spec.genesis.is_gossip:
            vectors = 2 if num_members > 1 else 0
        at_32_bits = int(4 * self._spec.layout.num_elements * vectors)
        self._board.update(
            exchange=ExchangeInfo(
                round=commit.record.plan.round,
                bytes_at_32_bits=at_32_bits,
                sent_bytes=sent_bytes,
                received_bytes=received_bytes,
                codec_error=counters.codec_error if counters and counters.squared_mean else None,
                gather_s=durations.get("gather"),
                seconds=durations.get("reduce"),
            )
        )

    # --- the picture --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Renew what depends on time and on others; nothing happens before `attach`."""
        if self._parts is None or self._overview is None:
            return
        self._overview.look()
        if self._spec.genesis.is_gossip:
            return  # others evaluate weights of their own
        for known in self._parts.driver.peers.values():
            if known.heartbeat is not None and (evaluated := known.heartbeat.evaluated) is not None:
                self.evaluation(evaluated.round, evaluated.validation_loss)

    def _names(self) -> dict[PeerId, str]:
        return self._overview.names() if self._overview else {}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
