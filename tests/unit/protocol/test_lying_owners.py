"""Whole drivers among which an owner lies about its means, contradicts itself, or accuses falsely."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.codec import codec
from atoll.protocol import evidence as proofs
from atoll.protocol.audit import Auditor
from atoll.protocol.chunks import ChunkGrid
from atoll.protocol.envelope import Envelope
from atoll.protocol.evidence_store import EvidenceStore
from atoll.protocol.exchange import owner as owners
from atoll.protocol.identity import PeerId
from atoll.protocol.leader import permutation
from atoll.protocol.messages import Accepted, PlanMessage, Prepare, Promise
from atoll.protocol.outcomes import Committed
from atoll.protocol.quorum import quorum_of
from atoll.protocol.record import Member, Plan, Record, Span, SpanResult
from atoll.protocol.signed_results import signed
from atoll.protocol.transport import Buffer, RemoteProtocolError
from atoll.protocol.weights import weights

from . import test_round_driver as drivers
from .test_attacks_on_drivers import ZERO, Attacker
from .test_round_driver import PEOPLE, Swarm, genesis_of

NUM_CHUNKS = 24
LIAR = PEOPLE[3]
HONEST = PEOPLE[:3]
Tamper = Callable[[int, list[Buffer]], list[Buffer]]


@pytest.fixture
async def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Four nodes; each owns six of 24 chunks, and audits as many chunks as the parameter says (all by default)."""
    monkeypatch.setattr(drivers, "NUM_ELEMENTS", NUM_CHUNKS * 256)
    monkeypatch.setattr(drivers, "GRID", ChunkGrid(NUM_CHUNKS * 256, 256, codec("float32")))
    people = [*HONEST, LIAR]
    genesis = genesis_of(people)
    swarm = Swarm(
        tmp_path,
        genesis.model_copy(
            update={
                "timing": genesis.timing.model_copy(
                    update={
                        "heartbeat_timeout_s": 3.0,
                        "ready_grace_s": 10.0,
                        "progress_timeout_s": 10.0,
                        "attempt_timeout_s": 100.0,
                        "quorum_timeout_s": 200.0,
                    }
                ),
                "trust": genesis.trust.model_copy(
                    update={"audited_chunks": getattr(request, "param", NUM_CHUNKS), "audited_share": 1024.0}
                ),
            }
        ),
    )
    swarm.network.progress_timeout_s = 10.0
    for person in people:
        await swarm.start(person)
    yield swarm
    await swarm.close()


def let_lie(monkeypatch: pytest.MonkeyPatch, tamper: Tamper, liar: PeerId = LIAR.peer_id) -> None:
    """The liar averages something else than what it was sent, and signs the outcome."""
    honest = owners.SpanOwner._reduce

    def reduce(self, generation, chunk, members, datas, shares):
        if self._host.me == liar:
            datas = tamper(self._chunks[chunk], datas)
        return honest(self, generation, chunk, members, datas, shares)

    monkeypatch.setattr(owners.SpanOwner, "_reduce", reduce)


def zeros(_chunk: int, datas: list[Buffer]) -> list[Buffer]:
    return [bytes(len(data)) for data in datas]


def opposite(_chunk: int, datas: list[Buffer]) -> list[Buffer]:
    return [(-np.frombuffer(data, np.float32)).tobytes() for data in datas]


def one_altered_value(chunk: int, datas: list[Buffer]) -> list[Buffer]:
    if chunk % 6 != 4:
        return datas
    altered = np.frombuffer(datas[0], np.float32).copy()
    altered[7] += 1e-5
    return [altered.tobytes(), *datas[1:]]


async def contribute(swarm: Swarm, people: Sequence = (*HONEST, LIAR)) -> dict[PeerId, Committed]:
    calls = {person.peer_id: swarm.contribute(person, float(value)) for value, person in enumerate(people, 1)}
    outcomes = await asyncio.wait_for(asyncio.gather(*calls.values()), 60)
    return dict(zip(calls, outcomes, strict=True))


def honest_mean(swarm: Swarm, record: Record, values: dict[PeerId, float]) -> np.ndarray:
    """What the record's flags and weights give, in float64."""
    mean = np.empty(NUM_CHUNKS * 256)
    for span, result in zip(record.plan.spans, record.results, strict=True):
        shares = weights(record.plan, result.included, swarm.genesis.trust, swarm.genesis.limits)
        members = zip(record.plan.members, shares, strict=True)
        mean[span.first_chunk * 256 :][: span.num_chunks * 256] = sum(values[m.peer] * share for m, share in members)
    return mean


