"""A member as leader of an attempt: promises, plan, results, votes, certificate; and when to take over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..identity import PeerId
from ..invites import guests_after
from ..leader import distance, next_ballot
from ..messages import Accepted, Commit, Nack, PlanMessage, Prepare, Promise, Proposal, SpanDone, SpanFailed, Vote
from ..record import Member, Plan, Record
from ..spans import assign_spans, at_fault, without_faulty
from ..standing import newcomers_after
from ..transport import RemoteProtocolError
from . import views
from .acceptor import follow
from .events import Persist, Send, Step
from .member import decide
from .validity import check_record, check_result, check_sealed, check_signed
from .values import Gathering, Preparing, Proposing, Reducing, RoundState

# --- what others answer -----------------------------------------------------------------------------------------------


def on_promise(state: RoundState, sender: PeerId, message: Promise) -> Step:
    lead = state.lead
    if not isinstance(lead, Preparing) or lead.ballot != message.ballot:
        return state, ()
    if message.accepted is not None:
        record = message.accepted.record
        check_record(state.rules, record, sender)
        check_signed(state.rules, record.plan, record.results, sender)
        check_sealed(state.rules, message.accepted, sender)
        if not message.accepted.record.plan.ballot <= message.accepted.ballot < lead.ballot:
            raise RemoteProtocolError(sender, "promise.accepted", "accepted at a ballot that it cannot have been")
    return state.having(lead=replace(lead, promises={**lead.promises, sender: message.accepted})), ()


def on_nack(state: RoundState, message: Nack, now: float) -> Step:
    """Somebody leads above us: give way, and take over again only if that leader fails."""
    if message.promised <= state.seen:
        return state, ()
    return follow(state, message.promised, now), ()


def on_span_done(state: RoundState, sender: PeerId, message: SpanDone) -> Step:
    lead, result = state.lead, message.result
    if not isinstance(lead, Reducing) or lead.plan_id != result.plan:
        return state, ()
    check_result(lead.plan, lead.plan_id, result, sender)
    if lead.plan.spans[result.span].owner != sender:
        raise RemoteProtocolError(sender, "span_done.span", "not the span's owner")
    check_signed(state.rules, lead.plan, (result,), sender)
    if lead.results.get(result.span, result) != result:
        raise RemoteProtocolError(sender, "span_done.result", "two results of one span")
    return state.having(lead=replace(lead, results={**lead.results, result.span: result})), ()


def on_span_failed(state: RoundState, sender: PeerId, message: SpanFailed) -> Step:
    lead = state.lead
    if message.distrusted:
        return _on_distrusted(state, sender, message)
    if not isinstance(lead, Reducing) or lead.plan_id != message.plan:
        return state, ()
    if message.span >= len(lead.plan.spans):
        raise RemoteProtocolError(sender, "span_failed.span", "no such span")
    complaint = (sender, lead.plan.spans[message.span].owner)
    if complaint in state.complaints:
        return state, ()  # known when this plan was made
    lead = replace(lead, failed=lead.failed | {message.span})
    return state.having(lead=lead, complaints=state.complaints | {complaint}), ()


def _on_distrusted(state: RoundState, sender: PeerId, message: SpanFailed) -> Step:
    """Begin again without an owner whose result a member distrusts; once per member and owner, and only while the
    others do not have better reasons to do without the member."""
    plan = _plan_of(state)
    if plan is None or plan.content_id() != message.plan or message.span >= len(plan.spans):
        return state, ()
    owner = plan.spans[message.span].owner
    if (sender, owner) in state.complaints:
        return state, ()
    complaints = state.complaints | {(sender, owner)}
    distrusted = state.distrusted if sender in at_fault(complaints) else state.distrusted | {owner}
    return state.having(complaints=complaints, distrusted=distrusted), ()


def _plan_of(state: RoundState) -> Plan | None:
    """The plan that this leader has made at its ballot."""
    match state.lead:
        case Reducing() as lead:
            return lead.plan
        case Proposing() as lead if lead.record.plan.ballot == lead.ballot:
            return lead.record.plan
        case _:
            return None


def _is_spoilt(state: RoundState) -> bool:
    """Whether the present attempt has an owner that is proven to lie or is distrusted."""
    plan = _plan_of(state)
    return plan is not None and any(span.owner in state.proven | state.distrusted for span in plan.spans)


def on_vote(state: RoundState, sender: PeerId, message: Vote, raw: bytes) -> Step:
    lead = state.lead
    if not isinstance(lead, Proposing) or lead.ballot != message.ballot:
        return state, ()
    if message.record != lead.record_id:
        raise RemoteProtocolError(sender, "vote.record", "a vote for another record at our ballot")
    return state.having(lead=replace(lead, votes={**lead.votes, sender: raw.hex()})), ()


# --- stages -----------------------------------------------------------------------------------------------------------


def pursue(state: RoundState, now: float) -> Step:
    """The one step that the leader's stage, or the want of a leader, makes due now; nothing if none is."""
    match state.lead:
        case None:
            return _take_over(state, now) if _should_take_over(state, now) else (state, ())
        case Preparing() as lead:
            return _end_preparing(state, lead, now)
        case Gathering() as lead:
            return _end_gathering(state, lead, now)
        case Reducing() as lead:
            return _end_reducing(state, lead, now)
        case Proposing() as lead:
            return _end_proposing(state, lead, now)


