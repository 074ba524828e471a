"""Whole drivers on the in-memory network against a member that lies and floods, failing disks and restarts."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import time
from pathlib import Path

import pytest

from atoll.protocol import envelope, parsing
from atoll.protocol.envelope import Header
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryTransport, Unreachable
from atoll.protocol.messages import Attest, Commit, CommitRequest, Heartbeat, Message, Prepare, Ready
from atoll.protocol.outcomes import Committed
from atoll.protocol.record import Plan
from atoll.protocol.results import ResultStore
from atoll.protocol.round_machine import Acceptor
from atoll.protocol.transport import Buffer

from .test_round_driver import PEOPLE, MeanReplica, Node, Swarm, contribute_all, contribution_of, genesis_of

ZERO = "00" * 32
STRANGER = Identity.from_seed(b"s" * 32)


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    """Nodes of the roster's first members; PEOPLE[4] is admitted but plays no part: the attacker."""
    people = PEOPLE[: getattr(request, "param", 3)]
    swarm = Swarm(tmp_path, genesis_of(people, allowed=tuple(p.peer_id for p in PEOPLE[len(people) :])))
    yield swarm
    await swarm.close()


class Attacker:
    """A peer that the run admits and that signs whatever it likes."""

    def __init__(self, swarm: Swarm, identity: Identity = PEOPLE[4]) -> None:
        self.identity, self.genesis = identity, swarm.genesis
        self.transport: MemoryTransport = swarm.network.transport(identity)
        self.sequence = int(time.time() * 1e6)
        self.network = swarm.network

    def seal(self, body: Message, **header: object) -> bytes:
        self.sequence += 1
        values: dict[str, object] = {
            "run_id": self.genesis.run_id,
            "lineage": 0,
            "sender": self.identity.peer_id,
            "sequence": self.sequence,
            "expires_unix_s": time.time() + 600.0,
            **header,
        }
        return envelope.seal(self.identity, Header.model_validate(values), body)

    async def say(self, to: PeerId, body: Message) -> None:
        await self.transport.send(to, self.seal(body))


def rejections(node: Node) -> list[tuple[object, object]]:
    return [(e.fields["peer"], e.fields["rule"]) for e in node.events if e.point == "peer.rejected"]


def far_ahead() -> Heartbeat:
    return Heartbeat(round=2**40, state_hash=ZERO, phase="training")


# --- a member that lies about itself ----------------------------------------------------------------------------------


async def test_a_peer_that_claims_to_be_far_ahead_stops_no_round(swarm: Swarm):
    synced: list[PeerId] = []
    for person in PEOPLE[:3]:
        replica = MeanReplica(swarm.genesis)

        async def sync(peer: PeerId = person.peer_id) -> None:
            synced.append(peer)

        async def prove(replica: MeanReplica = replica) -> int:
            return replica.head_round

        await swarm.start(person, replica, sync=sync, prove=prove)
    attacker = Attacker(swarm)
    for _ in range(3):
        for person in PEOPLE[:3]:
            await attacker.say(person.peer_id, far_ahead())
        outcomes = await contribute_all(swarm, PEOPLE[:3])
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert synced == []


async def test_a_proof_that_never_comes_stops_no_round(swarm: Swarm):
    async def stalled() -> int:
        return await asyncio.Event().wait()

    async def sync() -> None:
        raise AssertionError("nothing was proven")

    for person in PEOPLE[:3]:
        await swarm.start(person, sync=sync, prove=stalled)
    attacker = Attacker(swarm)
    for person in PEOPLE[:3]:
        await attacker.say(person.peer_id, far_ahead())
    assert all(isinstance(outcome, Committed) for outcome in await contribute_all(swarm, PEOPLE[:3]))


async def test_a_sync_that_brings_nothing_does_not_withdraw_the_contribution(swarm: Swarm):
    async def fruitless() -> None:
        return

    async def prove() -> int:
        return 100

    for person in PEOPLE[:3]:
        await swarm.start(person, sync=fruitless, prove=prove)
    attacker = Attacker(swarm)
    for person in PEOPLE[:3]:
        await attacker.say(person.peer_id, far_ahead())
    await swarm.until(lambda: all("state.syncing" in node.points() for node in swarm.nodes.values()))
    assert all(isinstance(outcome, Committed) for outcome in await contribute_all(swarm, PEOPLE[:3]))


