"""Brings a node that is too far behind to the swarm's state: what its driver's `sync` and `prove` do, and say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..protocol.driver import Driver
from ..protocol.outcomes import RoundEvent
from ..protocol.state_sync import StateUnavailable, SyncProgress
from ..protocol.transport import RemoteProtocolError
from .local_parts import LocalParts
from .reporter import Reporter
from .state_loading import StateLoader

_RETRY_S = 1.0


class StateFromPeers:
    """``driver`` is asked each time: there is none before the network is up, and then nothing can be had.

    ``on_loaded`` is called when another state is installed.
    """

    def __init__(
        self, local: LocalParts, reporter: Reporter, driver: Callable[[], Driver | None], on_loaded: Callable[[], None]
    ) -> None:
        self._local, self._replica, self._telemetry = local, local.replica, local.telemetry
        self._reporter, self._driver, self._on_loaded = reporter, driver, on_loaded

    async def prove(self) -> int:
        """Somebody says that the swarm is far ahead of us: the newest round that anybody can prove."""
        driver = self._driver()
        return 0 if driver is None else await self._loader(driver).prove()

    async def load(self) -> None:
        """The driver is too far behind: load a snapshot. A failure is said; the driver asks again."""
        if (driver := self._driver()) is None:
            return
        before = (self._replica.head_round, self._replica.state_hash)
        self._reporter.syncing(0, len(driver.ahead))
        try:
            what = await self._install(driver)
        except (StateUnavailable, OSError) as error:
            what = "loaded a part of what was missing"
            self._telemetry.warn(f"state sync: {error}; it is tried again")
            await asyncio.sleep(_RETRY_S)
        finally:
            self._reporter.syncing(None, 0)
        if (self._replica.head_round, self._replica.state_hash) != before:
            self._telemetry.say(what)
            self._on_loaded()

    async def _install(self, driver: Driver) -> str:
        """Take over what others give; returns what to say of it. Raises `StateUnavailable`, or OSError."""
        await self._loader(driver).load()
        return f"loaded the verified state of round {self._replica.head_round}"

    def _loader(self, driver: Driver) -> StateLoader:
        local = self._local
        return StateLoader(
            book=local.book,
            me=local.me,
            transport=driver.transport,
            replica=local.common_replica,
            results=lambda: driver.results,
            donors=lambda: driver.ahead,
            folder=local.settings.folder,
            grid=local.grid,
            lease_samples=local.spec.training.inner.lease_samples,
            on_progress=self._show_progress,
            on_misconduct=self._note_bad_donor,
        )

    def _show_progress(self, progress: SyncProgress) -> None:
        percent = 100 * progress.num_verified // max(progress.num_leaves, 1)
        self._reporter.syncing(percent, progress.num_donors)

    def _note_bad_donor(self, error: Exception) -> None:
        """A donor has lied: said and journalled with its name."""
        if isinstance(error, RemoteProtocolError):
            fields: dict[str, object] = {"peer": error.peer, "rule": error.rule, "detail": error.detail}
            self._reporter.round_event(RoundEvent("state.rejected", self._replica.head_round + 1, fields))
        else:
            self._telemetry.say(f"state sync: {error}", "warning")
