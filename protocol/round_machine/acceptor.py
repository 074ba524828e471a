"""A member as acceptor: promises and votes. Every change of `Acceptor` is persisted before the answer is sent."""

from __future__ import annotations

from dataclasses import replace

from ..identity import PeerId
from ..messages import Accepted, Nack, Prepare, Promise, Proposal, Vote
from ..transport import RemoteProtocolError
from .events import Action, FetchResults, Persist, Send, Step
from .validity import check_new_plan, check_record, check_sealed, check_signed
from .values import Proposed, RoundState
from .views import check_dropped, is_justified, is_tainted, unix_s


def on_prepare(state: RoundState, sender: PeerId, message: Prepare, now: float) -> Step:
    """Paxos 1b. Our contribution goes along, since a new leader may have missed it."""
    rules, acceptor, ballot = state.rules, state.acceptor, message.ballot
    _require_leader(state, sender, ballot)
    if not rules.may_vote:
        return state, ()
    if ballot < acceptor.promised:
        return state, (nack(state, sender),)
    if acceptor.accepted is not None and acceptor.accepted.ballot >= ballot:
        return state, ()  # a late copy: its leader is past this stage
    acceptor = replace(acceptor, promised=ballot)
    if ballot > state.seen:
        state = follow(state, ballot, now)
    state = state.having(acceptor=acceptor)
    promise = Promise(fragment=rules.fragment, round=rules.round, ballot=ballot, accepted=acceptor.accepted)
    actions: tuple[Action, ...] = (Persist(acceptor), Send((sender,), promise))
    return state, actions if state.ready is None else (*actions, Send((sender,), state.ready))


def on_proposal(state: RoundState, sender: PeerId, message: Proposal, now: float) -> Step:
    """Paxos 2b: vote at once if every span result is durable here, else get them first (S2)."""
    ballot, record, accepted = message.ballot, message.record, state.acceptor.accepted
    _require_leader(state, sender, ballot)
    check_record(state.rules, record, sender)
    check_signed(state.rules, record.plan, record.results, sender)
    check_sealed(state.rules, message, sender)
    if record.plan.ballot > ballot:
        raise RemoteProtocolError(sender, "proposal.ballot", "older than its plan")
    if record.plan.ballot == ballot:  # else it is an earlier leader's, perhaps decided already, and must be helped
        check_new_plan(state.rules, record.plan, sender, unix_s(state, now))
        check_dropped(state, record.plan, now)
    if ballot < state.acceptor.promised:
        return state, (nack(state, sender),) if state.rules.may_vote else ()
    if not is_justified(state, record.plan):
        return state, ()  # the leader repeats itself; by then we may have the evidence
    proposed = Proposed(ballot, record, record.content_id(), message.seal)
    if accepted is not None and accepted.ballot == ballot:
        return state, (_vote_again(state, sender, proposed),)
    if state.proposed is not None and _contradicts(state.proposed, proposed):
        raise RemoteProtocolError(sender, "proposal.record", "two records at one ballot")
    if state.proposed != proposed:
        state = replace(follow(state, ballot, now), proposed=proposed)
    return vote_or_fetch(state)


def vote_or_fetch(state: RoundState) -> Step:
    """Vote for the proposed record if we hold its results; wait for a running exchange; else fetch them."""
    proposed = state.proposed
    if proposed is None or not state.rules.may_vote or proposed.ballot < state.acceptor.promised:
        return state, ()
    if proposed.ballot == proposed.record.plan.ballot and is_tainted(state, proposed.record.plan):
        return state, ()  # one that has to be proposed again may be decided already, and must be helped
    if state.holds(proposed.record):
        return _vote(state, proposed)
    if state.fetching == proposed.record_id or _is_arriving(state, proposed):
        return state, ()
    return state.having(fetching=proposed.record_id), (FetchResults(proposed.record),)


def _is_arriving(state: RoundState, proposed: Proposed) -> bool:
    """Whether our own exchange of the record's plan still runs and has lost nothing."""
    attempt, plan = state.attempt, proposed.record.plan
    if attempt is None or attempt.plan != plan or attempt.lost or attempt.ended:
        return False
    return any(member.peer == state.rules.me for member in plan.members)


def _vote(state: RoundState, proposed: Proposed) -> Step:
    accepted = state.acceptor.accepted
    if accepted is not None and accepted.ballot >= proposed.ballot:
        return state, ()
    accepted = Accepted(ballot=proposed.ballot, record=proposed.record, seal=proposed.seal)
    acceptor = replace(state.acceptor, promised=proposed.ballot, accepted=accepted)
    vote = _ballot_paper(state, proposed)
    leader = state.rules.leader_of(proposed.ballot)
    return state.having(acceptor=acceptor, fetching=None), (Persist(acceptor), Send((leader,), vote))


def _vote_again(state: RoundState, sender: PeerId, proposed: Proposed) -> Send:
    accepted = state.acceptor.accepted
    if accepted is None or accepted.record.content_id() != proposed.record_id:
        raise RemoteProtocolError(sender, "proposal.record", "two records at one ballot")
    return Send((sender,), _ballot_paper(state, proposed))


def _ballot_paper(state: RoundState, proposed: Proposed) -> Vote:
    rules = state.rules
    return Vote(fragment=rules.fragment, round=rules.round, ballot=proposed.ballot, record=proposed.record_id)


def _contradicts(known: Proposed, proposed: Proposed) -> bool:
    return known.ballot == proposed.ballot and known.record_id != proposed.record_id


def nack(state: RoundState, sender: PeerId) -> Send:
    """Tell the sender of a lower ballot what we have promised."""
    rules, promised = state.rules, state.acceptor.promised
    return Send((sender,), Nack(fragment=rules.fragment, round=rules.round, promised=promised))


def follow(state: RoundState, ballot: int, now: float) -> RoundState:
    """Accept the owner of ``ballot`` as leader if it is the highest heard of, and give it time for its attempt."""
    if ballot < state.seen:
        return state
    lead = state.lead if state.lead is not None and state.lead.ballot >= ballot else None
    timing = state.rules.genesis.timing
    patience_s = max(timing.attempt_timeout_s, timing.ready_grace_s + timing.heartbeat_timeout_s)
    return state.having(seen=ballot, lead=lead, deadline_s=now + patience_s)


def _require_leader(state: RoundState, sender: PeerId, ballot: int) -> None:
    if sender != state.rules.leader_of(ballot):
        raise RemoteProtocolError(sender, "ballot", f"ballot {ballot} belongs to another member")
