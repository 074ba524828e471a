"""Floods and false weights of evidence, audits and amendments: what one member can make the others do and keep."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.protocol import evidence, quotas
from atoll.protocol.amendments import RunRules
from atoll.protocol.docket import Docket
from atoll.protocol.evidence import TwoResults, encode_header, encode_payload
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import MAX_MEMORY, Amendments, Heartbeat, MemoryRequest, PlanMessage, Proposal
from atoll.protocol.payload import NO, YES
from atoll.protocol.record import Record, Span, SpanResult
from atoll.protocol.round_machine import Received
from atoll.protocol.signed_results import signed
from atoll.protocol.transport import ByteStream, StreamClosed

from . import test_evidence as cases
from .test_attacks_on_drivers import ZERO, Attacker, rejections, swarm
from .test_floods import MIB, read_to_the_end
from .test_round_driver import PEOPLE, Swarm

__all__ = ["swarm"]


def contradiction(liar: Identity, number: int = 0) -> TwoResults:
    """True evidence: ``liar`` has signed two results of a span."""
    result = SpanResult(plan=f"{number:064x}", span=0, included=(True,), digest=ZERO)
    other = result.model_copy(update={"digest": "1" * 64})
    return TwoResults(accused=liar.peer_id, first=signed(liar, result), second=signed(liar, other))


class Accuser(Attacker):
    """Says to one node what it likes on streams of evidence and audits."""

    def __init__(self, swarm: Swarm, identity: Identity = PEOPLE[4], victim: Identity = PEOPLE[0]) -> None:
        super().__init__(swarm, identity)
        self.victim = victim.peer_id

    async def accuse(self, evidence: TwoResults) -> list[bytes]:
        """The answers of the node to one accusation."""
        return await self.ask("evidence", b"T" + encode_header(evidence))

    async def ask(self, protocol: str, *frames: bytes) -> list[bytes]:
        """All that comes back, until the node ends the stream."""
        answers: list[bytes] = []
        stream = await self.transport.open(self.victim, protocol)
        with suppress(StreamClosed):
            for frame in frames:
                await stream.write(frame)
            while True:
                answers.append(await stream.read(MIB))
        return answers


async def test_true_evidence_against_keys_of_no_member_takes_no_space(swarm: Swarm):
    node, accuser = await swarm.start(PEOPLE[0]), Accuser(swarm)
    for number in range(8):
        throwaway = Identity.from_seed(bytes([100 + number]) * 32)
        assert await accuser.accuse(contradiction(throwaway)) == [NO]
    assert node.driver._oversight.proven == frozenset()
    assert not list((swarm.folder / PEOPLE[0].peer_id / "evidence").iterdir())
    assert await accuser.accuse(contradiction(PEOPLE[1])) == [YES, YES]
    assert node.driver._oversight.proven == {PEOPLE[1].peer_id}


async def test_a_leader_that_counts_on_a_proven_liar_is_given_the_evidence(swarm: Swarm):
    """It may have been cut off when that was spread; its plans would get no votes from those who hold it."""
    node, leader = await swarm.start(PEOPLE[0]), await swarm.start(PEOPLE[2])
    liar = PEOPLE[1].peer_id
    assert await Accuser(swarm).accuse(contradiction(PEOPLE[1])) == [YES, YES]
    assert not leader.driver._oversight.proven
    spans = (Span(first_chunk=0, num_chunks=1, owner=liar),)
    members = cases.Case().plan.members
    for ballot in (0, 0, 2):
        plan = cases.plan_of(spans=spans, leader=PEOPLE[2].peer_id, members=members, ballot=ballot)
        node.driver._oversight.note(Received(PEOPLE[2].peer_id, PlanMessage(plan=plan), b""))
    await swarm.until(lambda: leader.driver._oversight.proven == {liar})
    assert len(node.driver._oversight._reminded) == 2, "once per attempt"


async def test_who_is_led_by_a_proven_liar_is_given_the_evidence(swarm: Swarm):
    """The others may have been cut off when it was spread; they would follow the liar, and nobody who knows it."""
    node, other = await swarm.start(PEOPLE[0]), await swarm.start(PEOPLE[2])
    liar = PEOPLE[1].peer_id
    assert await Accuser(swarm).accuse(contradiction(PEOPLE[1])) == [YES, YES]
    assert not other.driver._oversight.proven
    plan = cases.plan_of(leader=liar, members=cases.Case().plan.members)
    node.driver._oversight.note(Received(liar, PlanMessage(plan=plan), b""))
    await swarm.until(lambda: other.driver._oversight.proven == {liar})


async def test_a_peer_that_accuses_without_end_is_not_listened_to(swarm: Swarm, monkeypatch: pytest.MonkeyPatch):
    await swarm.start(PEOPLE[0])
    looked_at: list[bytes] = []
    decode = evidence.decode_header
    monkeypatch.setattr(evidence, "decode_header", lambda data: looked_at.append(data) or decode(data))
    accuser, other = Accuser(swarm), Accuser(swarm, PEOPLE[3])
    stranger = contradiction(Identity.from_seed(b"q" * 32))
    for _ in range(3 * quotas.EVIDENCE_AT_ONCE):
        assert await accuser.accuse(stranger) == [NO]
    assert quotas.EVIDENCE_AT_ONCE <= len(looked_at) <= quotas.EVIDENCE_AT_ONCE + 3
    assert await other.accuse(contradiction(PEOPLE[1])) == [YES, YES], "the others lose nothing by it"


async def test_one_false_accusation_is_the_last(swarm: Swarm):
    node, accuser = await swarm.start(PEOPLE[0]), Accuser(swarm)
    forged = contradiction(PEOPLE[1]).model_copy(update={"second": contradiction(PEOPLE[2], 1).second})
    assert await accuser.accuse(forged) == [YES]
    assert rejections(node) == [(PEOPLE[4].peer_id, "false evidence")]
    assert await accuser.accuse(contradiction(PEOPLE[1])) == [NO]


def docket_of(store: object, stream_limit_s: float = 0.2) -> tuple[MemoryNetwork, ThreadPoolExecutor, Docket]:
    network, workers = MemoryNetwork(progress_timeout_s=stream_limit_s), ThreadPoolExecutor(1)
    roster = tuple(person.peer_id for person in PEOPLE)
    docket = Docket(
        cases.GRID,
        network.transport(PEOPLE[0]),
        store,  # type: ignore[arg-type]
        workers,
        lambda: RunRules(cases.GENESIS),
        lambda: roster,
        lambda *_: None,
        lambda _: None,
    )
    return network, workers, docket


async def test_evidence_that_is_announced_and_never_comes_keeps_no_place(tmp_path: Path):
    network, workers, docket = docket_of(EvidenceStore(tmp_path, cases.GRID))
    lie = cases.Case(altered_chunk=cases.CHUNK).evidence()
    idler = network.transport(PEOPLE[4])
    answers: list[bytes] = []
    for _ in range(quotas.MAX_UNFINISHED_EVIDENCE + 1):
        stream = await idler.open(PEOPLE[0].peer_id, "evidence")
        await stream.write(b"T" + encode_header(lie))
        answers.append(await stream.read(1))
        with suppress(StreamClosed):
            await read_to_the_end(stream)
    assert answers == [*[YES] * quotas.MAX_UNFINISHED_EVIDENCE, NO]
    honest = network.transport(PEOPLE[2])
    stream = await honest.open(PEOPLE[0].peer_id, "evidence")
    await stream.write(b"T" + encode_header(lie))
    assert await stream.read(1) == YES
    await stream.write(encode_payload(lie))
    assert await stream.read(1) == YES
    assert docket.proven == {lie.accused}
    await network.close()
    workers.shutdown()


async def test_a_plan_that_ejects_unknown_peers_makes_a_node_ask_for_nobody(tmp_path: Path):
    network, workers, docket = docket_of(EvidenceStore(tmp_path, cases.GRID))
    asked: list[PeerId] = []

    async def note(stream: ByteStream) -> None:
        asked.append(PeerId((await stream.read(100))[1:].decode()))
        await stream.write(NO)

    leader = network.transport(PEOPLE[1])
    leader.serve("evidence", note)
    made_up = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(200)]
    await docket.seek(made_up, PEOPLE[1].peer_id, ())
    assert asked == []
    for _ in range(3 * quotas.EVIDENCE_AT_ONCE):
        await docket.seek([*made_up, PEOPLE[2].peer_id], PEOPLE[1].peer_id, ())
    assert PEOPLE[2].peer_id in asked
    assert len(asked) <= quotas.EVIDENCE_AT_ONCE + 3
    await network.close()
    workers.shutdown()


def test_evidence_of_old_ejections_is_forgotten(tmp_path: Path):
    store = EvidenceStore(tmp_path, cases.GRID)
    liars = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(quotas.EVIDENCE_KEPT + 10)]
    for liar in liars:
        store.save(contradiction(liar))
    ejected = [liar.peer_id for liar in liars[:-1]]
    store.prune(ejected)
    kept = {*ejected[-quotas.EVIDENCE_KEPT :], liars[-1].peer_id}
    assert store.accused == kept
    assert EvidenceStore(tmp_path, cases.GRID).accused == kept


@pytest.mark.parametrize("swarm", [2], indirect=True)
async def test_questions_of_auditors_that_are_not_voters_or_about_nothing_end_their_stream(swarm: Swarm):
    node = await swarm.start(PEOPLE[0])
    shown: list[int] = []
    plan = SimpleNamespace(roster=(PEOPLE[0].peer_id, PEOPLE[1].peer_id))
    exchange = SimpleNamespace(plan_id="1" * 64, plan=plan, exhibit=lambda chunk: shown.append(chunk) or [None])
    node.driver._oversight.keep(exchange)  # type: ignore[arg-type]
    question, nonsense = bytes.fromhex("1" * 64) + bytes(4), bytes(36)
    voter, outsider = Accuser(swarm, PEOPLE[1]), Accuser(swarm, PEOPLE[4])
    assert await outsider.ask("audit", *[question] * 50) == [NO]
    assert await voter.ask("audit", *[nonsense] * 50) == [NO]
    assert shown == []
    most = 2 * swarm.genesis.trust.audited_chunks
    answers = await voter.ask("audit", *[question] * 50)
    assert len(shown) == most
    assert len(answers) == 2 * most
    assert await voter.ask("audit", question) == []


async def test_amendments_that_nobody_asked_for_wait_within_their_sender_s_share(swarm: Swarm, monkeypatch):
    node, attacker = await swarm.start(PEOPLE[0]), Attacker(swarm)
    monkeypatch.setattr(node.driver._loop, "_take", lambda *_: asyncio.sleep(3600))  # an outer step that takes long
    nonsense = Amendments(amendments=("x" * 120_000,) * 7)
    for _ in range(15):
        await attacker.transport.send(PEOPLE[0].peer_id, attacker.seal(nonsense))
    await swarm.network.settle()
    waiting = node.driver._loop.queue.queued_bytes[attacker.identity.peer_id]
    assert MIB < waiting <= quotas.WAITING_BYTES_PER_PEER


async def test_first_words_too_long_to_be_told_are_not_remembered(swarm: Swarm):
    node, founder = await swarm.start(PEOPLE[0]), Attacker(swarm, PEOPLE[1])
    long = tuple("\x01" * 256 for _ in range(16))  # each character takes six bytes, and twelve in hexadecimal
    said = Heartbeat(round=0, state_hash=ZERO, phase="training", addresses=long)
    assert 2 * len(founder.seal(said)) > MAX_MEMORY
    await founder.say(PEOPLE[0].peer_id, said)
    await founder.say(PEOPLE[0].peer_id, MemoryRequest(round=1))
    await swarm.network.settle()
    assert not node.driver.failed.done()
    assert PEOPLE[1].peer_id in node.driver.peers


async def test_what_a_member_states_at_made_up_ballots_is_kept_within_its_share(swarm: Swarm, monkeypatch):
    node, member = await swarm.start(PEOPLE[0]), Attacker(swarm, PEOPLE[1])
    oversight, looked_at = node.driver._oversight, list[SpanResult]()
    monkeypatch.setattr(oversight, "hear", lambda _plan, result: looked_at.append(result) or True)
    spans = tuple(Span(first_chunk=n, num_chunks=1, owner=PEOPLE[1].peer_id) for n in range(1000))
    base = cases.plan_of(spans=spans, leader=PEOPLE[1].peer_id, members=cases.Case().plan.members)
    for ballot in range(200):
        plan = base.model_copy(update={"ballot": ballot})
        result = SpanResult(plan=plan.content_id(), span=0, included=(True, True, True), digest=ZERO)
        body = Proposal(ballot=ballot, record=Record(plan=plan, results=(result,)))
        oversight.note(Received(PEOPLE[1].peer_id, body, member.seal(body)))
    kept_bytes = sum(len(raw) for _, raw in oversight._statements.values())
    assert MIB < kept_bytes <= quotas.STATED_BYTES_PER_PEER
    assert len(looked_at) == len(oversight._statements) < 200
    oversight.begin(RunRules(swarm.genesis), node.replica.standing)
    assert not oversight._stated.of
