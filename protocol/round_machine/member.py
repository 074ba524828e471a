"""A member as contributor: ready, plan, exchange, and learning the outcome."""

from __future__ import annotations

from dataclasses import replace

from ..identity import PeerId
from ..messages import Commit, CommitRequest, Heartbeat, PlanMessage, Ready, SpanDone, SpanFailed
from ..transport import RemoteProtocolError
from . import views
from .acceptor import follow, nack, vote_or_fetch
from .events import (
    Action,
    CancelExchange,
    Contributed,
    Decide,
    Distrusted,
    ExchangeEnded,
    GiveUp,
    ResultsHeld,
    Send,
    SpanLost,
    SpanReduced,
    StartExchange,
    Step,
)
from .validity import check_commit, check_new_plan, check_plan
from .values import Attempt, IllegalTransition, PeerView, Phase, RoundState


def on_heartbeat(state: RoundState, sender: PeerId, heartbeat: Heartbeat, now: float) -> Step:
    """Note progress; ask whoever has applied this round already for its commit."""
    state = state.having(peers={**state.peers, sender: PeerView(now, heartbeat)})
    if heartbeat.round < state.rules.round or sender == state.rules.me:
        return state, ()
    request = CommitRequest(fragment=state.rules.fragment, round=state.rules.round)
    return state, (Send((sender,), request),)


def on_contributed(state: RoundState, event: Contributed, now: float) -> Step:
    """Announce our contribution to the whole roster: any member may have to lead.

    Who is not in the roster yet only waits for the round's outcome (L4: a joiner starts with weight zero).
    """
    rules, ready = state.rules, event.ready
    if (ready.round, ready.parent, ready.parent_state) != (rules.round, rules.parent, rules.parent_state):
        raise IllegalTransition(f"contribution for round {ready.round} given to round {rules.round}")
    if state.ready is not None or state.phase is Phase.DECIDED:
        raise IllegalTransition(f"contribution while the round is {state.phase.value}")
    state = state.having(ready=ready, ready_since_s=now, no_quorum_since_s=None)
    return state, (Send(rules.roster, ready),) if rules.me in rules.roster else ()


def on_ready(state: RoundState, sender: PeerId, ready: Ready, now: float) -> Step:
    """The newest word of a member counts: a restarted one encodes anew."""
    if ready.parent != state.rules.parent:
        raise RemoteProtocolError(sender, "ready.parent", "follows another commit than ours")
    if ready.parent_state != state.rules.parent_state:
        raise RemoteProtocolError(sender, "ready.parent_state", "starts from another state than ours")
    last_ready_s = state.last_ready_s if sender in state.readies else now
    return state.having(readies={**state.readies, sender: ready}, last_ready_s=last_ready_s), ()


def on_plan(state: RoundState, sender: PeerId, message: PlanMessage, now: float) -> Step:
    """Start the exchange of the highest ballot's plan; the one before is useless now."""
    plan, attempt = message.plan, state.attempt
    if sender != plan.leader:
        raise RemoteProtocolError(sender, "plan.leader", "sent by another peer than its leader")
    check_new_plan(state.rules, plan, sender, views.unix_s(state, now))
    check_plan(state.rules, plan, sender)
    views.check_dropped(state, plan, now)
    if not views.is_justified(state, plan):
        return state, ()  # as for a proposal
    if plan.ballot < state.acceptor.promised:
        return state, (nack(state, sender),) if state.rules.may_vote else ()
    if attempt is not None and attempt.plan.ballot >= plan.ballot:
        return state, _on_known_plan(attempt, sender, message)
    new = Attempt(plan, plan.content_id())
    state = replace(follow(state, plan.ballot, now), attempt=new)
    actions: tuple[Action, ...] = () if attempt is None else (CancelExchange(attempt.plan_id),)
    if all(member.peer != state.rules.me for member in plan.members):
        return state, actions
    return state, (*actions, StartExchange(plan))


def _on_known_plan(attempt: Attempt, sender: PeerId, message: PlanMessage) -> tuple[Action, ...]:
    if attempt.plan.ballot > message.plan.ballot:
        return ()
    if attempt.plan != message.plan:
        raise RemoteProtocolError(sender, "plan.ballot", "two plans at one ballot")
    # The leader repeats itself because it misses something: repeat what we have told it.
    done = (SpanDone(result=result, round=message.plan.round) for result in attempt.done.values())
    return tuple(Send((sender,), message) for message in done)


