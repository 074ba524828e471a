"""`begin` and `advance`: the whole behaviour of a member in a round, as a function of events and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from ..identity import PeerId
from ..messages import (
    Commit,
    Heartbeat,
    Nack,
    PlanMessage,
    Prepare,
    Promise,
    Proposal,
    Ready,
    SpanDone,
    SpanFailed,
    Vote,
)
from ..transport import RemoteProtocolError
from . import acceptor as accepting
from . import leading, member, views
from .events import (
    Contributed,
    Distrusted,
    Event,
    ExchangeEnded,
    Proven,
    Received,
    ResultsHeld,
    SpanLost,
    SpanReduced,
    Step,
    Tick,
    Woke,
)
from .values import Acceptor, PeerView, Phase, RoundState, Rules

_LAST_BALLOT = 1 << 39
"""Ballots of messages end at 2^40: from here on every member still has one of its own."""
_MAX_BALLOT_STEP = 1 << 20
"""No honest member is this many ballots ahead; a greater one would only use up the numbers."""


def begin(rules: Rules, acceptor: Acceptor, peers: Mapping[PeerId, PeerView], now: float) -> RoundState:
    """State at the start of a round, or at a restart within it (then ``acceptor`` comes from disk).

    Members of whom nothing is known yet count as heard now: their silence so far proves nothing.
    """
    known = {peer: peers.get(peer, PeerView(now, is_met=peer == rules.me)) for peer in rules.roster}
    accepted_ballot = 0 if acceptor.accepted is None else acceptor.accepted.ballot
    seen = max(acceptor.promised, acceptor.led, accepted_ballot)
    proven = rules.proven | frozenset(rules.standing.ejected)
    state = RoundState(rules, acceptor, {**peers, **known}, seen=seen, proven=proven)
    return replace(state, repeated_s=now, began_s=now)


def advance(state: RoundState, event: Event, now: float) -> Step:
    """Next state and the actions to perform, in order. ``now`` is monotonic seconds of the caller.

    Raises `RemoteProtocolError` if a peer broke the protocol and `IllegalTransition` for a local event that cannot
    happen now; the state is then unchanged. Messages that are merely late are ignored or answered with `Nack`.
    """
    if state.decided is not None:
        return state, ()
    step = _handle(state, event, now)
    return step if isinstance(event, Received) and _can_wait(state, event, now) else _settle(step, now)


def _can_wait(state: RoundState, event: Received, now: float) -> bool:
    """Whether a message makes nothing due before the next tick: the two kinds that everybody sends to everybody.

    A heartbeat that says only that its sender still lives; a contribution, for those who do not lead.
    """
    body = event.body
    if isinstance(body, Heartbeat):
        view = state.peers.get(event.sender)
        return view is not None and is_routine(state, view, body, now)
    return isinstance(body, Ready) and state.lead is None and state.rules.leader_of(state.seen) != state.rules.me


def is_routine(state: RoundState, view: PeerView, heartbeat: Heartbeat, now: float) -> bool:
    """Whether a heartbeat of the peer of ``view`` does nothing but renew the view."""
    before, timing = view.heartbeat, state.rules.genesis.timing
    if before is None or now - view.heard_s > timing.heartbeat_timeout_s or heartbeat.round >= state.rules.round:
        return False
    return before is heartbeat or views.is_as_before(before, heartbeat)


def _handle(state: RoundState, event: Event, now: float) -> Step:
    if isinstance(event, Received):  # first, and without `match`: nearly every event is one
        return _receive(state, event, now)
    match event:
        case Tick():
            return _tick(state, now)
        case Woke():
            return _wake(state, now), ()
        case Contributed():
            return member.on_contributed(state, event, now)
        case SpanReduced():
            return member.on_span_reduced(state, event)
        case SpanLost():
            return member.on_span_lost(state, event)
        case ExchangeEnded():
            return member.on_exchange_ended(state, event)
        case ResultsHeld():
            return member.on_results_held(state, event)
        case Distrusted():
            return member.on_distrusted(state, event)
        case Proven():
            return replace(state, proven=state.proven | {event.peer}), ()
        case _:
            assert_never(event)


def _tick(state: RoundState, now: float) -> Step:
    state, given_up = member.give_up(state, now)
    state, repeated = leading.repeat(state, now)
    return state, (*given_up, *repeated)


def _receive(state: RoundState, event: Received, now: float) -> Step:
    sender, body = event.sender, event.body
    if isinstance(body, Heartbeat):
        return member.on_heartbeat(state, sender, body, now)
    if isinstance(body, Commit):
        return member.on_commit(state, sender, body)
    if sender in state.rules.genesis.control.banned:
        raise RemoteProtocolError(sender, "banned", f"{body.kind} from a banned peer")
    if sender in state.proven:
        return state, ()  # whatever it says; its promises and votes are no part of any quorum that we count
    if sender not in state.rules.roster:
        raise RemoteProtocolError(sender, "roster", f"{body.kind} from outside this round's roster")
    _check_ballot(state, sender, body)
    known = state.peers.get(sender)
    heard = {sender: PeerView(now, None if known is None else known.heartbeat)}
    is_known = known is not None and known.is_met and views.is_live(state, sender, now)
    state = state.renewed(heard) if is_known else state.having(peers={**state.peers, **heard})
    return _receive_from_member(state, event, now)


def _receive_from_member(state: RoundState, event: Received, now: float) -> Step:
    sender = event.sender
    match event.body:
        case Ready() as body:
            return member.on_ready(state, sender, body, now)
        case PlanMessage() as body:
            return member.on_plan(state, sender, body, now)
        case Proposal() as body:
            return accepting.on_proposal(state, sender, body, now)
        case Prepare() as body:
            return accepting.on_prepare(state, sender, body, now)
        case Promise() as body:
            return leading.on_promise(state, sender, body)
        case Nack() as body:
            return leading.on_nack(state, body, now)
        case SpanDone() as body:
            return leading.on_span_done(state, sender, body)
        case SpanFailed() as body:
            return leading.on_span_failed(state, sender, body)
        case Vote() as body:
            return leading.on_vote(state, sender, body, event.raw)
        case body:
            raise RemoteProtocolError(sender, "kind", f"{body.kind} is no message of a round")


def _check_ballot(state: RoundState, sender: PeerId, body: object) -> None:
    match body:
        case PlanMessage():
            ballot = body.plan.ballot
        case Proposal() | Prepare() | Vote() | Promise():
            ballot = body.ballot
        case Nack():
            ballot = body.promised
        case _:
            return
    if ballot > min(state.seen + _MAX_BALLOT_STEP, _LAST_BALLOT):
        raise RemoteProtocolError(sender, "ballot", f"ballot {ballot} is out of all proportion")


def _wake(state: RoundState, now: float) -> RoundState:
    peers = {peer: replace(view, heard_s=now) for peer, view in state.peers.items()}
    deadline_s = None if state.deadline_s is None else now + state.rules.genesis.timing.attempt_timeout_s
    return replace(state, peers=peers, deadline_s=deadline_s, no_quorum_since_s=None, secluded_since_s=None)


def _settle(step: Step, now: float) -> Step:
    """Do everything that has become due, stage after stage."""
    state, actions = _keep_time(step[0], now), step[1]
    while state.phase is not Phase.DECIDED:
        following, more = leading.pursue(state, now)
        if following is state or following == state:
            break
        state, actions = following, (*actions, *more)
    return state, actions


def _keep_time(state: RoundState, now: float) -> RoundState:
    """Note since when a quorum is ready or missing; from the former a leader owes us a plan."""
    timing = state.rules.genesis.timing
    seen = views.census(state, now)
    enough_since_s = _since(state.enough_since_s, seen.is_enough, now)
    is_secluded = not seen.has_quorum
    deadline_s = state.deadline_s
    if enough_since_s is not None and deadline_s is None:
        deadline_s = now + timing.ready_grace_s + timing.heartbeat_timeout_s
    no_quorum_since_s = _since(state.no_quorum_since_s, is_secluded and state.ready is not None, now)
    secluded_since_s = _since(state.secluded_since_s, is_secluded, now)
    times = (enough_since_s, no_quorum_since_s, secluded_since_s, deadline_s)
    if times == (state.enough_since_s, state.no_quorum_since_s, state.secluded_since_s, state.deadline_s):
        return state
    return state.having(
        enough_since_s=enough_since_s,
        no_quorum_since_s=no_quorum_since_s,
        secluded_since_s=secluded_since_s,
        deadline_s=deadline_s,
    )


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since