async def test_attests_of_the_future_do_not_wipe_out_those_of_the_present(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    attacker = Attacker(swarm)
    for person in PEOPLE[:3]:
        await attacker.say(person.peer_id, Attest(round=2**40, record=ZERO, state_hash=ZERO))
    await contribute_all(swarm, PEOPLE[:3])
    driver = swarm.nodes[PEOPLE[0].peer_id].driver
    await swarm.until(lambda: len(driver.attestations(1)) == 3)


async def test_hostile_names_are_kept_as_text_and_break_nothing(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    attacker = Attacker(swarm)
    for name in ("\x1b[2J\x1b[31m", "{0}{eta}{__class__}", "%s%n", "\r\n\x00", "‮gnp.exe", "<script>"):
        heartbeat = far_ahead().model_copy(update={"name": name, "round": 0, "addresses": ("/ip4/169.254.169.254",)})
        await attacker.say(PEOPLE[0].peer_id, heartbeat)
        await swarm.until(lambda name=name: heartbeat_name(node, attacker) == name)


def heartbeat_name(node: Node, attacker: Attacker) -> str | None:
    info = node.driver.peers.get(attacker.identity.peer_id)
    return info.heartbeat.name if info is not None and info.heartbeat is not None else None


# --- malformed messages -----------------------------------------------------------------------------------------------


def malformed(attacker: Attacker) -> dict[str, bytes]:
    good = attacker.seal(far_ahead().model_copy(update={"round": 0}))
    content = good[envelope.SIGNATURE_BYTES :]

    def signed(text: bytes) -> bytes:
        return attacker.identity.sign(envelope.DOMAIN + text) + text

    return {
        "nothing": b"",
        "garbage of 1 MiB": b"\xff" * (1 << 20),
        "a pickle": pickle.dumps({"kind": "heartbeat"}),
        "a signed pickle": signed(pickle.dumps([1, 2, 3])),
        "deep JSON": signed(b"[" * 200_000),
        "deep body": signed(content.replace(b'"name":""', b'"name":' + b"[" * 50_000 + b"]" * 50_000)),
        "a huge integer": signed(content.replace(b'"round":0', b'"round":' + b"9" * 5_000)),
        "a large integer": signed(content.replace(b'"round":0', b'"round":' + b"9" * 400)),
        "NaN": signed(content.replace(b'"tokens_per_s":0.0', b'"tokens_per_s":NaN')),
        "infinity": signed(content.replace(b'"tokens_per_s":0.0', b'"tokens_per_s":1e999')),
        "a lone surrogate": signed(content.replace(b'"name":""', b'"name":"\\ud800"')),
        "an unknown kind": signed(content.replace(b'"kind":"heartbeat"', b'"kind":"shutdown"')),
        "an unknown field": signed(content.replace(b'"name":""', b'"name":"","x":1')),
        "no header": signed(b'{"body":{}}'),
        "a list": signed(b"[]"),
        "another run": attacker.seal(far_ahead(), run_id="11" * 32),
        "another sender": attacker.seal(far_ahead(), sender=PEOPLE[1].peer_id),
        "expired": attacker.seal(far_ahead(), expires_unix_s=1.0),
        "lives for ever": attacker.seal(far_ahead(), expires_unix_s=9e10),
        "a bad signature": bytes(64) + content,
        "a replay": attacker.seal(far_ahead(), sequence=1),
    }


async def test_a_message_of_another_lineage_changes_nothing_and_costs_at_most_a_few_questions(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    attacker, me = Attacker(swarm), PEOPLE[0].peer_id
    await attacker.say(me, Heartbeat(round=0, state_hash=ZERO, phase="training"))
    before = len(swarm.network.messages)
    for _ in range(20):
        await attacker.transport.send(me, attacker.seal(far_ahead(), lineage=1))
    await swarm.network.settle()
    asked = [raw for sender, _, raw in swarm.network.messages[before:] if sender == me and b"amendments_request" in raw]
    assert 1 <= len(asked) <= 8
    assert node.driver.peers[attacker.identity.peer_id].heartbeat.round == 0
    assert node.driver.round == 1


async def test_malformed_messages_are_refused_and_the_node_goes_on(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    attacker = Attacker(swarm)
    await attacker.say(PEOPLE[0].peer_id, Heartbeat(round=0, state_hash=ZERO, phase="training"))
    await swarm.network.settle()
    for name, raw in malformed(attacker).items():
        before = len(rejections(node))
        await attacker.transport.send(PEOPLE[0].peer_id, raw)
        await swarm.network.settle()
        assert len(rejections(node)) == before + 1, name
    assert len(rejections(node)) < 32, "all were said: none fell under the limit of what is said"
    info = node.driver.peers[attacker.identity.peer_id]
    assert info.heartbeat is not None
    assert info.heartbeat.round == 0, "nothing of them was believed"


async def test_pickles_in_every_message_type_are_data_or_refused(swarm: Swarm, tmp_path: Path):
    """SEC-02: bytes that would run code if anything unpickled them."""
    proof = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return (open, (str(proof), "w"))

    node = await swarm.start(PEOPLE[0])
    attacker, payload = Attacker(swarm), pickle.dumps(Bomb()).decode("latin-1")
    for kind in ("heartbeat", "ready", "plan", "span_done", "proposal", "vote", "promise", "commit", "attest"):
        text = parsing.canonical_json({"header": payload, "body": {"kind": kind, "data": payload}})
        raw = attacker.identity.sign(envelope.DOMAIN + text) + text
        await attacker.transport.send(PEOPLE[0].peer_id, raw)
    for protocol in ("span", "result", "state"):
        if protocol in node.driver._transport._transport.stream_handlers:
            stream = await attacker.transport.open(PEOPLE[0].peer_id, protocol)
            await stream.write(pickle.dumps(Bomb()))
            await stream.close()
    await swarm.network.settle()
    assert not proof.exists()
    assert len(rejections(node)) == 9


async def test_a_stranger_to_a_listed_run_is_refused_before_it_is_parsed(swarm: Swarm, monkeypatch):
    node = await swarm.start(PEOPLE[0])
    stranger = Attacker(swarm, STRANGER)
    monkeypatch.setattr(node.driver._mail, "open", lambda *_: pytest.fail("it was opened"))
    await stranger.say(PEOPLE[0].peer_id, far_ahead())
    await swarm.network.settle()
    assert rejections(node) == [(STRANGER.peer_id, "membership")]
    assert STRANGER.peer_id not in node.driver.peers


# --- floods -----------------------------------------------------------------------------------------------------------


async def test_a_flood_of_messages_costs_neither_memory_nor_the_others_their_rounds(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    attacker, victim = Attacker(swarm), PEOPLE[0].peer_id
    loop = swarm.nodes[victim].driver._loop
    most = 0

    async def flood() -> None:
        nonlocal most
        for number in range(3000):
            body = Prepare(fragment=0, round=1, ballot=number) if number % 2 else CommitRequest(fragment=0, round=1)
            await attacker.say(victim, body)
            most = max(most, sum(loop.queue.queued_bytes.values()))
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    for _ in range(2):
        assert all(isinstance(outcome, Committed) for outcome in await contribute_all(swarm, PEOPLE[:3]))
    await flooding
    await swarm.network.settle()
    assert most < 32 << 20
    assert len([1 for peer, _ in rejections(swarm.nodes[victim]) if peer == attacker.identity.peer_id]) <= 64
    assert all(isinstance(outcome, Committed) for outcome in await contribute_all(swarm, PEOPLE[:3]))


async def test_small_questions_do_not_bring_large_answers_without_end(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    await contribute_all(swarm, PEOPLE[:3])
    attacker, victim = Attacker(swarm), PEOPLE[0].peer_id
    began_s = time.monotonic()
    for _ in range(400):
        await attacker.say(victim, CommitRequest(fragment=0, round=1))
    await swarm.network.settle()
    await swarm.nodes[victim].driver._mail.flush()
    to_attacker = [raw for s, r, raw in swarm.network.messages if (s, r) == (victim, attacker.identity.peer_id)]
    num_commits = sum(b'"kind":"commit"' in raw for raw in to_attacker)
    num_heartbeats = (time.monotonic() - began_s) / swarm.genesis.timing.heartbeat_interval_s
    assert 1 <= num_commits <= 16 + num_heartbeats + 1


async def test_one_peers_waiting_messages_are_bounded_while_the_node_is_busy(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    loop = node.driver._loop
    ready = Ready(round=1, parent=ZERO, parent_state=ZERO, tokens=1, commitment=ZERO)
    from atoll.protocol.round_machine import Received

    for _ in range(5000):  # no await: the loop has no chance to take any
        loop.queue.put_message(Received(PEOPLE[4].peer_id, ready, bytes(100_000)))
    loop.queue.put_message(Received(PEOPLE[1].peer_id, ready, b"x"))
    assert loop.queue.queued_bytes[PEOPLE[4].peer_id] <= 8 << 20
    assert loop.queue.queued_bytes[PEOPLE[1].peer_id] > 0, "the others are still heard"
    await swarm.until(lambda: not loop.queue.queued_bytes)


# --- disks ------------------------------------------------------------------------------------------------------------


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("swarm", [1], indirect=True)
async def test_a_contribution_survives_a_vote_disk_that_is_full_for_a_while(swarm: Swarm, monkeypatch):
    node = await swarm.start(PEOPLE[0])
    save, num_tries = node.driver._votes.save, 0

    def save_at_the_third(number: int, acceptor: Acceptor) -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 3:
            full()
        save(number, acceptor)

    monkeypatch.setattr(node.driver._votes, "save", save_at_the_third)
    assert isinstance(await swarm.contribute(PEOPLE[0], 1.0), Committed)
    assert num_tries >= 3
    assert node.points().count("votes.unwritable") == 1, "a disk that stays full is said once"


async def test_a_commit_that_the_disk_does_not_take_is_applied_when_it_does(swarm: Swarm, monkeypatch):
    monkeypatch.setattr("atoll.protocol.decided._DISK_RETRY_S", 0.02)
    for person in PEOPLE[:3]:
        await swarm.start(person)
    node = swarm.nodes[PEOPLE[0].peer_id]
    apply, num_tries = node.replica.apply, 0

    async def apply_at_the_third(commit: Commit, mean: Buffer) -> str:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 3:
            full()
        return await apply(commit, mean)

    node.replica.apply = apply_at_the_third
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert len({outcome.state_hash for outcome in outcomes}) == 1
    assert node.points().count("state.unwritable") == 2


async def test_results_that_the_disk_does_not_take_are_fetched_when_it_does(swarm: Swarm, monkeypatch):
    monkeypatch.setattr("atoll.protocol.reduction._DISK_RETRY_S", 0.02)
    for person in PEOPLE[:3]:
        await swarm.start(person)
    node, attempt, num_tries = swarm.nodes[PEOPLE[0].peer_id], ResultStore.attempt, 0

    def attempt_at_the_third(store: ResultStore, plan: Plan):
        nonlocal num_tries
        if store is node.driver.results:
            num_tries += 1
            if num_tries < 3:
                full()
        return attempt(store, plan)

    monkeypatch.setattr(ResultStore, "attempt", attempt_at_the_third)
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert len({outcome.state_hash for outcome in outcomes}) == 1
    assert "exchange.failed" in node.points()


@pytest.mark.parametrize("damage", ["lost", "damaged", "opened damaged", "results lost", "sequence damaged"])
async def test_a_member_with_a_damaged_folder_comes_back_and_the_swarm_goes_on(swarm: Swarm, damage: str):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    await contribute_all(swarm, PEOPLE[:3])
    replica = await swarm.kill(PEOPLE[2])
    folder = swarm.folder / PEOPLE[2].peer_id
    match damage:
        case "lost":
            shutil.rmtree(folder / "votes")
        case "damaged":
            (folder / "votes" / "0-0-000000000002.json").write_bytes(b"\0" * 100)
        case "opened damaged":
            (folder / "votes" / "opened.json").write_bytes(b"{")
        case "results lost":
            shutil.rmtree(folder / "results")
        case _:
            (folder / "sequence").write_bytes(b"\xff\xfe garbage")
    node = await swarm.start(PEOPLE[2], replica)
    outcomes = await contribute_all(swarm, PEOPLE[:3])
    assert len({outcome.state_hash for outcome in outcomes}) == 1
    abstains = damage in ("lost", "damaged", "opened damaged")
    assert ("votes.abstaining" in node.points()) == abstains
    if abstains:
        votes = [vote for outcome in outcomes for vote in outcome.commit.votes]
        assert not any(PEOPLE[2].peer_id.encode() in bytes.fromhex(vote) for vote in votes)


@pytest.mark.parametrize("swarm", [1], indirect=True)
async def test_a_state_that_is_older_than_the_chain_catches_up_by_its_own_chain(swarm: Swarm):
    await swarm.start(PEOPLE[0])
    for number in range(3):
        await swarm.contribute(PEOPLE[0], float(number))
    newer = await swarm.kill(PEOPLE[0])
    older = MeanReplica(swarm.genesis)
    older.commits = newer.commits  # the chain is whole, the checkpoint is of round 0
    node = await swarm.start(PEOPLE[0], older)
    await swarm.until(lambda: node.driver.round == 4)
    assert older.state_hash == newer.state_hash
    assert isinstance(await swarm.contribute(PEOPLE[0], 9.0), Committed)


# --- liveness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_frozen_member_costs_only_its_own_part_whoever_leads(swarm: Swarm, number: int):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    await contribute_all(swarm, PEOPLE[:3])
    frozen = PEOPLE[number]
    others = [person for person in PEOPLE[:3] if person is not frozen]
    swarm.network.freeze(frozen.peer_id)
    outcomes = await asyncio.gather(*(swarm.contribute(person, 1.0) for person in others))
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    swarm.network.thaw(frozen.peer_id)
    await swarm.until(lambda: swarm.nodes[frozen.peer_id].driver.round == 3)


async def test_a_link_that_is_dead_in_one_direction_costs_no_round(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    first, second, _ = (person.peer_id for person in PEOPLE[:3])
    swarm.network.inject(Unreachable(sender=first, receiver=second))
    for _ in range(2):
        outcomes = await contribute_all(swarm, PEOPLE[:3])
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        assert len({outcome.state_hash for outcome in outcomes}) == 1


async def test_everybody_restarted_in_the_middle_of_a_round_goes_on(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    calls = [asyncio.create_task(swarm.contribute(person, 1.0)) for person in PEOPLE[:3]]
    await swarm.until(lambda: any("round.plan_sent" in node.points() for node in swarm.nodes.values()))
    replicas = {person.peer_id: await swarm.kill(person) for person in PEOPLE[:3]}
    await asyncio.gather(*calls, return_exceptions=True)
    for person in PEOPLE[:3]:
        await swarm.start(person, replicas[person.peer_id])
    drivers = [node.driver for node in swarm.nodes.values()]
    await asyncio.gather(*(driver.contribute(contribution_of(1, 2.0, 10)) for driver in drivers))
    await swarm.until(lambda: all(driver.round >= 2 for driver in drivers))
    assert len({node.replica.state_hash for node in swarm.nodes.values()}) == 1


async def test_a_peer_that_leaves_and_comes_back_every_round_costs_no_round(swarm: Swarm):
    for person in PEOPLE[:3]:
        await swarm.start(person)
    for number in range(3):
        await contribute_all(swarm, PEOPLE[:3])
        await swarm.nodes[PEOPLE[2].peer_id].driver.leave()
        outcomes = await asyncio.gather(*(swarm.contribute(person, float(number)) for person in PEOPLE[:2]))
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        replica = await swarm.kill(PEOPLE[2])
        node = await swarm.start(PEOPLE[2], replica)
        await swarm.until(lambda node=node, number=number: node.driver.round == 2 * number + 3)