def _should_take_over(state: RoundState, now: float) -> bool:
    rules, me = state.rules, state.rules.me
    if me not in rules.roster or not views.can_lead(state, me, now) or not views.has_work(state, now):
        return False
    owner = rules.leader_of(state.seen)
    if owner == me or not views.can_lead(state, owner, now):
        return views.expected_leader(state, now) == me
    # It lives but gets nowhere. Later members wait longer, so that they do not outbid each other.
    stagger_s = rules.genesis.timing.heartbeat_interval_s * distance(rules.order, owner, me)
    return state.deadline_s is not None and now >= state.deadline_s + stagger_s


def _take_over(state: RoundState, now: float) -> Step:
    """Lead the next ballot of ours; ballot 0, below which nothing can have been accepted, without asking."""
    acceptor, rules = state.acceptor, state.rules
    is_first = acceptor.led < 0 and acceptor.promised == 0 and acceptor.accepted is None and state.seen == 0
    if is_first and rules.leader_of(0) == rules.me:
        return _lead(state, Gathering(0), now)
    above = max(state.seen, acceptor.promised, acceptor.led)
    return _lead(state, Preparing(next_ballot(rules.me, rules.order, above)), now)


def _lead(state: RoundState, lead: Preparing | Gathering, now: float) -> Step:
    acceptor = replace(state.acceptor, led=lead.ballot)
    state = replace(follow(state, lead.ballot, now), acceptor=acceptor, lead=lead, distrusted=frozenset())
    if isinstance(lead, Gathering):
        return state, (Persist(acceptor),)
    return state, (Persist(acceptor), Send(state.rules.roster, _stage_message(state, lead)))


def _end_preparing(state: RoundState, lead: Preparing, now: float) -> Step:
    """With a quorum's promises: the accepted record of the highest ballot must be proposed again, else plan freely."""
    promises = {peer: promise for peer, promise in lead.promises.items() if peer not in state.proven}
    if not views.reaches(state, promises):
        return state, ()
    accepted = [promise for promise in promises.values() if promise is not None]
    if not accepted:
        return state.having(lead=Gathering(lead.ballot)), ()
    return _propose(state, lead.ballot, max(accepted, key=_ballot_of).record, now)


def _ballot_of(accepted: Accepted) -> int:
    return accepted.ballot


def _end_gathering(state: RoundState, lead: Gathering, now: float) -> Step:
    plan = make_plan(state, lead.ballot, now) if views.may_plan(state, now) else None
    if plan is None:
        return state, ()
    reducing = Reducing(lead.ballot, plan, plan.content_id(), started_s=now)
    state = follow(state.having(lead=reducing), lead.ballot, now)
    return state, (Send(state.rules.roster, _stage_message(state, reducing)),)


def make_plan(state: RoundState, ballot: int, now: float) -> Plan | None:
    """The plan of an attempt over the live ready members; None if nobody among them can own a span."""
    rules = state.rules
    members = views.live_ready(state, now)
    owners = [peer for peer in members if views.is_reachable(state.peers.get(peer))]
    if not owners:
        return None
    owners = without_faulty(owners, state.complaints)
    limit = rules.genesis.member_limits.max_tokens_per_round
    readies = [(peer, state.readies[peer]) for peer in members]
    next_roster = views.next_roster(state, now)
    admissions = views.admissions(state, next_roster, now)
    return Plan(
        lineage=rules.genesis.lineage,
        fragment=rules.fragment,
        round=rules.round,
        ballot=ballot,
        leader=rules.me,
        parent=rules.parent,
        parent_state=rules.parent_state,
        members=tuple(
            Member(
                peer=peer,
                tokens=min(ready.tokens, limit),
                num_inner_steps=ready.num_inner_steps,
                life=ready.life,
                tokens_per_s=ready.tokens_per_s,
                squared_norm=ready.squared_norm,
                commitment=ready.commitment,
                inner_state=ready.inner_state,
            )
            for peer, ready in readies
        ),
        spans=assign_spans(rules.num_chunks, dict.fromkeys(owners, 1.0)),
        roster=rules.roster,
        next_roster=next_roster,
        data_cursor=rules.next_cursor,
        newcomers=newcomers_after(rules.standing, next_roster, rules.genesis.trust.probation_rounds),
        ejected=views.ejected(state),
        admissions=admissions,
        guests=guests_after(rules.standing, next_roster, admissions),
        rules=rules.genesis.rules_id,
        attempt_timeout_s=rules.genesis.timing.attempt_timeout_s,
    )


