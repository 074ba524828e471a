"""One node of one run: replica, trainer, network and round driver, wired together.

What follows a fact goes one way: trainer and driver report here, `TrainerRounds` answers the trainer, `Reporter` tells
people. `run` ends when the run's last round is applied and everybody has had the chance to get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Mapping

from ..kernels.chunk_grid import ChunkGrid
from ..kernels.codec import codec
from ..protocol.amendments import InvalidAmendment, RunRules
from ..protocol.identity import Identity, PeerId
from ..protocol.messages import Commit
from ..protocol.outcomes import Committed, RoundEvent
from ..protocol.peers import PeerInfo
from ..protocol.round_driver import NodeFacts, RoundDriver
from ..protocol.rule_book import RuleBook
from ..protocol.spec import PROTOCOL_VERSION, Genesis
from ..protocol.state_sync import StateServer, StateUnavailable, SyncProgress
from ..protocol.swarm import PortInUse, Swarm, SwarmError, SwarmEvent
from ..protocol.transport import RemoteProtocolError
from ..training.checkpoint import Saved
from ..training.config import TrainerSpec
from ..training.flat import initial_state
from ..training.reducer import Evaluation, Hello, Progress, Ready, Report, Warned, Withheld
from ..training.shared_buffers import SharedBuffers
from . import network
from .amendment_store import AmendmentStore
from .chain import Chain
from .donor import Donor
from .errors import UserError
from .failures import Failures
from .injected_faults import nan_round
from .known_peers import KnownPeers
from .overview import Parts
from .reasons import Reason, State
from .receipts import ReceiptBook
from .replica import Replica, archive_of, checkpoint_store
from .reporter import Reporter
from .run_spec import RunSpec, training_config
from .settings import NodeSettings
from .state_loading import StateLoader
from .telemetry import Telemetry
from .trainer_process import TrainerGaveUp, TrainerProcess
from .trainer_rounds import Terms, TrainerRounds
from .version import VERSION

_LOOK_INTERVAL_S = 1.0
_LINGER_S = 15.0
"""How long a finished node stays, at most, for others to fetch the last round."""
_EVALUATION_PATIENCE_S = 60.0


class Node:
    """Built, then `run` once, then `stop`."""

    def __init__(self, settings: NodeSettings, spec: RunSpec, identity: Identity, telemetry: Telemetry) -> None:
        self._settings, self._spec, self._identity, self._telemetry = settings, spec, identity, telemetry
        self._genesis, self._inner = spec.genesis, spec.training.inner
        exchange = self._genesis.exchange
        self._codec = codec(exchange.codec)
        self._grid = ChunkGrid(spec.layout.num_elements, exchange.chunk_elements, self._codec)
        self._buffers = SharedBuffers.create(self._grid.num_elements, self._grid.num_chunks, self._grid.total_encoded)
        self._event_loop = asyncio.get_running_loop()
        self._amendments = AmendmentStore(settings.folder)
        self._book = RuleBook(self._known_rules(), self._amendments.append)
        self._known_peers = KnownPeers(settings.folder / "peers.json")
        self._replica = self._open_replica()
        self._trainer = TrainerProcess(
            self._trainer_spec(),
            settings.folder / "trainer",
            self._buffers,
            on_report=self._on_report,
            on_death=self._on_trainer_death,
        )
        self._swarm: Swarm | None = None
        self._driver: RoundDriver | None = None
        self._rounds: TrainerRounds | None = None
        self._reporter = Reporter(telemetry, spec, identity.peer_id, settings.name, VERSION, self._replica)
        self._receipts = ReceiptBook(identity, self._genesis.run_id, telemetry.journal)
        self._tasks: list[asyncio.Task[None]] = []
        self._early_reports: list[Report] = []
        self._evaluation = asyncio.Event()
        """The last committed state is evaluated."""
        self._applied = asyncio.Event()
        self._failures = Failures()
        self._in_vain: asyncio.Future[None] = self._event_loop.create_future()
        """Gets the error that ends a node whose contributions fail again and again."""

    @property
    def head_round(self) -> int:
        return self._replica.head_round

    @property
    def _rules(self) -> Genesis:
        """Those that the present round is held under."""
        return self._book.rules.at(self.head_round + 1)

    def _known_rules(self) -> RunRules:
        """By this node's disk, and by what came with the run spec; nothing is in force that is not kept."""
        rules = self._amendments.load(self._genesis)
        try:
            known = rules.extended(self._spec.amendments)
        except InvalidAmendment as error:
            raise UserError("amendments of the run spec", str(error), "get them from the operator again") from None
        self._amendments.append(known.amendments[len(rules.amendments) :])
        return known

    @property
    def is_finished(self) -> bool:
        """Whether the run's last round is applied."""
        last = self._rules.stop.num_rounds
        return last > 0 and self.head_round >= last

    def _trainer_spec(self) -> TrainerSpec:
        settings = self._settings
        return TrainerSpec(
            training=self._spec.training,
            chunk_elements=self._genesis.exchange.chunk_elements,
            codec=self._genesis.exchange.codec,
            num_threads=settings.num_threads or os.cpu_count() or 1,
            device=settings.device,
            nan_round=nan_round(),
        )

    def _open_replica(self) -> Replica:
        def on_point(point: str) -> None:  # called by the thread that saves
            self._telemetry.journal.point(point, "saving the committed state", round=self._replica.head_round)

        def on_warning(text: str) -> None:
            self._event_loop.call_soon_threadsafe(self._telemetry.warn, text)

        replica = Replica(
            book=self._book,
            initial=lambda: initial_state(self._spec.training.model),
            buffers=self._buffers,
            grid=self._grid,
            outer_of=lambda rules: training_config(rules, "rules in force").outer,
            store=checkpoint_store(self._settings.folder, self._settings.num_checkpoints, on_warning, on_point),
            chain=Chain(self._settings.folder / "chain.jsonl"),
            archive=archive_of(self._genesis, self._identity.peer_id, self._settings.folder, on_warning),
            on_saved=self._on_saved,
        )
        if replica.restore():
            self._telemetry.say(f"resumed after round {replica.head_round} from the checkpoint")
        return replica

    def _on_saved(self, saved: Saved, num_kept: int) -> None:
        """Called by the thread that saves."""
        number = self._replica.head_round
        self._event_loop.call_soon_threadsafe(self._reporter.checkpoint, number, saved.num_bytes, num_kept)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until the run is finished. Raises `UserError` for what the user can mend."""
        self._spawn(self._run_trainer())
        swarm = self._swarm = await self._start_swarm()
        driver = self._driver = self._make_driver(swarm)
        self._rounds = TrainerRounds(
            me=self._identity.peer_id,
            replica=self._replica,
            buffers=self._buffers,
            grid=self._grid,
            inner=self._inner,
            terms=self._terms,
            contribute=driver.contribute,
            tell=self._trainer.send,
            on_warning=self._telemetry.warn,
            may_train_on=lambda: driver.num_alive >= self._genesis.membership.min_peers,
        )
        donor = Donor(self._replica, lambda number: [raw.hex() for raw in driver.attestations(number).values()])
        StateServer(driver.transport, donor, driver.executor)
        self._reporter.attach(Parts(driver, swarm, self._rounds))
        if self._identity.peer_id not in driver.roster:
            driver.set_progress(phase="starting")  # until there is a trainer: who is admitted is waited for
        await driver.start()
        self._spawn(self._rounds.run())
        self._spawn(self._look())
        self._spawn(self._open_when_met())
        self._spawn(self._until_in_vain())
        for report in self._early_reports:
            self._on_report(report)
        await self._until_finished(driver)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _start_swarm(self) -> Swarm:
        known = self._known_peers.addresses
        settings = network.swarm_settings(self._settings, self._rules, self._identity.peer_id, known)
        try:
            return await Swarm.start(settings, self._on_swarm_event)
        except SwarmError as error:
            what, _, todo = str(error).partition("; ")
            raise UserError(what, "", todo or "see the log", code="swarm") from None
        except PortInUse as error:
            what, _, _ = str(error).partition("; ")
            raise UserError(what, "", "choose another with --port, or 0 for a free one", code="port_in_use") from None

    def _terms(self) -> Terms:
        """What the rules in force mean for the trainer's next round."""
        rules = self._rules
        is_held_up = rules.control.paused or rules.control.required_protocol > PROTOCOL_VERSION
        return Terms(
            last_round=rules.stop.num_rounds,
            is_open=not is_held_up and rules.admits(self._identity.peer_id),
            inner_lr=training_config(rules, "rules in force").inner.lr,
        )

    def _make_driver(self, swarm: Swarm) -> RoundDriver:
        facts = NodeFacts(
            lease_samples=self._inner.lease_samples,
            name=self._settings.name,
            version=VERSION,
            addresses=lambda: swarm.addresses[:8],
            reachable=lambda: swarm.is_met_by(self._other_members()),
        )
        return RoundDriver(
            identity=self._identity,
            genesis=self._genesis,
            transport=swarm.transport,
            directory=swarm.directory,
            folder=self._settings.folder / "rounds",
            replica=self._replica,
            grid=self._grid,
            facts=facts,
            observer=self._on_round_event,
            sync=self._load_state,
            prove=self._prove_head,
            book=self._book,
        )

    def _other_members(self) -> list[PeerId]:
        roster = () if self._driver is None else self._driver.roster
        return [peer for peer in roster if peer != self._identity.peer_id]

    async def stop(self, grace_s: float) -> None:
        """Save, say goodbye, close the network. Idempotent."""
        if self._rounds is not None:
            self._rounds.close()
        await self._trainer.stop(save=True, timeout_s=grace_s * 0.6)
        self._telemetry.point("node.saved", "what was trained is saved")
        if self._driver is not None:
            self._keep_receipt(None)
            await self._driver.leave()
            self._telemetry.point("node.left", "the others know that this node leaves")
        if self._swarm is not None:
            await self._swarm.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._swarm = self._driver = self._rounds = None

    async def _run_trainer(self) -> None:
        try:
            await self._trainer.run()
        except TrainerGaveUp as error:
            self._telemetry.alert("trainer", str(error), fix="See the log, then start the node again.", is_error=True)
            raise UserError(str(error), "", "see the log above, then start the node again", code="trainer") from None

    async def _until_finished(self, driver: RoundDriver) -> None:
        """Wait for the last round; or for a task that cannot go on, whose exception is raised."""
        while not self.is_finished:
            self._applied.clear()
            applied = asyncio.ensure_future(self._applied.wait())
            running = [task for task in self._tasks if not task.done()]
            done, _ = await asyncio.wait({applied, driver.failed, *running}, return_when=asyncio.FIRST_COMPLETED)
            applied.cancel()
            for task in done:
                task.result()
        await self._linger(driver)

    async def _linger(self, driver: RoundDriver) -> None:
        """Wait for our evaluation of the last state, and for members that may still come for the last round."""
        deadline_s = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline_s and not self._others_are_done(driver):  # noqa: ASYNC110 - time decides too
            await asyncio.sleep(0.2)
        if self._is_evaluator(self._replica.head):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._evaluation.wait(), _EVALUATION_PATIENCE_S)

    def _others_are_done(self, driver: RoundDriver) -> bool:
        """Whether every member has applied the last round, has left, or has been silent for so long that it is lost.

        One that only stalls (a suspended machine, a break of the network) finds nobody any more once we have ended.
        """
        now_s, patience_s = time.monotonic(), self._rules.timing.drop_after_s
        members = (info for peer, info in driver.peers.items() if peer in driver.roster)
        recent = (info.heartbeat for info in members if info.is_alive(now_s, patience_s))
        return all(
            heartbeat is not None and (heartbeat.round >= self.head_round or heartbeat.phase == "leaving")
            for heartbeat in recent
        )

    # --- what others say ----------------------------------------------------------------------------------------------

    def _on_swarm_event(self, event: SwarmEvent) -> None:
        if event.kind == "addresses" and self._swarm is None and event.text.startswith("own addresses"):
            return  # a moment later "listening on" says the same
        network.tell(self._telemetry, event)

    def _on_report(self, report: Report) -> None:
        if self._rounds is None or self._driver is None:
            self._early_reports.append(report)
            return
        match report:
            case Hello():
                self._reporter.trainer(report)
                self._driver.set_progress(phase="training")
            case Progress():
                self._reporter.progress(report)
                self._driver.set_progress(
                    phase="training",
                    num_inner_steps=report.step,
                    target_inner_steps=report.num_steps,
                    tokens=report.num_tokens,
                    tokens_per_s=report.tokens_per_s,
                    loss=report.loss,
                )
            case Ready():
                self._reporter.enter("gather")
            case Evaluation():
                if report.round == self.head_round:
                    self._evaluation.set()
                self._reporter.evaluation(report.round, report.validation_loss)
                self._driver.set_progress(evaluated_round=report.round, validation_loss=report.validation_loss)
            case Withheld():
                self._telemetry.alert("withheld", f"{report.reason}; nothing was sent, training goes on")
                self._failures.withheld(report.reason)
                self._give_up_if_in_vain()
            case Warned():
                self._telemetry.warn(report.text)
            case _:
                pass
        self._rounds.on_report(report)

    def _on_trainer_death(self, cause: str) -> None:
        self._telemetry.alert("trainer", f"the trainer {cause}; it is started again from its last checkpoint")
        if self._rounds is not None:
            self._rounds.on_death()

    def _on_round_event(self, event: RoundEvent) -> None:
        """Everything the driver does is journalled before anything else follows from it."""
        if event.point == "lineage.begun" and self._rounds is not None:
            self._rounds.on_state_replaced()
        if event.point == "rules.in_force":
            self._event_loop.call_soon(self._on_rules)
        outcome = event.fields.get("outcome")
        if not isinstance(outcome, Committed):
            self._reporter.round_event(event)
            if event.point == "exchange.excluded" and event.fields["rule"] == "self":
                self._failures.refused(str(event.fields["why"]))
            return
        self._failures.committed(counted=outcome.counted)
        self._give_up_if_in_vain()
        self._evaluation.clear()
        if self._driver is not None:
            self._driver.set_progress(num_inner_steps=0, target_inner_steps=0, tokens=0)
        self._reporter.applied(outcome)
        self._keep_receipt(outcome.commit)
        if self._rounds is not None:
            self._rounds.on_applied(outcome, is_evaluator=self._is_evaluator(outcome.commit))
        self._applied.set()

    def _keep_receipt(self, commit: Commit | None) -> None:
        """Write the receipt of the round before ``commit``; with None that of the last round of all."""
        driver = self._driver
        if driver is None:
            return
        book, attests = self._receipts, driver.attestations
        number = book.flush(attests) if commit is None else book.on_applied(commit, attests)
        if number is not None:
            self._reporter.receipt(number)

    def _on_rules(self) -> None:
        """The run may be open again, or over."""
        if self._rounds is not None:
            self._rounds.on_rules()
        self._applied.set()

    def _give_up_if_in_vain(self) -> None:
        if self._failures.is_too_many and not self._in_vain.done():
            self._telemetry.state(State.FAILED, Reason.REPEATED_FAILURES, **self._failures.values)
            self._in_vain.set_exception(self._failures.error())

    async def _until_in_vain(self) -> None:
        await self._in_vain

    def _is_evaluator(self, commit: Commit | None) -> bool:
        """Members take turns in evaluating the new state: it is the same everywhere."""
        if commit is None:
            return False
        plan = commit.record.plan
        return plan.members[plan.round % len(plan.members)].peer == self._identity.peer_id

    # --- state sync ---------------------------------------------------------------------------------------------------

    def _state_loader(self, driver: RoundDriver) -> StateLoader:
        return StateLoader(
            book=self._book,
            me=self._identity.peer_id,
            transport=driver.transport,
            replica=self._replica,
            results=lambda: driver.results,
            donors=lambda: driver.ahead,
            folder=self._settings.folder,
            grid=self._grid,
            lease_samples=self._inner.lease_samples,
            on_progress=self._on_sync_progress,
            on_misconduct=self._note_bad_donor,
        )

    def _note_bad_donor(self, error: Exception) -> None:
        """A donor has lied: said and journalled with its name."""
        if isinstance(error, RemoteProtocolError):
            fields: dict[str, object] = {"peer": error.peer, "rule": error.rule, "detail": error.detail}
            self._reporter.round_event(RoundEvent("state.rejected", self._replica.head_round + 1, fields))
        else:
            self._telemetry.say(f"state sync: {error}", "warning")

    async def _prove_head(self) -> int:
        """Somebody says that the swarm is far ahead of us: the newest round that anybody can prove."""
        return 0 if self._driver is None else await self._state_loader(self._driver).prove()

    async def _load_state(self) -> None:
        """The driver is too far behind: load a snapshot. A failure is said; the driver asks again."""
        driver = self._driver
        if driver is None:
            return
        before = self.head_round, self._replica.state_hash
        self._reporter.syncing(0, len(driver.ahead))
        try:
            await self._state_loader(driver).load()
        except (StateUnavailable, OSError) as error:
            self._telemetry.warn(f"state sync: {error}; it is tried again")
            await asyncio.sleep(_LOOK_INTERVAL_S)
        finally:
            self._reporter.syncing(None, 0)
        if (self.head_round, self._replica.state_hash) != before:
            self._telemetry.say(f"loaded the verified state of round {self.head_round}")
            if self._rounds is not None:
                self._rounds.on_state_replaced()
            self._applied.set()

    def _on_sync_progress(self, progress: SyncProgress) -> None:
        percent = 100 * progress.num_verified // max(progress.num_leaves, 1)
        self._reporter.syncing(percent, progress.num_donors)

    # --- regular work -------------------------------------------------------------------------------------------------

    async def _open_when_met(self) -> None:
        """Train from the state that the swarm has, not from the one that we had: first hear from somebody.

        A lone quorum starts at once; where nobody answers, training starts after the heartbeat's time limit.
        """
        driver = self._driver
        deadline_s = time.monotonic() + self._genesis.timing.heartbeat_timeout_s
        while driver is not None and time.monotonic() < deadline_s:
            others = [peer for peer in driver.roster if peer != self._identity.peer_id]
            heard = [i.heartbeat for p, i in driver.peers.items() if p in others and i.heard_s and i.heartbeat]
            is_level = all(heartbeat.round <= self.head_round for heartbeat in heard)
            if not others or (heard and is_level):
                break
            await asyncio.sleep(0.05)
        if self._rounds is not None:
            self._rounds.open()

    def _take_submitted(self, driver: RoundDriver) -> None:
        """What the operator has signed with ``atoll run amend`` in this node's folder."""
        submitted = [a for a in self._amendments.collect() if a.number > self._book.num_amendments]
        if submitted:
            driver.amend(submitted)

    async def _look(self) -> None:
        """Once a second: the sentence, the peers, and their addresses for the next start."""
        while True:
            self._reporter.look()
            if self._driver is not None:
                self._known_peers.remember(_addresses(self._driver.peers))
                self._take_submitted(self._driver)
            await asyncio.sleep(_LOOK_INTERVAL_S)


def _addresses(peers: Mapping[PeerId, PeerInfo]) -> dict[PeerId, tuple[str, ...]]:
    """Plain addresses (without the peer id at their end) that peers state in their heartbeats."""
    found: dict[PeerId, tuple[str, ...]] = {}
    for peer, info in peers.items():
        if info.heartbeat is not None:
            found[peer] = tuple(text.rpartition("/p2p/")[0] or text for text in info.heartbeat.addresses)
    return found