VALUES = {person.peer_id: float(value) for value, person in enumerate((*HONEST, LIAR), 1)}


@pytest.mark.parametrize("tamper", [zeros, opposite, one_altered_value])
async def test_a_lying_owner_is_proven_ejected_and_the_round_commits_the_true_mean(swarm, monkeypatch, tamper):
    let_lie(monkeypatch, tamper)
    outcomes = await contribute(swarm)
    record = outcomes[HONEST[0].peer_id].commit.record
    nodes = [swarm.nodes[person.peer_id] for person in HONEST]
    assert {node.replica.chain[0].record.content_id() for node in nodes} == {record.content_id()}
    assert len({node.replica.state_hash for node in nodes}) == 1
    for node in nodes:
        np.testing.assert_allclose(node.replica.mean, honest_mean(swarm, record, VALUES), rtol=1e-6)
        assert node.driver.roster == tuple(person.peer_id for person in HONEST)
        assert "peer.proven" in node.points()
    assert record.plan.ejected == (LIAR.peer_id,)
    assert LIAR.peer_id not in [span.owner for span in record.plan.spans]
    following = await contribute(swarm, HONEST)
    assert all(outcome.counted for outcome in following.values())
    assert {outcome.commit.record.plan.ejected for outcome in following.values()} == {(LIAR.peer_id,)}


async def test_an_honest_round_is_audited_and_nobody_is_accused(swarm):
    outcomes = await contribute(swarm)
    assert all(outcome.counted for outcome in outcomes.values())
    assert outcomes[LIAR.peer_id].commit.record.plan.ballot == 0
    record = outcomes[LIAR.peer_id].commit.record
    done = dict[PeerId, list[object]]()
    for peer, node in swarm.nodes.items():
        done[peer] = [event.fields["num_chunks"] for event in node.events if event.point == "audit.done"]
        assert done[peer] in ([18], [])  # all that others own; or a quorum of others was quicker
        assert not {"audit.lie", "audit.refused", "audit.incomplete", "peer.proven"} & set(node.points())
    audited = [peer for peer, chunks in done.items() if chunks]
    assert quorum_of(swarm.genesis, record.plan.roster, 1).reached(audited)
    assert all(node.driver.roster == swarm.genesis.membership.roster for node in swarm.nodes.values())


async def test_the_ejected_is_refused_by_the_gate_and_remembered_over_a_restart(swarm, monkeypatch):
    let_lie(monkeypatch, zeros)
    await contribute(swarm)
    witness = HONEST[0]
    await swarm.until(lambda: swarm.nodes[witness.peer_id].driver.round == 2)
    replica = await swarm.kill(witness)
    node = await swarm.start(witness, replica)
    assert node.driver._oversight.proven == {LIAR.peer_id}
    await swarm.until(lambda: "peer.rejected" in node.points())
    rejections = [event.fields for event in node.events if event.point == "peer.rejected"]
    assert {(fields["peer"], fields["rule"]) for fields in rejections} == {(LIAR.peer_id, "ejected")}
    outcomes = await contribute(swarm, HONEST)
    assert all(outcome.counted for outcome in outcomes.values())


async def test_the_ejected_hears_of_it_by_the_commit_and_by_whoever_refuses_it(swarm, monkeypatch):
    let_lie(monkeypatch, zeros)
    await contribute(swarm)
    liar = swarm.nodes[LIAR.peer_id]
    assert liar.replica.standing.ejected == (LIAR.peer_id,)
    liar.driver._heartbeats.say_now()
    await swarm.until(lambda: "invite.refused" in liar.points())
    (told, *_) = [event.fields for event in liar.events if event.point == "invite.refused"]
    assert told["why"] == "its misconduct was proven"
    await contribute(swarm, HONEST)
    answers = Counter(event.fields["peer"] for event in liar.events if event.point == "invite.refused")
    assert set(answers.values()) == {1}, "an ejected peer that goes on talking gets no more answers"


