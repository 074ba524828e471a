"""How a node is in touch with the other peers of its run, whatever they do together: gate, mail, peers, heartbeats.

A driver adds what the peers do together. Where it stands (`Standpoint`) is all that heartbeats need to know of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .allowance import Allowances
from .doorkeeper import Doorkeeper
from .driver import DriverSetup
from .gate import Gate
from .heartbeats import Heartbeats, Progress, Rhythm, compose
from .identity import PeerId
from .mail import Mail
from .messages import Group, Heartbeat, Provisional, Refused
from .peers import PeerTable
from .points import Points
from .round_machine import Phase
from .spec import Genesis, TimingConfig
from .transport import RemoteProtocolError

_REFUSALS_PER_S, _REFUSALS_AT_ONCE = 1.0, 16
"""Answers to all strangers together whose invites do not hold."""
_EJECTED_TOLD_PER_S = 1 / 60
"""To each peer that the run has ejected: it may have missed the commit that says so, and gets nothing else from us."""


@dataclass(frozen=True)
class Standpoint:
    """Where this node stands in the round, for its heartbeats."""

    phase: Phase
    provisional: Provisional | None = None
    group: Group | None = None
    abstains: bool = False


def _rhythm(timing: TimingConfig) -> Rhythm:
    return Rhythm(timing.heartbeat_interval_s, timing.heartbeat_timeout_s / 2)


class Contact:
    """Parts that know each other: whoever passes the gate is heard, whoever is heard is a known peer."""

    def __init__(self, setup: DriverSetup, standpoint: Callable[[], Standpoint]) -> None:
        self._setup, self._standpoint = setup, standpoint
        self._rules = rules = setup.rules
        self._refusals = Allowances(_REFUSALS_PER_S, _REFUSALS_AT_ONCE, setup.clock)
        self._ejected_told = Allowances(_EJECTED_TOLD_PER_S, 1, setup.clock)
        self._progress = Progress()
        doorkeeper = Doorkeeper(rules, lambda: setup.replica.standing, setup.wall_clock)
        self.gate = Gate(setup.transport, rules, setup.clock, self._refuse, doorkeeper)
        setup.directory.admit(self.gate.admits)
        self.peers = PeerTable(setup.me, setup.clock)
        self.mail = Mail(
            setup.identity,
            rules,
            setup.book.rules.lineage,
            self.gate,
            setup.folder,
            setup.wall_clock,
            self._note_unreachable,
        )
        self.points = Points(setup.observer, setup.replica, self.mail, setup.clock)
        self.heartbeats = Heartbeats(
            _rhythm(rules.timing),
            setup.directory,
            self.mail,
            self.peers,
            self._compose,
            setup.wall_clock,
            self.gate.admits,
            self._is_known,
        )

    def obey(self, genesis: Genesis) -> None:
        """From now on these rules hold."""
        self._rules = genesis
        self.gate.obey(genesis)
        self.mail.obey(genesis)
        self.heartbeats.rhythm = _rhythm(genesis.timing)

    def may_live(self, peer: PeerId) -> bool:
        """Whether the peer is alive, or has never been heard."""
        return self.peers.may_live(peer, self._rules.timing.heartbeat_timeout_s)

    @property
    def alive(self) -> frozenset[PeerId]:
        """Other peers that are alive: heard within the heartbeat's time limit, and not leaving."""
        now_s, timeout_s = self._setup.clock(), self._rules.timing.heartbeat_timeout_s
        return frozenset(peer for peer, info in self.peers.all.items() if info.is_alive(now_s, timeout_s))

    def set_progress(self, **changes: Any) -> bool:
        """Change fields of what heartbeats say; whether the phase is another one, which is worth saying at once."""
        before, self._progress = self._progress, replace(self._progress, **changes)
        return before.phase != self._progress.phase

    async def say_goodbye(self) -> None:
        """Tell everybody that we leave."""
        self.set_progress(phase="leaving")
        self.heartbeats.say_now()
        await self.mail.flush()

    # --- for the parts ------------------------------------------------------------------------------------------------

    def _compose(self) -> Heartbeat:
        setup, here = self._setup, self._standpoint()
        known, now_unix_s = setup.book.num_amendments, setup.wall_clock()
        facts, replica = setup.facts, setup.replica
        heartbeat = compose(
            facts, self._progress, replica, here.phase, known, now_unix_s, here.provisional, abstains=here.abstains
        )
        return heartbeat.model_copy(update={"echoes": self.peers.echoes(setup.clock()), "group": here.group})

    def _is_known(self) -> bool:
        """Whether whoever follows the run lets us in without seeing our invite."""
        return self._setup.replica.standing.admits(self._rules, self._setup.me)

    def _refuse(self, error: RemoteProtocolError) -> None:
        """At the gate. Who shows an invite hears why it does not hold, as far as there is time for strangers."""
        self.points.reject(error)
        is_told = (error.rule == "invite" and self._refusals.take(self._setup.me)) or (
            error.rule == "ejected" and self._ejected_told.take(error.peer)
        )
        if is_told:
            self.mail.post((error.peer,), Refused(why=error.detail[:200]))

    def _note_unreachable(self, peer: PeerId, why: str) -> None:
        if self.peers.unreachable(peer, why):
            self.points.observe("peer.unreachable", {"peer": peer, "why": why})
