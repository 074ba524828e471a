"""How peers are shown: who is on probation, who hears from no quorum, how far away they and their clocks are."""

from __future__ import annotations

import pytest

from atoll.node.view import Clocks, OwnPeer, clock_offset_s, participants, peer_infos, shares
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Heartbeat, Provisional
from atoll.protocol.peers import PeerInfo
from atoll.protocol.record import Newcomer
from atoll.protocol.round_machine import Phase
from atoll.protocol.simulator import World, world_genesis
from atoll.protocol.standing import Standing

ME, OTHER, THIRD = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3))
RULES = world_genesis(3)
HEARTBEAT = Heartbeat(round=6, state_hash="ab" * 32, phase="training")


def known(peer: str, heartbeat: Heartbeat = HEARTBEAT, **fields: object) -> PeerInfo:
    return PeerInfo(peer, 0.0, heartbeat, heard_s=9.0, **fields)  # type: ignore[arg-type]


def shown(
    *peers: PeerInfo,
    newcomers: tuple[Newcomer, ...] = (),
    ejected: tuple[PeerId, ...] = (),
    banned: tuple[PeerId, ...] = (),
):
    me = OwnPeer(ME, "me", "1", Phase.TRAINING, 0, None, "ab" * 32, 6)
    standing = Standing(6, "cd" * 32, (ME, OTHER, THIRD), newcomers=newcomers, ejected=ejected)
    rules = RULES.model_copy(update={"control": RULES.control.model_copy(update={"banned": banned})})
    infos = peer_infos(
        me, {info.peer: info for info in peers}, standing, None, {}, Clocks(10.0, 1000.0), rules, lambda _: "direct"
    )
    return {info.peer_id: info for info in infos}


def test_newcomers_are_on_probation_until_their_round_has_come():
    newcomers = (
        Newcomer(peer=ME, counts_from=9),
        Newcomer(peer=OTHER, counts_from=8),
        Newcomer(peer=THIRD, counts_from=7),
    )
    peers = shown(known(OTHER), known(THIRD), newcomers=newcomers)
    notes = [peers[peer].note for peer in (ME, OTHER, THIRD)]
    assert notes == ["on probation until round 9", "on probation until round 8", ""]


def test_who_was_ejected_or_banned_is_shown_as_rejected_with_the_reason_alive_or_not():
    peers = shown(known(OTHER), PeerInfo(THIRD, 0.0), ejected=(ME, THIRD), banned=(OTHER,))
    assert {peers[peer].state for peer in (ME, OTHER, THIRD)} == {"rejected"}
    assert peers[OTHER].note == "banned by the run’s operator"
    assert {peers[ME].note, peers[THIRD].note} == {"ejected: its misconduct was proven"}


def test_a_peer_without_a_quorum_is_marked():
    told = Provisional(num_alive=2, num_needed=3, num_members=5, lasted_s=1.0)
    peers = shown(known(OTHER, HEARTBEAT.model_copy(update={"provisional": told})))
    assert peers[OTHER].note == "hears from 2 of 5 members only"


def test_round_trip_and_clock_are_shown_in_milliseconds():
    peers = shown(known(OTHER, round_trip_s=0.03, clock_offset_s=-1.5))
    assert (peers[OTHER].round_trip_ms, peers[OTHER].clock_offset_ms) == (30.0, -1500.0)


def offset_of(*offsets_s: float | None, measured_s: float = 0.0) -> float | None:
    peers = [known(OTHER, clock_offset_s=offset_s, clock_measured_s=measured_s) for offset_s in offsets_s]
    return clock_offset_s(peers, now_s=2.0, timeout_s=3.0)


@pytest.mark.parametrize(
    ("offsets_s", "offset_s"),
    [
        ((0.01, 0.02, 3600.0), 0.02),  # one wrong clock
        ((0.01, 3600.0), 0.01),  # one wrong clock of three, our own being right
        ((-3600.0, -3599.0), -3599.0),  # ours is wrong
        ((40.0,), 40.0),  # one of two: who knows whose
        ((), None),
        ((None,), None),
    ],
)
def test_one_wrong_clock_among_three_is_that_machines_own_affair(offsets_s, offset_s):
    assert offset_of(*offsets_s) == offset_s


def test_what_a_silent_peer_once_said_of_its_clock_does_not_count():
    assert offset_of(40.0, measured_s=-1.5) is None


def test_a_share_is_what_a_contribution_weighed_not_what_it_claims():
    """The tokens of one are clamped to a multiple of the median, its share to the spec's limit."""
    world = World(RULES)
    for peer in world.nodes:
        world.contribute(peer)
    world.run(20, until=lambda: all(node.disk.commits for node in world.nodes.values()))
    commit = next(iter(world.nodes.values())).disk.commits[0]
    plan, first = commit.record.plan, commit.record.plan.members[0]
    members = (first.model_copy(update={"tokens": 1000 * first.tokens}), *plan.members[1:])
    record = commit.record.model_copy(update={"plan": plan.model_copy(update={"members": members})})
    shown = shares(commit.model_copy(update={"record": record}), RULES)
    assert shown.keys() == participants(commit) == set(world.nodes)
    assert shown[first.peer] <= RULES.trust.max_share
    assert sum(shown.values()) <= 1 + 1e-9