def _end_reducing(state: RoundState, lead: Reducing, now: float) -> Step:
    """All results: propose. A lost owner: try again without it, from the contributions that are still held (L2)."""
    if _is_spoilt(state):
        return _take_over(state, now)
    if len(lead.results) == len(lead.plan.spans):
        if _may_propose(state, lead):
            results = tuple(lead.results[index] for index in range(len(lead.plan.spans)))
            return _propose(state, lead.ballot, Record(plan=lead.plan, results=results), now)
        return state, ()
    missing = {span.owner for index, span in enumerate(lead.plan.spans) if index not in lead.results}
    is_late = now >= lead.started_s + lead.plan.attempt_timeout_s
    lost = {owner for owner in missing if is_late or not views.is_live(state, owner, now)}
    failed = lead.failed - lead.results.keys()
    if not lost and not failed:
        return state, ()
    # An owner stands against itself when nobody's link can be to blame.
    return _take_over(state.having(complaints=state.complaints | {(owner, owner) for owner in lost}), now)


def _may_propose(state: RoundState, lead: Reducing) -> bool:
    """A leader that takes part proposes when it could serve the results itself, or knows that it must fetch them."""
    attempt = state.attempt
    takes_part = any(member.peer == state.rules.me for member in lead.plan.members)
    if not takes_part or lead.plan_id in state.held:
        return True
    return attempt is not None and attempt.plan_id == lead.plan_id and (bool(attempt.lost) or attempt.ended)


def _propose(state: RoundState, ballot: int, record: Record, now: float) -> Step:
    proposing = Proposing(ballot, record, record.content_id(), started_s=now)
    state = follow(state.having(lead=proposing), ballot, now)
    return state, (Send(state.rules.roster, _stage_message(state, proposing)),)


def _end_proposing(state: RoundState, lead: Proposing, now: float) -> Step:
    """A quorum of votes is the certificate. Too few for too long: results may have died with their owner; try again."""
    if views.reaches(state, [voter for voter in lead.votes if voter not in state.proven]):
        commit = Commit(record=lead.record, ballot=lead.ballot, votes=tuple(lead.votes.values()))
        state, actions = decide(state, commit)
        return state, (Send(views.audience(state), commit), *actions)
    is_late = now >= lead.started_s + state.rules.genesis.timing.attempt_timeout_s
    if is_late or _is_spoilt(state):
        return _take_over(state, now)
    return state, ()


# --- repetition -------------------------------------------------------------------------------------------------------


def repeat(state: RoundState, now: float) -> Step:
    """Say again what has not been answered: transports lose messages, and receivers may have restarted."""
    if now - state.repeated_s < state.rules.genesis.timing.heartbeat_interval_s:
        return state, ()
    return state.having(repeated_s=now), (*_repeat_stage(state), *_repeat_ready(state, now))


def _repeat_stage(state: RoundState) -> tuple[Send, ...]:
    lead = state.lead
    if lead is None or isinstance(lead, Gathering):
        return ()
    silent = tuple(peer for peer in state.rules.roster if peer not in _answered(lead))
    return (Send(silent, _stage_message(state, lead)),) if silent else ()


def _answered(lead: Preparing | Reducing | Proposing) -> Collection[PeerId]:
    match lead:
        case Preparing():
            return lead.promises.keys()
        case Reducing():
            return ()  # a plan has no answer but its results, which everybody's contribution is needed for
        case Proposing():
            return lead.votes.keys()


def _repeat_ready(state: RoundState, now: float) -> tuple[Send, ...]:
    leader = views.expected_leader(state, now)
    is_planned = state.attempt is not None and state.attempt.plan.ballot == state.seen
    if state.ready is None or leader is None or is_planned or state.rules.me not in state.rules.roster:
        return ()
    return (Send((leader,), state.ready),)


def _stage_message(state: RoundState, lead: Preparing | Reducing | Proposing) -> Prepare | PlanMessage | Proposal:
    match lead:
        case Preparing():
            return Prepare(fragment=state.rules.fragment, round=state.rules.round, ballot=lead.ballot)
        case Reducing():
            return PlanMessage(plan=lead.plan)
        case Proposing():
            return Proposal(ballot=lead.ballot, record=lead.record)
