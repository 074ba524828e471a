"""A member that breaks the round's rules, message by message; and senders that drip instead of stalling."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from atoll.protocol.allowance import Allowances
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.memory import MemoryNetwork
from atoll.protocol.messages import Accepted, Heartbeat, PlanMessage, Prepare, Promise, Proposal
from atoll.protocol.payload import read_payload
from atoll.protocol.round_machine import Acceptor, PeerView, Received
from atoll.protocol.transport import ByteStream, RemoteProtocolError, StreamClosed

from .test_round_machine import after, plan_of, received, record_of, sent, state_of

A, B = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))


def met(state, heard_s: float, *, phase: str = "training"):
    """``state`` in which every member was heard of at ``heard_s``."""
    heartbeat = Heartbeat(round=0, state_hash="00" * 32, phase=phase)  # type: ignore[arg-type]
    return replace(state, peers={peer: PeerView(heard_s, heartbeat) for peer in state.rules.roster})


def dropping(state, *, ballot: int = 0):
    """A plan of the ballot's leader that leaves everybody else out of the next roster."""
    leader = state.rules.leader_of(ballot)
    return plan_of(ballot, next_roster=(leader,), leader=leader)


def test_a_leader_cannot_take_the_run_over_by_dropping_live_members():
    state = met(state_of(1), heard_s=0.0)
    plan = dropping(state)
    for message in (PlanMessage(plan=plan), Proposal(ballot=0, record=record_of(plan))):
        with pytest.raises(RemoteProtocolError, match="next_roster"):
            after(state, received(plan.leader, message), now=1.0)


def test_members_silent_for_long_and_members_that_leave_may_be_dropped():
    silent = met(state_of(1), heard_s=-1e6)
    plan = dropping(silent)
    me, others = silent.rules.me, [peer for peer in silent.rules.roster if peer not in (plan.leader, silent.rules.me)]
    keeps_me = plan.model_copy(update={"next_roster": (plan.leader, me)})
    after(silent, received(plan.leader, PlanMessage(plan=keeps_me)), now=1.0)
    left = met(state_of(1), heard_s=0.0, phase="leaving")
    assert others
    after(left, received(plan.leader, PlanMessage(plan=keeps_me)), now=1.0)


def test_a_plan_that_an_earlier_leader_may_have_decided_is_helped_whoever_lives_now():
    state = met(state_of(1), heard_s=0.0)
    plan = dropping(state)
    leader = state.rules.leader_of(2)
    _, actions = after(state, received(leader, Proposal(ballot=2, record=record_of(plan))), now=1.0)
    assert actions, "its results are fetched, so that it can be voted for"


def test_a_leader_cannot_stretch_or_shrink_the_runs_time_limits():
    state = state_of(1)
    for timeout_s in (1e-300, 86_400.0):
        plan = plan_of(0, attempt_timeout_s=timeout_s)
        with pytest.raises(RemoteProtocolError, match="attempt_timeout_s"):
            after(state, received(plan.leader, PlanMessage(plan=plan)))


def test_a_promise_of_an_impossible_vote_is_refused():
    state = state_of(1)
    me = state.rules.me
    ballot = next(number for number in range(1, 10) if state.rules.leader_of(number) == me)
    from atoll.protocol.round_machine.values import Preparing

    state = replace(state, lead=Preparing(ballot), seen=ballot, acceptor=Acceptor(promised=ballot, led=ballot))
    voter = next(peer for peer in state.rules.roster if peer != me)
    for accepted in (ballot, ballot + 1, 2**40):
        forged = Accepted(ballot=accepted, record=record_of(plan_of(0)))
        with pytest.raises(RemoteProtocolError, match=r"promise\.accepted"):
            after(state, received(voter, Promise(fragment=0, round=1, ballot=ballot, accepted=forged)))


def test_no_ballot_leaves_honest_members_without_one_of_their_own():
    state = replace(state_of(1), seen=2**39)
    owner = state.rules.leader_of(2**39 + 3)
    with pytest.raises(RemoteProtocolError, match="proportion"):
        after(state, received(owner, Prepare(fragment=0, round=1, ballot=2**39 + 3)))


def test_a_leader_that_outbids_itself_for_ever_only_gets_promises():
    state = state_of(1)
    ballots = [number for number in range(1, 200) if state.rules.leader_of(number) == state.rules.order[0]]
    for ballot in ballots:
        state, actions = after(state, received(state.rules.order[0], Prepare(fragment=0, round=1, ballot=ballot)))
        assert len(sent(actions, Promise)) == 1
    assert state.acceptor.promised == ballots[-1]
    assert isinstance(received(A, Prepare(fragment=0, round=1, ballot=1)), Received)


# --- allowances -------------------------------------------------------------------------------------------------------


def test_an_allowance_fills_steadily_and_forgets_the_longest_unused():
    now = 0.0
    allowances = Allowances(per_s=2.0, burst=3.0, clock=lambda: now)
    assert [allowances.take(A) for _ in range(4)] == [True, True, True, False]
    assert allowances.take(B), "everybody has one of their own"
    now = 1.0
    assert [allowances.take(A) for _ in range(3)] == [True, True, False]
    now = -3600.0
    assert not allowances.take(A), "a clock that goes back gives nothing"
    for number in range(5000):
        allowances.take(PeerId(str(number)))
    assert len(allowances._buckets) == 4096


# --- slow loris -------------------------------------------------------------------------------------------------------


async def test_a_payload_that_drips_ends_although_every_frame_is_in_time(monkeypatch):
    monkeypatch.setattr("atoll.protocol.payload.FIRST_BYTES_PATIENCE_S", 0.05)
    monkeypatch.setattr("atoll.protocol.payload.SLOWEST_BYTES_PER_S", 1e6)
    network = MemoryNetwork(progress_timeout_s=5.0)
    near, far = network.transport(A), network.transport(B)

    async def drip(stream: ByteStream) -> None:
        while True:
            await stream.write(b"x")
            await asyncio.sleep(0.001)

    far.serve("result", drip)
    stream = await near.open(B, "result")
    async with asyncio.timeout(3):
        with pytest.raises(StreamClosed, match="did not come within"):
            await read_payload(stream, 100_000)
    await network.close()