def on_span_reduced(state: RoundState, event: SpanReduced) -> Step:
    attempt, result = state.attempt, event.result
    if attempt is None or attempt.plan_id != result.plan:
        return state, ()  # of an attempt that has been given up meanwhile
    if attempt.plan.spans[result.span].owner != state.rules.me:
        raise IllegalTransition(f"span {result.span} is not ours")
    state = state.having(attempt=replace(attempt, done={**attempt.done, result.span: result}))
    return state, (Send((attempt.plan.leader,), SpanDone(result=result, round=state.rules.round)),)


def on_span_lost(state: RoundState, event: SpanLost) -> Step:
    """Tell the leader, who decides; if it has a result all the same, we get it from others."""
    attempt, proposed = state.attempt, state.proposed
    if attempt is None or attempt.plan_id != event.plan_id:
        return state, ()
    state = state.having(attempt=replace(attempt, lost=attempt.lost | {event.span}))
    if proposed is not None and proposed.record.plan == attempt.plan:
        return vote_or_fetch(state)  # a result exists, and the leader has it: nothing to complain about any more
    complaint = SpanFailed(plan=event.plan_id, round=state.rules.round, span=event.span, why=event.why[:200])
    state, actions = vote_or_fetch(state)
    return state, (Send((attempt.plan.leader,), complaint), *actions)


def on_distrusted(state: RoundState, event: Distrusted) -> Step:
    """Tell the leader. Whether we vote for the result all the same is not decided here."""
    attempt = state.attempt
    if attempt is None or attempt.plan_id != event.plan_id:
        return state, ()
    why, number = event.why[:200], state.rules.round
    complaint = SpanFailed(plan=event.plan_id, round=number, span=event.span, why=why, distrusted=True)
    return state, (Send((attempt.plan.leader,), complaint),)


def on_exchange_ended(state: RoundState, event: ExchangeEnded) -> Step:
    attempt = state.attempt
    if attempt is None or attempt.plan_id != event.plan_id:
        return state, ()
    return vote_or_fetch(state.having(attempt=replace(attempt, ended=True)))


def on_results_held(state: RoundState, event: ResultsHeld) -> Step:
    state = state.having(held={**state.held, event.plan_id: event.digests}, fetching=None)
    return vote_or_fetch(state)


def on_commit(state: RoundState, sender: PeerId, commit: Commit) -> Step:
    """Learn the outcome, from whomever: the certificate proves it (S2)."""
    check_commit(state.rules, commit, sender)
    return decide(state, commit)


def decide(state: RoundState, commit: Commit) -> Step:
    """End of the round. An exchange of another plan is stopped; one of this plan may still bring the results."""
    attempt = state.attempt
    actions: tuple[Action, ...] = (Decide(commit),)
    if attempt is not None and attempt.plan != commit.record.plan:
        actions = (CancelExchange(attempt.plan_id), *actions)
    return state.having(decided=commit, lead=None), actions


def give_up(state: RoundState, now: float) -> Step:
    """Withdraw our contribution if this round cannot succeed at present (S3). Never while in doubt (S2).

    The others are told, by a `Ready` that weighs nothing: a leader would plan with what we no longer send.
    """
    reason, ready, rules = _hopeless(state, now), state.ready, state.rules
    if ready is None or state.phase in (Phase.IN_DOUBT, Phase.DECIDED) or reason is None:
        return state, ()
    readies = {peer: other for peer, other in state.readies.items() if peer != rules.me}
    attempt = state.attempt
    actions: tuple[Action, ...] = () if attempt is None else (CancelExchange(attempt.plan_id),)
    if rules.me in rules.roster:
        others = tuple(peer for peer in rules.roster if peer != rules.me)
        actions = (*actions, Send(others, ready.model_copy(update={"tokens": 0})))
    # What the cancelled exchange has not brought does not come by itself: a proposal of its plan must be fetched.
    attempt = None if attempt is None else replace(attempt, ended=True)
    return state.having(ready=None, readies=readies, attempt=attempt), (*actions, GiveUp(reason))


def _hopeless(state: RoundState, now: float) -> str | None:
    if state.rules.genesis.control.paused:
        return None  # not hopeless: the operator said so, and will say when it goes on
    timing = state.rules.genesis.timing
    live, size = views.live_roster(state, now), len(state.rules.roster)
    lonely_since = state.no_quorum_since_s
    if lonely_since is not None and now - lonely_since >= timing.attempt_timeout_s:
        return f"no quorum: {len(live)} of {size} members are alive"
    if views.expected_leader(state, now) is None and now - state.ready_since_s >= timing.heartbeat_timeout_s:
        return f"no reachable reducer: none of {len(live)} live members accepts connections"
    if now - state.ready_since_s >= timing.quorum_timeout_s:
        return f"no commit within {timing.quorum_timeout_s:g} s"
    return None
