"""What a node knows of others: who lives, how long messages travel, and by how much clocks differ."""

from __future__ import annotations

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.messages import Echo, Heartbeat
from atoll.protocol.peers import ECHOES_PER_HEARTBEAT, PeerTable
from atoll.protocol.round_machine import Acceptor, begin, live_roster
from atoll.protocol.simulator import World, world_genesis

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 20)]
ME, OTHER = PEERS[:2]


def heartbeat(sent_unix_s: float, *echoes: Echo, **fields: object) -> Heartbeat:
    told = {"round": 3, "state_hash": "ab" * 32, "phase": "training", "sent_unix_s": sent_unix_s, **fields}
    return Heartbeat.model_validate({**told, "echoes": echoes})


class Machine:
    """A node's table with a clock of its own, ``offset_s`` ahead of the true time."""

    def __init__(self, peer: str, offset_s: float = 0.0) -> None:
        self.peer, self.offset_s, self.now = peer, offset_s, 0.0
        self.table = PeerTable(peer, lambda: self.now)

    def send(self, now: float) -> Heartbeat:
        self.now = now
        return heartbeat(1e9 + now + self.offset_s, *self.table.echoes(now))

    def hear(self, sender: str, said: Heartbeat, now: float) -> None:
        self.now = now
        self.table.heard(sender, said, now, 1e9 + now + self.offset_s)


def converse(here: Machine, there: Machine, one_way_s: float) -> None:
    """Two heartbeats there and back, at different times."""
    there.hear(here.peer, here.send(10.0), 10.0 + one_way_s)
    here.hear(there.peer, there.send(11.5), 11.5 + one_way_s)


@pytest.mark.parametrize("offset_s", [0.0, 3600.0, -3600.0])
def test_the_round_trip_is_measured_whatever_the_other_clock_says(offset_s):
    """CLK-03: offsets are measured against peers; no time server is asked."""
    here, there = Machine(ME), Machine(OTHER, offset_s)
    converse(here, there, one_way_s=0.2)
    info = here.table.all[OTHER]
    assert info.round_trip_s == pytest.approx(0.4, abs=1e-5)
    assert info.clock_offset_s == pytest.approx(offset_s, abs=1e-5)


def test_before_an_echo_the_travel_time_is_part_of_the_offset():
    here, there = Machine(ME), Machine(OTHER)
    here.hear(OTHER, there.send(5.0), 5.3)
    assert here.table.all[OTHER].round_trip_s is None
    assert here.table.all[OTHER].clock_offset_s == pytest.approx(-0.3, abs=1e-5)


def test_an_echo_of_before_our_clock_was_set_says_nothing():
    here, there = Machine(ME), Machine(OTHER)
    there.hear(ME, here.send(10.0), 10.1)
    here.offset_s = 7200.0
    here.hear(OTHER, there.send(10.2), 10.3)
    assert here.table.all[OTHER].round_trip_s is None


def test_a_peer_whose_clock_is_too_far_off_to_be_believed_is_known_by_that_alone():
    here = Machine(ME)
    here.table.clock_apart(OTHER, -36000.0, 7.0)
    info = here.table.all[OTHER]
    assert (info.clock_offset_s, info.clock_measured_s, info.heard_s) == (-36000.0, 7.0, None)


def test_echoes_of_others_are_not_ours():
    here = Machine(ME)
    here.hear(OTHER, heartbeat(1e9, Echo(peer=PEERS[2], sent_unix_s=1e9, held_s=0)), 0.5)
    assert here.table.all[OTHER].round_trip_s is None


def test_everybody_is_echoed_in_turn_and_nobody_twice_for_one_heartbeat():
    here = Machine(ME)
    for peer in PEERS[1:]:
        here.hear(peer, heartbeat(1e9), 1.0)
    echoed = [echo.peer for _ in range(10) for echo in here.table.echoes(2.0)]
    assert sorted(echoed) == sorted(PEERS[1:])
    assert len(here.send(3.0).echoes) == 0
    here.hear(OTHER, heartbeat(1e9), 4.0)
    assert [echo.peer for echo in here.table.echoes(5.0)] == [OTHER]
    assert len(PEERS) > 4 * ECHOES_PER_HEARTBEAT


def test_who_was_heard_and_then_is_silent_or_has_left_is_dead_and_who_was_never_heard_may_live():
    here = Machine(ME)
    here.hear(OTHER, heartbeat(1e9), 1.0)
    here.hear(PEERS[3], heartbeat(1e9, phase="leaving"), 1.0)
    here.now = 5.0
    assert here.table.may_live(OTHER, 10.0)
    assert not here.table.may_live(PEERS[3], 10.0)
    assert here.table.may_live(PEERS[2], 10.0)
    here.now = 12.0
    assert not here.table.may_live(OTHER, 10.0)


def test_the_table_and_the_round_machine_agree_on_who_is_alive():
    """Of peers that have been heard: silent for just less and just more than the limit, and leaving."""
    world = World(world_genesis(4))
    me, quiet, silent, leaver = world.nodes
    timeout_s = world.genesis.timing.heartbeat_timeout_s
    table = PeerTable(me, lambda: 100.0)
    for peer, heard_s, phase in (
        (quiet, 100.0 - timeout_s, "training"),
        (silent, 99.9 - timeout_s, "training"),
        (leaver, 100.0, "leaving"),
    ):
        table.heard(peer, heartbeat(0.0, phase=phase), heard_s, 0.0)
    state = begin(world.rules_of(world.nodes[me]), Acceptor(), table.views(), 100.0)
    alive = [peer for peer, info in table.all.items() if info.is_alive(100.0, timeout_s)]
    assert alive == [quiet]
    assert live_roster(state, 100.0) == (me, quiet)