async def test_an_owner_that_sends_two_signed_results_is_proven_to_contradict_itself(swarm, monkeypatch):
    """Its flags differ by listener, the mean does not: nothing but the comparison of signatures shows it."""
    flags = (False, True, True, True)
    victim, encode = HONEST[0].peer_id, owners.SpanOwner._control

    async def control(self, stream, tag, argument=0, text=b""):
        if tag == owners.wire.FINAL and self._host.me == LIAR.peer_id and stream.remote == victim:
            text = signed(LIAR, SpanResult.model_validate_json(text).model_copy(update={"included": flags})).canonical()
        await encode(self, stream, tag, argument, text)

    monkeypatch.setattr(owners.SpanOwner, "_control", control)
    await contribute(swarm)
    await swarm.until(lambda: all("peer.proven" in swarm.nodes[person.peer_id].points() for person in HONEST))
    proven = [event.fields for event in swarm.nodes[victim].events if event.point == "peer.proven"]
    assert [fields["peer"] for fields in proven] == [LIAR.peer_id]
    assert proven[0]["kind"] in ("two_results", "lie")  # the victim's copy is also wrong
    following = await contribute(swarm, HONEST)  # the first round may have been decided without the victim
    assert {outcome.commit.record.plan.ejected for outcome in following.values()} == {(LIAR.peer_id,)}


async def test_a_false_accusation_does_nothing_to_the_accused_and_discredits_the_accuser(swarm, monkeypatch):
    lies: list[proofs.Lie] = []
    compare = Auditor._compare

    def see_lies(self, record, result, chunk, mean, genesis, parts):
        """The accuser presents an honest chunk as a lie: everything is genuine but the claim."""
        if self._me == LIAR.peer_id:
            honest = proofs.true_mean
            monkeypatch.setattr("atoll.protocol.audit.true_mean", lambda *_: b"")
            lies.append(compare(self, record, result, chunk, mean, genesis, parts))
            monkeypatch.setattr("atoll.protocol.audit.true_mean", honest)
            return None
        return compare(self, record, result, chunk, mean, genesis, parts)

    monkeypatch.setattr(Auditor, "_compare", see_lies)
    await contribute(swarm)
    accused = lies[0].accused
    docket = swarm.nodes[LIAR.peer_id].driver._oversight._docket
    await docket.spread(lies[0], swarm.genesis.membership.roster)
    judges = [person.peer_id for person in HONEST if person.peer_id != accused]
    for peer in judges:
        rejected = [event.fields for event in swarm.nodes[peer].events if event.point == "peer.rejected"]
        assert {(fields["peer"], fields["rule"]) for fields in rejected} == {(LIAR.peer_id, "false evidence")}
        assert swarm.nodes[peer].driver._oversight.proven == frozenset()
    outcomes = await contribute(swarm)
    assert all(outcome.counted for outcome in outcomes.values())
    assert outcomes[accused].commit.record.plan.ejected == ()


async def test_an_owner_that_refuses_its_audit_loses_its_spans_and_nothing_else(swarm, monkeypatch):
    """It does not vote either: with no faults tolerated, one vote must be helped like a decision (f = 0)."""
    answer = Auditor._answer
    monkeypatch.setattr(swarm.nodes[LIAR.peer_id].driver._oversight, "vouch", lambda *_: asyncio.sleep(3600))

    async def refuse(self, stream):
        if self._me == LIAR.peer_id:
            self._shown.clear()
        return await answer(self, stream)

    monkeypatch.setattr(Auditor, "_answer", refuse)
    outcomes = await contribute(swarm)
    record = outcomes[HONEST[0].peer_id].commit.record
    assert LIAR.peer_id not in [span.owner for span in record.plan.spans]
    assert record.plan.ejected == ()
    assert record.plan.next_roster == swarm.genesis.membership.roster
    assert any("audit.refused" in swarm.nodes[person.peer_id].points() for person in HONEST)


@pytest.mark.parametrize("swarm", [0], indirect=True)
async def test_without_audits_the_lie_goes_through(swarm, monkeypatch):
    """What the tests above show is due to the audit."""
    let_lie(monkeypatch, zeros)
    outcomes = await contribute(swarm)
    record = outcomes[HONEST[0].peer_id].commit.record
    assert record.plan.ejected == ()
    assert not np.allclose(swarm.nodes[HONEST[0].peer_id].replica.mean, honest_mean(swarm, record, VALUES))


