"""The node: everything that one volunteer's process runs, put together, and ended in order.

Start: spec, folder lock, identity, journal, dashboard, state from disk, trainer and network side by side, round driver.
End (SIGTERM, Ctrl-C, `atoll stop`, the run's last round): the trainer saves, the swarm hears that we leave, and only
then network, dashboard and journal close.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import FrameType
from typing import Any

from ..protocol.amendments import RunRules
from ..protocol.identity import Identity
from ..protocol.launcher import die_with_parent
from .dashboard.server import DashboardServer
from .endpoint import remove_endpoint, write_endpoint
from .errors import UserError
from .gossip_node import GossipNode
from .injected_faults import KillPoint
from .invitation import own_ticket, standing_in
from .journal import Journal
from .node import Node
from .reasons import Reason, State
from .run_spec import RunSpec, check_initial_state, load_run_spec
from .settings import NodeSettings
from .status import StatusBoard
from .telemetry import Telemetry, printable
from .two_tier_node import TwoTierNode

PARENT_VARIABLE = "ATOLL_PARENT_PID"


def run_node(settings: NodeSettings, spec_path: Path, *, json_lines: bool) -> int:
    """Take part in the run until it is finished or the node is told to stop; returns the exit code.

    Raises `UserError`, `SpecError` or `IdentityError`, each one line, before anything is started.
    """
    spec = load_run_spec(spec_path)
    check_initial_state(spec.genesis, spec.training, str(spec_path))
    if parent := os.environ.get(PARENT_VARIABLE):
        die_with_parent(int(parent), signal.SIGTERM)
    logging.basicConfig(level=settings.log_level.upper(), stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    with _locked(settings.folder):
        identity = Identity.load_or_create(settings.identity_path)
        _check_admitted(spec, identity, settings.folder)
        return _run_loop(_Daemon(settings, spec, identity, json_lines=json_lines).run())


class _LineFormatter(logging.Formatter):
    """One line per message, whatever a stranger's name or reason has in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    """On uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """One node per folder. Raises `UserError` while another one runs in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            todo = "stop that node (atoll stop), or give this one another --folder"
            raise UserError("another node runs in this folder", str(folder), todo, code="duplicate_identity") from None
        yield


def _check_admitted(spec: RunSpec, identity: Identity, folder: Path) -> None:
    rules = spec.rules
    takes_invites = spec.genesis.membership.mode == "invite"
    if takes_invites and (own_ticket(folder, identity.peer_id) or _is_guest(folder, rules, identity)):
        return  # whether an invite still holds depends on what the run has committed since
    if not any(rules.at(number).admits(identity.peer_id) for number in (1, *(a.from_round for a in rules.amendments))):
        todo = (
            "ask the operator for an invite, then: atoll join SPEC --invite FILE"
            if takes_invites
            else f"ask the operator to add your peer id {identity.peer_id} to membership.allowed"
        )
        who = "listed and invited peers only" if takes_invites else "listed peers only"
        raise UserError(f"this run accepts {who}", spec.genesis.name, todo, code="not_authorised")


def _is_guest(folder: Path, rules: RunRules, identity: Identity) -> bool:
    return identity.peer_id in standing_in(folder, rules).guest_of


_KINDS = {"all": Node, "two_tier": TwoTierNode, "gossip": GossipNode}
"""Nodes by the run's topology."""


class _Daemon:
    """Life cycle around a `Node`: journal, dashboard, signals."""

    def __init__(self, settings: NodeSettings, spec: RunSpec, identity: Identity, *, json_lines: bool) -> None:
        self._settings, self._spec, self._identity = settings, spec, identity
        self._json_lines = json_lines
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Everything until the end; see the module."""
        settings = self._settings
        board = StatusBoard()
        journal = Journal(settings.journal_path, kill_point=KillPoint.from_environment())
        telemetry = Telemetry(board, journal, json_lines=self._json_lines)
        dashboard = DashboardServer(settings, board, journal, on_stop=self._stop.set)
        try:
            self._watch_signals()
            url = await dashboard.start()
            write_endpoint(settings.endpoint_path, url, dashboard.access.token)
            telemetry.event("dashboard", url=url)
            telemetry.say(f"dashboard {url}")
            return await self._take_part(telemetry)
        finally:
            await dashboard.close()
            remove_endpoint(settings.endpoint_path)
            journal.close()

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._stop.set)
            except NotImplementedError:  # Windows
                signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(self._stop.set)

    async def _take_part(self, telemetry: Telemetry) -> int:
        telemetry.state(State.STARTING)
        # The heaviest import of the program (seconds); the dashboard answers meanwhile.
        await asyncio.to_thread(importlib.import_module, "atoll.protocol.swarm")
        kind = _KINDS[self._spec.genesis.exchange.topology]
        node = kind(self._settings, self._spec, self._identity, telemetry)
        ends: set[asyncio.Task[Any]] = {asyncio.create_task(self._stop.wait()), asyncio.create_task(node.run())}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except UserError as error:
            telemetry.state(State.FAILED, why=str(error))
            raise
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await node.stop(self._settings.stop_grace_s)
        if node.is_finished:
            telemetry.state(State.STOPPED, Reason.RUN_FINISHED, round=node.head_round)
        else:
            telemetry.state(State.STOPPED)
        return 0
