"""Carries a fault schedule out: every fault begins at its time and heals at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, assert_never

from ..identity import PeerId
from ..messages import Commit, PlanMessage, Promise, Proposal, Ready, SpanDone, Vote
from ..round_machine import Action, Persist, Send, StartExchange
from .behaviours import BEHAVIOURS, Behaviour
from .faults import (
    Accuse,
    Amend,
    BadNetwork,
    BanPeer,
    ClockJump,
    Crash,
    CrashAt,
    CutOneWay,
    DeafAt,
    DeafToRules,
    DialOutOnly,
    Fault,
    Forge,
    Join,
    Leave,
    LoseDisk,
    Misbehave,
    Moment,
    Partition,
    PauseRun,
    RestoreState,
    RollBack,
    Sleep,
    SlowPeer,
)
from .faulty import CALM_LATENCY_S, FaultySwarm
from .government import Government
from .network import Link
from .nodes import Node

Heal: TypeAlias = Callable[[], None]
_LEAVING_S = 0.6
"""From saying that one leaves to the end of the process."""

_MOMENTS: dict[Moment, type] = {
    "announcing": Ready,
    "planning": PlanMessage,
    "exchanging": StartExchange,
    "reducing": SpanDone,
    "proposing": Proposal,
    "promising": Promise,
    "writing": Persist,
    "voting": Vote,
    "committing": Commit,
}


def is_moment(action: Action, moment: Moment) -> bool:
    """Whether a node that performs ``action`` is at ``moment``."""
    kind = _MOMENTS[moment]
    return isinstance(action, kind) or (isinstance(action, Send) and isinstance(action.message, kind))


class Injector:
    """The faults of one run. After `heal` nothing is broken any more."""

    def __init__(self, swarm: FaultySwarm, faults: Iterable[Fault]) -> None:
        self._swarm = swarm
        self._cuts: list[frozenset[tuple[PeerId, PeerId]]] = []
        self._weather: list[BadNetwork] = []
        self._is_over = False
        self._government = Government(swarm)
        for fault in faults:
            swarm.at(fault.at_s, self._strike, fault)

    def heal(self) -> None:
        """End every fault that still goes on, and start every node that is down."""
        swarm, self._is_over = self._swarm, True
        self._cuts.clear()
        self._weather.clear()
        self._change_network()
        for settings in (swarm.slowness_s, swarm.training_factor, swarm.wall_offset_s):
            settings.clear()
        for peer in list(swarm.nodes):
            swarm.set_link(peer, Link())
            swarm.nodes[peer].behaviour = Behaviour()
            self._revive(peer)
        self._government.heal()

    def _strike(self, fault: Fault) -> None:
        if self._is_over:
            return
        end = self._begin(fault)
        if end is not None:
            self._swarm.at(self._swarm.now + fault.for_s, self._end, end)

    def _end(self, end: Heal) -> None:
        if not self._is_over:
            end()

    def _begin(self, fault: Fault) -> Heal | None:
        """Start a fault; returns what ends it. A peer that is not there (yet) has nothing to lose."""
        swarm, people = self._swarm, self._swarm.people
        match fault:
            case Partition() | CutOneWay():
                return self._cut(_cut_links(people, fault))
            case BadNetwork():
                return self._rain(fault)
            case CrashAt():
                return self._lie_in_wait(fault)
            case DeafAt():
                return self._deafen(fault)
            case Amend() | Forge() | PauseRun() | BanPeer() | RollBack() | DeafToRules() | Accuse():
                return self._government.begin(fault)
            case Join():
                return None if people[fault.peer] in swarm.nodes else swarm.enter(people[fault.peer])
            case _:
                peer = people[fault.peer]
                return self._begin_at(peer, fault) if peer in swarm.nodes else None

    def _begin_at(
        self,
        peer: PeerId,
        fault: Crash | Sleep | SlowPeer | LoseDisk | RestoreState | Leave | ClockJump | DialOutOnly | Misbehave,
    ) -> Heal | None:
        swarm, node = self._swarm, self._swarm.nodes[peer]
        match fault:
            case Crash():
                swarm.crash(peer)
                return partial(self._revive, peer)
            case Sleep():
                swarm.sleep(peer)
                return partial(swarm.wake, peer)
            case SlowPeer():
                swarm.slowness_s[peer], swarm.training_factor[peer] = fault.latency_s, fault.factor
                return partial(_forget, peer, swarm.slowness_s, swarm.training_factor)
            case LoseDisk():
                swarm.crash(peer)
                if node.round > 1:  # a founder in round 1 has nothing by which it could know
                    swarm.lost_disks.add(peer)
                return partial(self._revive, peer)
            case RestoreState():
                swarm.crash(peer)
                del node.disk.commits[max(0, len(node.disk.commits) - fault.num_rounds) :]
                return partial(self._revive, peer)
            case Leave():
                node.phase = "leaving"
                swarm.left_s[peer] = swarm.now
                swarm.at(swarm.now + _LEAVING_S, self._go, node)
                return partial(self._revive, peer)
            case ClockJump():
                swarm.wall_offset_s[peer] = fault.by_s
                return partial(_forget, peer, swarm.wall_offset_s)
            case Misbehave():
                node.behaviour = BEHAVIOURS[fault.how]()
                return partial(setattr, node, "behaviour", Behaviour())
            case DialOutOnly():
                swarm.set_link(peer, Link(is_dial_out_only=True))
                return partial(swarm.set_link, peer, Link())
            case _:
                assert_never(fault)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _revive(self, peer: PeerId) -> None:
        swarm, node = self._swarm, self._swarm.nodes[peer]
        node.phase = "training"
        swarm.wake(peer)
        if node.is_up:
            return
        if peer in swarm.lost_disks:
            swarm.restart_empty(peer)
        else:
            swarm.start(peer)

    def _go(self, node: Node) -> None:
        if node.phase == "leaving":
            self._swarm.crash(node.peer)

    def _lie_in_wait(self, fault: CrashAt) -> Heal:
        swarm, victims = self._swarm, list[PeerId]()

        def strike(node: Node, action: Action) -> None:
            victims.append(node.peer)
            if fault.after:
                swarm.perform(node, action)
            swarm.crash(node.peer)
            if fault.loses_disk and node.round > 1:
                swarm.lost_disks.add(node.peer)

        def heal() -> None:
            for peer in victims:
                self._revive(peer)

        return self._at_moment(fault, strike, heal)

    def _deafen(self, fault: DeafAt) -> Heal:
        heals: list[Heal] = []

        def strike(node: Node, _action: Action) -> None:
            others = (peer for peer in self._swarm.people if peer != node.peer)
            heals.append(self._cut(frozenset((peer, node.peer) for peer in others)))

        def heal() -> None:
            for end in heals:
                end()

        return self._at_moment(fault, strike, heal)

    def _at_moment(self, fault: CrashAt | DeafAt, strike: Callable[[Node, Action], None], heal: Heal) -> Heal:
        """Do ``strike`` to the ``number``-th node that reaches the fault's moment, once; returns what ends all that."""
        ears, passed = self._swarm.ears.action, itertools.count()

        def listen(node: Node, action: Action) -> None:
            if is_moment(action, fault.moment) and next(passed) == fault.number:
                strike(node, action)

        def end() -> None:
            ears.remove(listen)
            heal()

        ears.append(listen)
        return end

    # --- network ------------------------------------------------------------------------------------------------------

    def _cut(self, links: frozenset[tuple[PeerId, PeerId]]) -> Heal:
        self._cuts.append(links)
        self._change_network()

        def end() -> None:
            self._cuts.remove(links)
            self._change_network()

        return end

    def _rain(self, fault: BadNetwork) -> Heal:
        self._weather.append(fault)
        self._change_network()

        def end() -> None:
            self._weather.remove(fault)
            self._change_network()

        return end

    def _change_network(self) -> None:
        network, low_s = self._swarm.network, CALM_LATENCY_S[0]
        network.cut = set().union(*self._cuts)
        loss = max((weather.loss for weather in self._weather), default=0.0)
        duplication = max((weather.duplication for weather in self._weather), default=0.0)
        high_s = max((weather.latency_s for weather in self._weather), default=CALM_LATENCY_S[1])
        network.model = replace(
            network.model, loss=loss, duplication=duplication, latency_s=(low_s, max(low_s, high_s))
        )


def _forget(peer: PeerId, *settings: dict[PeerId, float]) -> None:
    for setting in settings:
        setting.pop(peer, None)


def _cut_links(people: tuple[PeerId, ...], fault: Partition | CutOneWay) -> frozenset[tuple[PeerId, PeerId]]:
    if isinstance(fault, CutOneWay):
        pairs = ((people[a], people[b]) for a in fault.senders for b in fault.receivers)
        return frozenset((a, b) for a, b in pairs if a != b)
    sides = {people[peer]: number for number, group in enumerate(fault.groups) for peer in group}
    return frozenset((a, b) for a in sides for b in sides if sides[a] != sides[b])
