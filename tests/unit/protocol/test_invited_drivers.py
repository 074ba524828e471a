"""Invites in a running swarm: a stranger who shows one joins and counts after probation, others stay outside."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from atoll.protocol import doorkeeper
from atoll.protocol import gate as gates
from atoll.protocol.amendments import RunRules
from atoll.protocol.changes import Ban
from atoll.protocol.doorkeeper import Doorkeeper
from atoll.protocol.envelope import Envelope
from atoll.protocol.identity import Identity
from atoll.protocol.invites import claim, make
from atoll.protocol.messages import Heartbeat
from atoll.protocol.outcomes import Committed
from atoll.protocol.rule_book import RuleBook
from atoll.protocol.spec import Genesis, TrustConfig
from atoll.protocol.standing import Standing
from atoll.protocol.tickets import Ticket
from atoll.protocol.transport import RemoteProtocolError

from .test_attacks_on_drivers import Attacker, far_ahead, rejections
from .test_round_driver import PEOPLE, Node, Swarm, contribute_all, genesis_of

FOUNDERS, GUEST, OTHER = PEOPLE[:3], PEOPLE[3], PEOPLE[4]
KEY = Identity.from_seed(bytes([77]) * 32)


def invite_genesis(probation_rounds: int = 0) -> Genesis:
    trust = TrustConfig(probation_rounds=probation_rounds)
    return genesis_of(FOUNDERS, mode="invite").model_copy(update={"trust": trust})


def ticket_for(genesis: Genesis, peer: Identity, owner: str = "alice", until_round: int = 50) -> Ticket:
    invite = make(PEOPLE[0], run_id=genesis.run_id, owner=owner, bearer=KEY.peer_id, until_round=until_round)
    return claim(invite, KEY, peer.peer_id)


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    swarm = Swarm(tmp_path, invite_genesis(getattr(request, "param", 0)))
    for person in FOUNDERS:
        await swarm.start(person)
    yield swarm
    await swarm.close()


async def commit(swarm: Swarm, people: list[Identity]) -> list[Committed]:
    outcomes = await contribute_all(swarm, people)
    while not all(isinstance(outcome, Committed) for outcome in outcomes):  # a slow machine
        outcomes = await contribute_all(swarm, people)
    return outcomes  # type: ignore[return-value]


def heads(swarm: Swarm) -> set[int]:
    return {node.replica.head_round for node in swarm.nodes.values()}


async def enter(swarm: Swarm, guest: Identity, ticket: Ticket | None) -> None:
    """Start a stranger and hold rounds until it is a member."""
    node = await swarm.start(guest, ticket=ticket)
    await swarm.until(lambda: all(guest.peer_id in swarm.nodes[p.peer_id].driver.peers for p in FOUNDERS))
    for _ in range(20):
        await commit(swarm, FOUNDERS)
        await swarm.until(lambda: len(heads(swarm)) == 1)
        if guest.peer_id in node.driver.roster:
            return
    raise AssertionError("the guest did not become a member")


@pytest.mark.parametrize("swarm", [2], indirect=True)
async def test_an_invited_stranger_joins_and_counts_after_its_probation(swarm: Swarm):
    await enter(swarm, GUEST, ticket_for(swarm.genesis, GUEST))
    everybody = [*FOUNDERS, GUEST]
    standing = swarm.nodes[FOUNDERS[0].peer_id].replica.standing
    assert [(guest.peer, guest.owner) for guest in standing.guests] == [(GUEST.peer_id, "alice")]
    assert set(standing.counts_from) == {GUEST.peer_id}
    for _ in range(3):
        outcomes = await commit(swarm, everybody)
        await swarm.until(lambda: len(heads(swarm)) == 1)
    assert all(outcome.counted for outcome in outcomes)
    assert not swarm.nodes[GUEST.peer_id].replica.standing.counts_from
    assert len({node.replica.state_hash for node in swarm.nodes.values()}) == 1


async def test_a_guest_that_restarts_needs_no_invite_and_nobody_else_gets_in_by_it(swarm: Swarm):
    await enter(swarm, GUEST, ticket_for(swarm.genesis, GUEST))
    replica = await swarm.kill(GUEST)
    await swarm.start(GUEST, replica)  # the file is lost
    await commit(swarm, [*FOUNDERS, GUEST])
    await swarm.start(OTHER, ticket=ticket_for(swarm.genesis, OTHER))
    founder = swarm.nodes[FOUNDERS[0].peer_id]
    await swarm.until(lambda: (OTHER.peer_id, "invite") in rejections(founder))
    assert OTHER.peer_id not in founder.driver.peers
    other = swarm.nodes[OTHER.peer_id]
    await swarm.until(lambda: any("used already" in why for why in told(other)))


async def test_a_restarted_voter_knows_from_its_chain_who_has_entered(swarm: Swarm):
    await enter(swarm, GUEST, ticket_for(swarm.genesis, GUEST))
    replica = await swarm.kill(FOUNDERS[1])
    node = await swarm.start(FOUNDERS[1], replica)
    await commit(swarm, [*FOUNDERS, GUEST])
    assert node.replica.standing.guest_of[GUEST.peer_id].owner == "alice"


async def test_an_uninvited_stranger_never_gets_in(swarm: Swarm):
    stranger = await swarm.start(OTHER)
    founder = swarm.nodes[FOUNDERS[0].peer_id]
    await swarm.until(lambda: (OTHER.peer_id, "membership") in rejections(founder))
    for _ in range(3):
        await commit(swarm, FOUNDERS)
    assert OTHER.peer_id not in founder.driver.peers
    assert OTHER.peer_id not in founder.driver.roster
    assert stranger.replica.head_round == 0


def told(node: Node) -> list[str]:
    """What members have said of its invite."""
    return [str(event.fields["why"]) for event in node.events if event.point == "invite.refused"]


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (lambda g: ticket_for(g, GUEST, until_round=0), "has expired"),
        (lambda g: ticket_for(g.model_copy(update={"name": "other"}), GUEST), "another run"),
        (lambda g: ticket_for(g, OTHER), "does not match"),
    ],
)
async def test_an_invite_that_does_not_hold_opens_nothing_and_the_reason_is_said(swarm: Swarm, ticket, why: str):
    await swarm.start(GUEST, ticket=ticket(swarm.genesis))
    founder = swarm.nodes[FOUNDERS[0].peer_id]
    await swarm.until(lambda: (GUEST.peer_id, "invite") in rejections(founder))
    details = [str(e.fields["detail"]) for e in founder.events if e.point == "peer.rejected"]
    assert any(why in detail for detail in details)
    guest = swarm.nodes[GUEST.peer_id]
    await swarm.until(lambda: any(why in reason for reason in told(guest)))
    assert GUEST.peer_id not in founder.driver.peers


async def test_a_ban_revokes_an_invite(tmp_path: Path):
    swarm = Swarm(tmp_path, invite_genesis())
    for person in FOUNDERS:
        await swarm.start(person, book=RuleBook(RunRules(swarm.genesis)))
    await enter(swarm, GUEST, ticket_for(swarm.genesis, GUEST))
    first = swarm.nodes[FOUNDERS[0].peer_id].driver
    ban = RunRules(swarm.genesis).next(Ban(peers=(GUEST.peer_id,)), first.round).signed(PEOPLE[0])
    first.amend([ban])
    drivers = [swarm.nodes[person.peer_id].driver for person in FOUNDERS]
    await swarm.until(lambda: all(GUEST.peer_id in driver.genesis.control.banned for driver in drivers))
    await commit(swarm, FOUNDERS)
    assert GUEST.peer_id not in first.roster
    assert not drivers[1].transport.admits(GUEST.peer_id)  # type: ignore[attr-defined]
    await swarm.close()


# --- at the gate ------------------------------------------------------------------------------------------------------


async def test_a_strangers_long_or_frequent_messages_are_not_even_opened(swarm: Swarm, monkeypatch):
    opened: list[int] = []

    class Counting(Envelope):
        @classmethod
        def open(cls, raw, **options):
            opened.append(len(raw))
            return Envelope.open(raw, **options)

    monkeypatch.setattr(doorkeeper, "Envelope", Counting)
    stranger, target = Attacker(swarm, OTHER), FOUNDERS[0].peer_id
    long = far_ahead().model_copy(update={"addresses": ("x" * 256,) * 16, "name": "y" * 64})
    for _ in range(40):
        await stranger.say(target, far_ahead())
    await stranger.transport.send(target, bytes(gates.STRANGER_MESSAGE_BYTES + 1))
    await swarm.network.settle()
    assert 0 < len(opened) <= gates.STRANGER_MESSAGES_AT_ONCE + 40 * gates.STRANGER_MESSAGES_PER_HEARTBEAT
    assert max(opened) <= gates.STRANGER_MESSAGE_BYTES
    assert len(stranger.seal(long)) < gates.STRANGER_MESSAGE_BYTES  # what an honest one may need
    before = len(opened)
    await commit(swarm, FOUNDERS)
    assert len(opened) == before  # members' messages are never looked at there


async def test_strangers_are_served_no_stream_before_they_show_an_invite(swarm: Swarm):
    stranger, target = Attacker(swarm, OTHER), FOUNDERS[0].peer_id
    gate = swarm.nodes[target].driver.transport
    assert not gate.admits(OTHER.peer_id)  # type: ignore[attr-defined]
    body = Heartbeat(round=0, state_hash="00" * 32, phase="syncing", ticket=ticket_for(swarm.genesis, OTHER))
    await stranger.say(target, body)
    await swarm.network.settle()
    assert gate.admits(OTHER.peer_id)  # type: ignore[attr-defined]


def test_one_peer_at_a_time_stands_for_an_invite():
    genesis = invite_genesis()
    desk = Doorkeeper(genesis, lambda: Standing.of_genesis(genesis), time.time)
    for peer in (GUEST, OTHER):
        desk.present(peer.peer_id, ticket_for(genesis, peer))
    assert [desk.admits(peer.peer_id) for peer in (GUEST, OTHER)] == [False, True]


def test_what_a_commit_makes_void_lets_nobody_in_any_more():
    genesis = invite_genesis()
    now = [Standing.of_genesis(genesis)]
    desk = Doorkeeper(genesis, lambda: now[0], time.time)
    desk.present(GUEST.peer_id, ticket_for(genesis, GUEST, until_round=3))
    now[0] = Standing(7, "", genesis.membership.roster)
    desk.obey(genesis)
    assert not desk.admits(GUEST.peer_id)
    with pytest.raises(RemoteProtocolError, match="expired"):
        desk.present(GUEST.peer_id, ticket_for(genesis, GUEST, until_round=3))
