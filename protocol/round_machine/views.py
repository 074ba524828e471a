"""Questions about a state: who is alive, who may lead, who is waited for, who votes next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .. import grace, invites
from ..grace import Pace
from ..identity import PeerId
from ..leader import successor
from ..messages import Heartbeat, Provisional
from ..quorum import has_witnesses
from ..record import MAX_EJECTED, Plan
from ..tickets import Admission, Ticket
from ..transport import RemoteProtocolError
from .values import Gathering, PeerView, RoundState

_BYSTANDING = frozenset({"starting", "syncing", "paused", "leaving"})
_HOLDS_STATE = frozenset({"training", "ready", "exchanging"})


def is_live(state: RoundState, peer: PeerId, now: float) -> bool:
    """Heard of within the heartbeat timeout, not leaving and not banned. We ourselves always are."""
    return peer == state.rules.me or _silent_s(state, peer, now) <= state.rules.genesis.timing.heartbeat_timeout_s


def _silent_s(state: RoundState, peer: PeerId, now: float) -> float:
    view = state.peers.get(peer)
    if view is None or _has_left(view) or peer in state.proven or peer in state.rules.genesis.control.banned:
        return float("inf")
    return now - view.heard_s


def is_reachable(view: PeerView | None) -> bool:
    """Whether others can open streams to the peer, by its own word; assumed until it has spoken."""
    return view is None or view.heartbeat is None or view.heartbeat.reachable


def can_lead(state: RoundState, peer: PeerId, now: float) -> bool:
    if peer == state.rules.me and (state.rules.abstain or not state.rules.admits(peer)):
        return False
    view = state.peers.get(peer)
    abstains = view is not None and view.heartbeat is not None and view.heartbeat.abstains
    return is_live(state, peer, now) and is_reachable(view) and not abstains


@dataclass(frozen=True)
class Census:
    """Who of the roster is there, in roster order."""

    live: tuple[PeerId, ...]
    ready: tuple[PeerId, ...]
    """Live members with a contribution that counts."""
    bystanders: tuple[PeerId, ...]
    """Live members that do not train at present."""
    has_quorum: bool
    """Whether the live ones are a quorum."""
    is_enough: bool
    """Whether a quorum is ready (live members that do not train at present vote, and are not waited for)."""
    since_s: float
    until_s: float
    """Between these times nobody falls silent who is live, so all of it holds."""


_MARGIN_S = 1e-6
"""No rounding of a time is greater."""


def census(state: RoundState, now: float) -> Census:
    """One look at everybody, however many rules ask, until somebody says something new or falls silent."""
    found = state.memo.get("census")
    if found is None or not found.since_s <= now <= found.until_s:
        found = state.memo["census"] = _take_census(state, now)
    return found


def _take_census(state: RoundState, now: float) -> Census:
    me, peers, readies = state.rules.me, state.peers, state.readies
    timeout_s = state.rules.genesis.timing.heartbeat_timeout_s
    roster = state.rules.roster
    if gone := state.proven.union(state.rules.genesis.control.banned):
        roster = tuple(peer for peer in roster if peer == me or peer not in gone)
    live: list[PeerId] = []
    ready: list[PeerId] = []
    bystanders: list[PeerId] = []
    oldest_s = now
    for peer in roster:  # one loop without calls: of all that a member does, this takes most of the time
        view = peers.get(peer)
        phase = None if view is None or view.heartbeat is None else view.heartbeat.phase
        if peer != me and (view is None or now - view.heard_s > timeout_s or phase == "leaving"):
            continue
        live.append(peer)
        if view is not None and view.heard_s < oldest_s and peer != me:
            oldest_s = view.heard_s
        if peer in readies and readies[peer].tokens:
            ready.append(peer)
        if phase in _BYSTANDING:
            bystanders.append(peer)
    min_peers = state.rules.genesis.membership.min_peers
    return Census(
        tuple(live),
        tuple(ready),
        tuple(bystanders),
        has_quorum=reaches(state, live),
        is_enough=bool(ready) and len(ready) >= min_peers and reaches(state, ready + bystanders),
        since_s=now,
        until_s=oldest_s + timeout_s - _MARGIN_S,
    )


def live_roster(state: RoundState, now: float) -> tuple[PeerId, ...]:
    return census(state, now).live


def expected_leader(state: RoundState, now: float) -> PeerId | None:
    """Who should move the round on: the owner of the highest ballot while it can, else the next who can."""
    owner = state.rules.leader_of(state.seen)
    if can_lead(state, owner, now):
        return owner
    return successor(state.rules.order, owner, lambda peer: can_lead(state, peer, now))


def live_ready(state: RoundState, now: float) -> tuple[PeerId, ...]:
    """Roster members with a contribution that counts, in roster order (which becomes plan order)."""
    return census(state, now).ready


def awaited(state: RoundState, now: float) -> tuple[PeerId, ...]:
    """Live members that are training and not ready yet, and members that may still be starting, as we just did."""
    ready = set(live_ready(state, now))
    expected = (peer for peer in state.rules.roster if is_live(state, peer, now) or _may_be_starting(state, peer, now))
    return tuple(peer for peer in expected if peer not in ready and not _is_bystander(state, peer))


def _may_be_starting(state: RoundState, peer: PeerId, now: float) -> bool:
    view = state.peers.get(peer)
    return view is not None and not view.is_met and now - view.heard_s <= state.rules.genesis.timing.ready_grace_s


def _is_bystander(state: RoundState, peer: PeerId) -> bool:
    view = state.peers.get(peer)
    return view is not None and view.heartbeat is not None and view.heartbeat.phase in _BYSTANDING


def is_enough(state: RoundState, now: float) -> bool:
    """Whether a quorum is ready (`Census.is_enough`)."""
    return census(state, now).is_enough


def may_plan(state: RoundState, now: float) -> bool:
    """Everybody alive is ready, or a quorum is, and the grace is over or too short for all the others (L3)."""
    if state.rules.genesis.control.paused or not is_enough(state, now):
        return False
    stragglers = awaited(state, now)
    if not stragglers:
        return True
    since_s = now if state.enough_since_s is None else state.enough_since_s
    left_s = since_s + grace_s(state) - now
    return left_s <= 0 or not any(grace.can_make_it(_remaining_s(state, peer, now), left_s) for peer in stragglers)


def grace_s(state: RoundState) -> float:
    """How long stragglers are waited for once a quorum is ready, by what the last rounds have shown."""
    timing = state.rules.genesis.timing
    return grace.justified_s(state.rules.recent, 2 * timing.heartbeat_interval_s, timing.ready_grace_s)


def _remaining_s(state: RoundState, peer: PeerId, now: float) -> float | None:
    view = state.peers.get(peer)
    return None if view is None else grace.remaining_s(view.heartbeat, view.heard_s, now, state.rules.round)


def pace_of(state: RoundState) -> Pace | None:
    """What this round has shown of the members' speed; None if no quorum was ready, as far as this member saw."""
    if state.enough_since_s is None:
        return None
    spread_s = max(0.0, state.last_ready_s - state.enough_since_s)
    return Pace(state.enough_since_s - state.began_s, spread_s)


