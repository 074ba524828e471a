"""Questions about a state: who is alive, who may lead, who is waited for, who votes next."""

from __future__ import annotations

from collections.abc import Iterable

from ..identity import PeerId
from ..leader import successor
from ..messages import Plan
from ..transport import RemoteProtocolError
from .values import Gathering, PeerView, RoundState

_BYSTANDING = frozenset({"starting", "syncing", "paused", "leaving"})
_HOLDS_STATE = frozenset({"training", "ready", "exchanging"})


def is_live(state: RoundState, peer: PeerId, now: float) -> bool:
    """Heard of within the heartbeat timeout and not leaving. We ourselves always are."""
    return peer == state.rules.me or _silent_s(state, peer, now) <= state.rules.genesis.timing.heartbeat_timeout_s


def _silent_s(state: RoundState, peer: PeerId, now: float) -> float:
    view = state.peers.get(peer)
    if view is None or _has_left(view) or peer in state.proven:
        return float("inf")
    return now - view.heard_s


def is_reachable(view: PeerView | None) -> bool:
    """Whether others can open streams to the peer, by its own word; assumed until it has spoken."""
    return view is None or view.heartbeat is None or view.heartbeat.reachable


def can_lead(state: RoundState, peer: PeerId, now: float) -> bool:
    if peer == state.rules.me and state.rules.abstain:
        return False
    return is_live(state, peer, now) and is_reachable(state.peers.get(peer))


def live_roster(state: RoundState, now: float) -> tuple[PeerId, ...]:
    return tuple(peer for peer in state.rules.roster if is_live(state, peer, now))


def expected_leader(state: RoundState, now: float) -> PeerId | None:
    """Who should move the round on: the owner of the highest ballot while it can, else the next who can."""
    owner = state.rules.leader_of(state.seen)
    if can_lead(state, owner, now):
        return owner
    return successor(state.rules.order, owner, lambda peer: can_lead(state, peer, now))


def live_ready(state: RoundState, now: float) -> tuple[PeerId, ...]:
    """Roster members with a contribution that counts, in roster order (which becomes plan order)."""
    return tuple(peer for peer in live_roster(state, now) if peer in state.readies and state.readies[peer].tokens)


def awaited(state: RoundState, now: float) -> tuple[PeerId, ...]:
    """Live members that are training and not ready yet, and members that may still be starting, as we just did."""
    ready = live_ready(state, now)
    expected = (peer for peer in state.rules.roster if is_live(state, peer, now) or _may_be_starting(state, peer, now))
    return tuple(peer for peer in expected if peer not in ready and not _is_bystander(state, peer))


def _may_be_starting(state: RoundState, peer: PeerId, now: float) -> bool:
    view = state.peers.get(peer)
    return view is not None and not view.is_met and now - view.heard_s <= state.rules.genesis.timing.ready_grace_s


def _is_bystander(state: RoundState, peer: PeerId) -> bool:
    view = state.peers.get(peer)
    return view is not None and view.heartbeat is not None and view.heartbeat.phase in _BYSTANDING


def is_enough(state: RoundState, now: float) -> bool:
    """Whether a quorum is ready (live members that do not train at present vote, and are not waited for)."""
    ready = live_ready(state, now)
    others = [peer for peer in live_roster(state, now) if _is_bystander(state, peer)]
    return bool(ready) and len(ready) >= state.rules.genesis.membership.min_peers and reaches(state, [*ready, *others])


def may_plan(state: RoundState, now: float) -> bool:
    """Everybody alive is ready, or a quorum is and the grace for the others is over (L3)."""
    if not is_enough(state, now):
        return False
    since = now if state.enough_since_s is None else state.enough_since_s
    return not awaited(state, now) or now - since >= state.rules.genesis.timing.ready_grace_s


def reaches(state: RoundState, voters: Iterable[PeerId]) -> bool:
    return state.rules.quorum.reached(set(voters))


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
    drop_after_s = rules.genesis.timing.drop_after_s
    kept = [peer for peer in rules.roster if peer == rules.me or _silent_s(state, peer, now) <= drop_after_s]
    joiners = sorted(peer for peer in state.peers if peer not in rules.roster and _may_join(state, peer, now))
    room = max(0, rules.genesis.limits.max_peers - len(kept))
    return (*(kept or rules.roster), *joiners[:room])


def check_dropped(state: RoundState, plan: Plan, now: float) -> None:
    """Raise `RemoteProtocolError` of the leader if ``plan`` drops a member that we have met and heard of lately.

    Or one leader could take the run over by leaving everybody else out of the next roster.
    """
    limit_s = state.rules.genesis.timing.drop_after_s / 2
    for peer in set(state.rules.roster) - set(plan.next_roster):
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
        and rules.genesis.membership.admits(peer)
        and heartbeat.phase in _HOLDS_STATE
        and (heartbeat.round, heartbeat.state_hash) == (rules.round - 1, rules.parent_state)
    )


def ejected(state: RoundState) -> tuple[PeerId, ...]:
    """`Plan.ejected` as this member would have it: those of the parent, then whom it holds evidence against."""
    known = state.rules.standing.ejected
    return (*known, *sorted(state.proven - set(known) - {state.rules.me}))


def is_justified(state: RoundState, plan: Plan) -> bool:
    """Whether we hold evidence against everybody whom ``plan`` ejects. If not we ask for it, and wait."""
    return set(plan.ejected) <= state.proven


def is_tainted(state: RoundState, plan: Plan) -> bool:
    """Whether a span of ``plan`` is in the hands of a peer whose misconduct is proven."""
    return any(span.owner in state.proven for span in plan.spans)


def audience(state: RoundState) -> tuple[PeerId, ...]:
    """Everybody else whom a commit concerns: the roster, and every other peer heard of (joiners)."""
    known = dict.fromkeys((*state.rules.roster, *state.peers))
    return tuple(peer for peer in known if peer != state.rules.me)