async def test_who_was_away_asks_for_the_evidence_that_a_plan_rests_on(swarm, monkeypatch):
    """One member audits too slowly and gets no evidence by itself: it asks for it, and only then votes."""
    let_lie(monkeypatch, zeros)
    order = permutation(swarm.genesis.run_id, 0, 0, 1, swarm.genesis.membership.roster)
    deaf = [peer for peer in order if peer != LIAR.peer_id][-1]  # the others lead
    oversight = swarm.nodes[deaf].driver._oversight
    docket = oversight._docket

    async def vouch_late(_record, _mean) -> None:
        while not oversight.proven:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    monkeypatch.setattr(docket, "_take", _refuse_all)
    monkeypatch.setattr(oversight, "vouch", vouch_late)
    sought: list[str] = []
    accept = docket._accept

    async def accept_and_note(evidence):
        sought.append(evidence.accused)
        return await accept(evidence)

    monkeypatch.setattr(docket, "_accept", accept_and_note)
    outcomes = await contribute(swarm)
    assert outcomes[deaf].commit.record.plan.ejected == (LIAR.peer_id,)
    assert sought == [LIAR.peer_id]
    assert EvidenceStore(swarm.folder / deaf / "evidence", drivers.GRID).load(LIAR.peer_id) is not None


async def _refuse_all(stream, _data) -> None:
    raise RemoteProtocolError(stream.remote, "takes no evidence")


# --- members that only sign what they like ----------------------------------------------------------------------------


class FalseVoter(Attacker):
    """A member of the roster that answers every `Prepare` at once, with a vote that nobody ever asked for."""

    def listen(self) -> None:
        self.transport.on_message(self._on_message)

    async def _on_message(self, remote: PeerId, raw: bytes) -> None:
        body = Envelope.open(raw, run_id=self.genesis.run_id).body
        if isinstance(body, Prepare):
            accepted = Accepted(ballot=0, record=self.made_up(), seal="00" * 64)
            await self.say(remote, Promise(fragment=0, round=1, ballot=body.ballot, accepted=accepted))

    def made_up(self) -> Record:
        """A record in which the voter is everything: the only member, and the owner of all."""
        me, roster = self.identity, self.genesis.membership.roster
        plan = Plan(
            lineage=0,
            fragment=0,
            round=1,
            ballot=0,
            leader=permutation(self.genesis.run_id, 0, 0, 1, roster)[0],
            parent=self.genesis.run_id,
            parent_state=self.genesis.initial_state,
            members=(Member(peer=me.peer_id, tokens=1, commitment=ZERO, squared_norm=1.0),),
            spans=(Span(first_chunk=0, num_chunks=NUM_CHUNKS, owner=me.peer_id),),
            roster=roster,
            next_roster=roster,
            data_cursor=40,
            rules=self.genesis.rules_id,
            attempt_timeout_s=self.genesis.timing.attempt_timeout_s,
        )
        result = SpanResult(plan=plan.content_id(), span=0, included=(True,), digest=ZERO)
        return Record(plan=plan, results=(signed(me, result),))


async def test_a_promise_with_a_made_up_vote_delays_no_round(swarm):
    """The first leader is gone, so that the next one has to ask what has been voted for."""
    first = permutation(swarm.genesis.run_id, 0, 0, 1, swarm.genesis.membership.roster)[0]
    attacker = next(person for person in (*HONEST, LIAR) if person.peer_id == first)
    await swarm.kill(attacker)
    FalseVoter(swarm, attacker).listen()
    others = [person for person in (*HONEST, LIAR) if person is not attacker]
    outcomes = await asyncio.wait_for(contribute(swarm, others), swarm.genesis.timing.attempt_timeout_s / 2)
    assert all(outcome.counted for outcome in outcomes.values())
    rejected = [e.fields for node in swarm.nodes.values() for e in node.events if e.point == "peer.rejected"]
    assert {(fields["peer"], fields["rule"]) for fields in rejected} == {(first, "proposal.seal")}


async def test_a_leader_that_sends_two_plans_at_one_ballot_is_proven_and_replaced(swarm):
    first = permutation(swarm.genesis.run_id, 0, 0, 1, swarm.genesis.membership.roster)[0]
    traitor = next(person for person in (*HONEST, LIAR) if person.peer_id == first)
    await swarm.kill(traitor)
    attacker = FalseVoter(swarm, traitor)
    others = [person for person in (*HONEST, LIAR) if person is not traitor]
    plan = attacker.made_up().plan
    for person, cursor in itertools.product(others[:2], (40, 41)):
        await attacker.say(person.peer_id, PlanMessage(plan=plan.model_copy(update={"data_cursor": cursor})))
    await swarm.until(lambda: all("peer.proven" in node.points() for node in swarm.nodes.values()))
    outcomes = await contribute(swarm, others)
    assert {outcome.commit.record.plan.ejected for outcome in outcomes.values()} == {(first,)}
