"""One node of one run: replica, trainer, network and round driver, wired together.

What follows a fact goes one way: trainer and driver report here, `TrainerRounds` answers the trainer, `Reporter` tells
people. `run` ends when the run's last round is applied and everybody has had the chance to get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence

from ..protocol.driver import Driver, DriverSetup
from ..protocol.heartbeats import NodeFacts
from ..protocol.identity import Identity, PeerId
from ..protocol.messages import Commit, Heartbeat
from ..protocol.outcomes import Committed, RoundEvent
from ..protocol.round_driver import RoundDriver
from ..protocol.spec import PROTOCOL_VERSION
from ..protocol.state_sync import StateServer
from ..protocol.swarm import Swarm, SwarmEvent
from ..training.checkpoint import Saved
from ..training.reducer import Evaluation, Hello, Progress, Ready, Report, Warned, Withheld
from . import network
from .donor import Donor
from .ending import others_are_done
from .errors import UserError
from .failures import Failures
from .invitation import Invitation
from .known_peers import addresses_of
from .local_parts import LocalParts
from .overview import LiveParts
from .reasons import Reason, State
from .receipts import ReceiptBook
from .reporter import Reporter
from .run_spec import RunSpec, training_config
from .settings import NodeSettings
from .state_from_peers import StateFromPeers
from .telemetry import Telemetry
from .trainer_process import TrainerGaveUp, TrainerProcess
from .trainer_rounds import Terms, TrainerRounds
from .version import VERSION
from .work import Work

_LOOK_INTERVAL_S = 1.0
_LINGER_S = 15.0
"""How long a finished node stays, at most, for others to fetch the last round."""
_EVALUATION_PATIENCE_S = 60.0


class Node:
    """Built, then `run` once, then `stop`."""

    def __init__(self, settings: NodeSettings, spec: RunSpec, identity: Identity, telemetry: Telemetry) -> None:
        self._local = local = LocalParts.open(settings, spec, identity, telemetry, self._on_saved)
        self._telemetry, self._replica = telemetry, local.replica
        self._trainer = TrainerProcess(
            local.trainer_spec(),
            settings.folder / "trainer",
            local.buffers,
            on_report=self._on_report,
            on_death=self._on_trainer_death,
        )
        self._invitation = Invitation.of(settings.folder, identity.peer_id)
        self._live: LiveParts | None = None
        """None before the network is up, and after `stop`."""
        self._reporter = Reporter(telemetry, spec, identity.peer_id, settings.name, VERSION, self._replica)
        self._from_peers = self._make_from_peers()
        self._receipts = ReceiptBook(identity, spec.genesis.run_id, telemetry.journal)
        self._tasks: list[asyncio.Task[None]] = []
        self._early_reports: list[Report] = []
        self._evaluation = asyncio.Event()
        """The last committed state is evaluated."""
        self._applied = asyncio.Event()
        self._failures = Failures()
        self._in_vain: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that ends a node whose contributions fail again and again."""

    @property
    def head_round(self) -> int:
        return self._replica.head_round

    @property
    def is_finished(self) -> bool:
        """Whether the run's last round is applied."""
        last = self._local.rules.stop.num_rounds
        return last > 0 and self.head_round >= last

    def _on_saved(self, round_number: int, saved: Saved, num_kept: int) -> None:
        self._reporter.checkpoint(round_number, saved.num_bytes, num_kept)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until the run is finished. Raises `UserError` for what the user can mend."""
        self._spawn(self._run_trainer())
        local = self._local
        settings = network.swarm_settings(local.settings, local.rules, local.me, local.known_peers.addresses)
        swarm = await network.start_swarm(settings, self._on_swarm_event)
        try:
            live = self._live = self._make_live(swarm)
        except Exception:  # `stop` stops only what is live
            await swarm.stop()
            raise
        self._reporter.attach(live)
        if local.me not in live.driver.roster or local.rules.is_gossip:
            live.driver.set_progress(phase="starting")  # until there is a trainer: who is admitted is waited for
        await live.driver.start()
        self._spawn(live.rounds.run())
        self._spawn(self._look(live))
        self._spawn(self._open_when_met(live))
        self._spawn(self._until_in_vain())
        for report in self._early_reports:
            self._on_report(report)
        await self._until_finished(live.driver)

    def _make_live(self, swarm: Swarm) -> LiveParts:
        local, driver = self._local, self._make_driver(self._setup(swarm))
        rounds = TrainerRounds(
            me=local.me,
            replica=local.replica,
            buffers=local.buffers,
            grid=local.grid,
            inner=local.spec.training.inner,
            terms=self._terms,
            contribute=driver.contribute,
            tell=self._trainer.send,
            on_warning=self._telemetry.warn,
            may_train_on=lambda: self._may_train_on(driver),
            work=self._work(driver),
        )
        donor = Donor(local.replica, lambda number: [raw.hex() for raw in driver.attestations(number).values()])
        StateServer(driver.transport, donor, driver.executor)
        return LiveParts(driver, swarm, rounds)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _terms(self) -> Terms:
        """What the rules in force mean for the trainer's next round."""
        rules = self._local.rules
        is_held_up = rules.control.paused or rules.control.required_protocol > PROTOCOL_VERSION
        return Terms(
            last_round=rules.stop.num_rounds,
            is_open=not is_held_up and self._is_admitted(),
            inner_lr=training_config(rules, "rules in force").inner.lr,
        )

    def _is_admitted(self) -> bool:
        return self._replica.standing.admits(self._local.rules, self._local.me)

    def _may_train_on(self, driver: Driver) -> bool:
        """Whether the run allows provisional work now."""
        return driver.num_alive >= self._local.rules.membership.min_peers

    def _work(self, driver: Driver) -> Work | None:
        """None: leases and steps follow from the roster."""
        del driver

    def _make_driver(self, setup: DriverSetup) -> Driver:
        return RoundDriver(setup)

    def _setup(self, swarm: Swarm) -> DriverSetup:
        local = self._local
        facts = NodeFacts(
            lease_samples=local.spec.training.inner.lease_samples,
            name=local.settings.name,
            version=VERSION,
            addresses=lambda: swarm.addresses[:8],
            reachable=lambda: swarm.is_met_by(self._other_members()),
            ticket=self._invitation.ticket,
        )
        return DriverSetup(
            identity=local.identity,
            book=local.book,
            transport=swarm.transport,
            directory=swarm.directory,
            folder=local.settings.folder / "rounds",
            replica=local.replica,
            grid=local.grid,
            facts=facts,
            observer=self._on_round_event,
            sync=self._from_peers.load,
            prove=self._from_peers.prove,
            recomputer=local.recomputer() if local.rules.trust.spot_checks else None,
        )

    def _make_from_peers(self) -> StateFromPeers:
        return StateFromPeers(self._local, self._reporter, self._driver, self._on_loaded)

    def _driver(self) -> Driver | None:
        return None if self._live is None else self._live.driver

    def _other_members(self) -> list[PeerId]:
        return [peer for peer in self._replica.standing.roster if peer != self._local.me]

    async def stop(self, grace_s: float) -> None:
        """Save, say goodbye, close the network. Idempotent."""
        live = self._live
        if live is not None:
            live.rounds.close()
        await self._trainer.stop(save=True, timeout_s=grace_s * 0.6)
        self._telemetry.point("node.saved", "what was trained is saved")
        if live is not None:
            self._keep_receipt(live.driver, None)
            await live.driver.leave()
            self._telemetry.point("node.left", "the others know that this node leaves")
            await live.swarm.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._live = None

    async def _run_trainer(self) -> None:
        try:
            await self._trainer.run()
        except TrainerGaveUp as error:
            self._telemetry.alert("trainer", str(error), fix="See the log, then start the node again.", is_error=True)
            raise UserError(str(error), "", "see the log above, then start the node again", code="trainer") from None

    async def _until_finished(self, driver: Driver) -> None:
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

    async def _linger(self, driver: Driver) -> None:
        """Wait for our evaluation of the last state, and for members that may still come for the last round."""
        deadline_s = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline_s and not self._others_are_done(driver):  # noqa: ASYNC110 - time decides too
            await asyncio.sleep(0.2)
        if self._is_evaluator(self._replica.head):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._evaluation.wait(), _EVALUATION_PATIENCE_S)

    def _others_are_done(self, driver: Driver) -> bool:
        patience_s = self._local.rules.timing.drop_after_s
        return others_are_done(driver.roster, driver.peers, self.head_round, patience_s, time.monotonic())

    # --- what others say ----------------------------------------------------------------------------------------------

    def _on_swarm_event(self, event: SwarmEvent) -> None:
        if event.kind == "addresses" and self._live is None and event.text.startswith("own addresses"):
            return  # a moment later "listening on" says the same
        network.tell(self._telemetry, event)

    def _on_report(self, report: Report) -> None:
        if (live := self._live) is None:
            self._early_reports.append(report)
            return
        match report:
            case Hello():
                self._reporter.trainer(report)
                live.driver.set_progress(phase="training")
            case Progress():
                self._reporter.progress(report)
                live.driver.set_progress(
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
                live.driver.set_progress(evaluated_round=report.round, validation_loss=report.validation_loss)
            case Withheld():
                self._telemetry.alert("withheld", f"{report.reason}; nothing was sent, training goes on")
                self._failures.withheld(report.reason)
                self._give_up_if_in_vain()
            case Warned():
                self._telemetry.warn(report.text)
            case _:
                pass
        live.rounds.on_report(report)

    def _on_trainer_death(self, cause: str) -> None:
        self._telemetry.alert("trainer", f"the trainer {cause}; it is started again from its last checkpoint")
        if self._live is not None:
            self._live.rounds.on_death()

    def _on_round_event(self, event: RoundEvent) -> None:
        """Everything the driver does is journalled before anything else follows from it."""
        if event.point == "lineage.begun" and self._live is not None:
            self._live.rounds.on_state_replaced()
        if event.point == "rules.in_force":
            asyncio.get_running_loop().call_soon(self._on_rules)
        outcome = event.fields.get("outcome")
        if not isinstance(outcome, Committed):
            self._reporter.round_event(event)
            if event.point == "exchange.excluded" and event.fields["rule"] == "self":
                self._failures.refused(str(event.fields["why"]))
            return
        self._failures.committed(counted=outcome.counted)
        self._give_up_if_in_vain()
        self._evaluation.clear()
        self._reporter.applied(outcome)
        if self._live is not None:
            self._live.driver.set_progress(num_inner_steps=0, target_inner_steps=0, tokens=0)
            self._keep_receipt(self._live.driver, outcome.commit)
            self._live.rounds.on_applied(outcome, is_evaluator=self._is_evaluator(outcome.commit))
        self._applied.set()

    def _on_loaded(self) -> None:
        """Another state is installed than the trainer has worked from."""
        if self._live is not None:
            self._live.rounds.on_state_replaced()
        self._applied.set()

    def _keep_receipt(self, driver: Driver, commit: Commit | None) -> None:
        """Write the receipt of the round before ``commit``; with None that of the last round of all."""
        book, attests = self._receipts, driver.attestations
        number = book.flush(attests) if commit is None else book.on_applied(commit, attests)
        if number is not None:
            self._reporter.receipt(number)

    def _on_rules(self) -> None:
        """The run may be open again, or over."""
        if self._live is not None:
            self._live.rounds.on_rules()
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
        return plan.members[plan.round % len(plan.members)].peer == self._local.me

    # --- regular work -------------------------------------------------------------------------------------------------

    async def _open_when_met(self, live: LiveParts) -> None:
        """Train from the state that the swarm has, not from the one that we had: first hear from somebody.

        A lone quorum starts at once; where nobody answers, training starts after the heartbeat's time limit.
        """
        deadline_s = time.monotonic() + self._local.rules.timing.heartbeat_timeout_s
        while time.monotonic() < deadline_s:
            others, peers = self._other_members(), live.driver.peers
            heard = [i.heartbeat for p, i in peers.items() if p in others and i.heard_s and i.heartbeat]
            if not others or (heard and self._is_level(live.driver, heard)):
                break
            await asyncio.sleep(0.05)
        live.rounds.open()

    def _is_level(self, driver: Driver, heard: Sequence[Heartbeat]) -> bool:
        """Whether this node's state is as new as that of the others."""
        del driver
        return all(heartbeat.round <= self.head_round for heartbeat in heard)

    def _take_submitted(self, driver: Driver) -> None:
        """What the operator has signed with ``atoll run amend`` in this node's folder."""
        num_known = self._local.book.num_amendments
        if submitted := [a for a in self._local.amendments.collect() if a.number > num_known]:
            driver.amend(submitted)

    async def _look(self, live: LiveParts) -> None:
        """Once a second: the sentence, the peers, and their addresses for the next start."""
        while True:
            self._reporter.look()
            self._local.known_peers.remember(addresses_of(live.driver.peers))
            self._take_submitted(live.driver)
            self._invitation.look(self._telemetry, self._local.rules, self._replica.standing, time.time())
            await asyncio.sleep(_LOOK_INTERVAL_S)