def provisional(state: RoundState, now: float) -> Provisional | None:
    """Whether, how and how long a member hears from no quorum (L5); None while it does, or has to wait for none."""
    since_s, rules = state.secluded_since_s, state.rules
    if since_s is None or rules.me not in rules.roster or state.decided is not None:
        return None
    return Provisional(
        num_alive=len(live_roster(state, now)),
        num_needed=rules.quorum.fewest_with(rules.me),
        num_members=len(rules.roster),
        lasted_s=max(0.0, now - since_s),
    )


def reaches(state: RoundState, voters: Collection[PeerId]) -> bool:
    return state.rules.quorum.reached(voters)


def has_work(state: RoundState, now: float) -> bool:
    """Whether a leader is owed to us: until then a dead one does not matter."""
    return (
        state.ready is not None
        or state.acceptor.accepted is not None
        or isinstance(state.lead, Gathering)
        or is_enough(state, now)
    )


def next_roster(state: RoundState, now: float) -> tuple[PeerId, ...]:
    """Who votes on the next round: without members silent for too long, with joiners that hold the parent's state."""
    rules = state.rules
    kept = _kept(state, now)
    joiners = sorted(peer for peer in state.peers if peer not in rules.roster and _may_join(state, peer, now))
    shown = {peer: _ticket(state, peer, now) for peer in joiners}
    room = max(0, rules.genesis.limits.max_peers - len(kept))
    return (*kept, *invites.let_in(rules.genesis, rules.standing, kept, shown)[:room])


def admissions(state: RoundState, next_roster: Collection[PeerId], now: float) -> tuple[Admission, ...]:
    """What entitles those of ``next_roster`` who enter by an invite."""
    new = (peer for peer in next_roster if peer not in state.rules.roster and not state.rules.admits(peer))
    shown = ((peer, _ticket(state, peer, now)) for peer in new)
    return tuple(Admission(peer=peer, ticket=ticket) for peer, ticket in shown if ticket is not None)


def _ticket(state: RoundState, peer: PeerId, now: float) -> Ticket | None:
    """What a peer has shown, unless it has expired by our clock."""
    heartbeat = state.peers[peer].heartbeat
    ticket = None if heartbeat is None else heartbeat.ticket
    return None if ticket is None or invites.is_over(ticket.invite, unix_s(state, now)) else ticket


def unix_s(state: RoundState, now: float) -> float:
    """Wall clock at ``now``, as far as this round's beginning tells it."""
    return state.rules.began_unix_s + max(0.0, now - state.began_s)


def _kept(state: RoundState, now: float) -> list[PeerId]:
    """Members that stay. Silent witnesses do where most of them are silent: without them no round could be decided."""
    rules = state.rules
    drop_after_s = rules.genesis.timing.drop_after_s
    gone = state.proven.union(rules.genesis.control.banned) - {rules.me}
    members = [peer for peer in rules.roster if peer not in gone]
    kept = [peer for peer in members if peer == rules.me or _silent_s(state, peer, now) <= drop_after_s]
    witnesses = rules.genesis.membership.witnesses
    if has_witnesses(witnesses, kept):
        return kept or members or list(rules.roster)
    return [peer for peer in members if peer in kept or peer in witnesses]


def check_dropped(state: RoundState, plan: Plan, now: float) -> None:
    """Raise `RemoteProtocolError` of the leader if ``plan`` drops a member that we have met and heard of lately.

    Or one leader could take the run over by leaving everybody else out of the next roster.
    """
    limit_s = state.rules.genesis.timing.drop_after_s / 2
    banned = set(state.rules.genesis.control.banned)
    for peer in set(state.rules.roster) - set(plan.next_roster) - banned:
        view = state.peers.get(peer)
        is_known_alive = peer == state.rules.me or (view is not None and view.is_met and not _has_left(view))
        if is_known_alive and _silent_s(state, peer, now) <= limit_s:
            raise RemoteProtocolError(plan.leader, "plan.next_roster", f"drops …{peer[-5:]}, which is alive")


def _has_left(view: PeerView) -> bool:
    return view.heartbeat is not None and view.heartbeat.phase == "leaving"


def _may_join(state: RoundState, peer: PeerId, now: float) -> bool:
    rules, heartbeat = state.rules, state.peers[peer].heartbeat
    return (
        heartbeat is not None
        and is_live(state, peer, now)
        and (heartbeat.reachable or rules.genesis.exchange.topology != "two_tier")
        and (rules.admits(peer) or heartbeat.ticket is not None)
        and heartbeat.phase in _HOLDS_STATE
        and (heartbeat.round, heartbeat.state_hash) == (rules.round - 1, rules.parent_state)
    )


def ejected(state: RoundState) -> tuple[PeerId, ...]:
    """`Plan.ejected` as this member would have it: those of the parent, then whom it holds evidence against.

    Of the roster only, which bounds the list: whoever has left is kept out by those who hold the evidence.
    """
    known, roster = state.rules.standing.ejected, state.rules.roster
    new = state.proven.intersection(roster) - {*known, state.rules.me}
    return (*known, *sorted(new))[:MAX_EJECTED]


def is_justified(state: RoundState, plan: Plan) -> bool:
    """Whether we hold evidence against everybody whom ``plan`` ejects. If not we ask for it, and wait."""
    return set(plan.ejected) <= state.proven


def is_tainted(state: RoundState, plan: Plan) -> bool:
    """Whether a span of ``plan`` is in the hands of a peer whose misconduct is proven."""
    return any(span.owner in state.proven for span in plan.spans)


def is_as_before(before: Heartbeat, after: Heartbeat) -> bool:
    """Whether a peer can do the same as before. Its progress counts only when something else makes a plan due."""
    if before.phase != after.phase and not _HOLDS_STATE.issuperset((before.phase, after.phase)):
        return False
    return (before.reachable, before.abstains) == (after.reachable, after.abstains)


def audience(state: RoundState) -> tuple[PeerId, ...]:
    """Everybody else whom a commit concerns: the roster, and every other peer heard of (joiners).

    In two-tier rounds each member of the roster tells its followers.
    """
    is_told_by_others = state.rules.genesis.exchange.topology == "two_tier"
    known = dict.fromkeys((*state.rules.roster, *(() if is_told_by_others else state.peers)))
    return tuple(peer for peer in known if peer != state.rules.me)
