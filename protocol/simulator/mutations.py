"""Seeded bugs: each breaks one real function of the protocol for a while, so that the hunter can show that it finds it.

    with MUTATIONS["quorum_off_by_one"].applied():
        ...

A bug is patched into the modules that nodes import, never into a copy. What it should break is said beside it; the
hunter may notice something else first, which follows from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from ...kernels import carry
from .. import amendments, invites, sealing, votes
from ..amendments import RunRules
from ..identity import PeerId
from ..messages import Commit, CommitRequest, Vote
from ..quorum import Quorum
from ..round_machine import acceptor, leading, machine, member, validity, views
from ..round_machine.events import Persist, Send, Step
from ..round_machine.values import Acceptor, Preparing, RoundState, Rules
from ..spec import Genesis
from ..standing import Standing
from .schedules import DELEGATES, INVITES

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Mutation:
    """A bug: ``owner`` (a module or class) has a function ``name``, instead of which ``broken(original)`` is called."""

    breaks: str
    """The property that it breaks."""
    owner: Any
    name: str
    broken: Callable[[Function], Any]
    kinds: tuple[str, ...] = ()
    """Faults that bring it out (none: any will do); a hunt among these finds it sooner."""
    also: Mutation | None = None
    """The same bug in a second place: a plan's maker and its voters often check the same."""

    @contextmanager
    def applied(self) -> Generator[None]:
        """Put the bug in, wherever the function was imported to, and take it out again."""
        with self._here(), self.also.applied() if self.also is not None else nullcontext():
            yield

    @contextmanager
    def _here(self) -> Generator[None]:
        kept: Any = cast("dict[str, Any]", vars(self.owner))[self.name]
        broken = self.broken(getattr(kept, "__func__", kept))  # a class method's function
        places = [(self.owner, self.name), *_imports_of(kept)]
        for place, name in places:
            setattr(place, name, broken)
        try:
            yield
        finally:
            for place, name in places:
                setattr(place, name, kept)


def _imports_of(function: Any) -> list[tuple[Any, str]]:
    """Modules of this package that hold ``function``, and under which name."""
    package = __name__.partition(".")[0]
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    found = ((module, name) for module in modules for name, value in list(vars(module).items()) if value is function)
    return list(found)


# --- quorums and votes ------------------------------------------------------------------------------------------------


def _one_voter_fewer(original: Function) -> Function:
    def reached(quorum: Quorum, voters: Collection[PeerId]) -> bool:
        absent = [peer for peer in quorum.roster if peer not in voters and peer != quorum.tie_breaker]
        return bool(voters) and original(quorum, {*voters, *absent[:1]})

    return reached


def _without_accepted(original: Function) -> Function:
    def begin(rules: Any, known: Acceptor, *arguments: Any) -> RoundState:
        return original(rules, replace(known, accepted=None), *arguments)

    return begin


def _without_led(original: Function) -> Function:
    def begin(rules: Any, known: Acceptor, *arguments: Any) -> RoundState:
        return original(rules, replace(known, led=-1), *arguments)

    return begin


def _not_written(original: Function) -> Function:
    def vote(*arguments: Any) -> Step:
        state, actions = original(*arguments)
        return state, tuple(action for action in actions if not isinstance(action, Persist))

    return vote


def _ignoring_promises(original: Function) -> Function:
    """Of a message that is answered with Nack if its ballot is too low."""

    def handle(state: RoundState, *arguments: Any) -> Step:
        promised = state.acceptor.promised
        following, actions = original(state.having(acceptor=replace(state.acceptor, promised=0)), *arguments)
        kept = replace(following.acceptor, promised=max(promised, following.acceptor.promised))
        return following.having(acceptor=kept), actions

    return handle


def _forgetting_promises(original: Function) -> Function:
    def on_prepare(state: RoundState, *arguments: Any) -> Step:
        return original(state.having(acceptor=replace(state.acceptor, promised=0)), *arguments)

    return on_prepare


def _deciding_alone(original: Function) -> Function:
    def on_proposal(*arguments: Any) -> Step:
        state, actions = original(*arguments)
        has_voted = any(isinstance(action, Send) and isinstance(action.message, Vote) for action in actions)
        if not has_voted or state.proposed is None:
            return state, actions
        commit = Commit(record=state.proposed.record, ballot=state.proposed.ballot, votes=())
        state, more = member.decide(state, commit)
        return state, (*actions, *more)

    return on_proposal


def _planning_afresh(original: Function) -> Function:
    def end_preparing(state: RoundState, lead: Preparing, now: float) -> Step:
        return original(state, replace(lead, promises=dict.fromkeys(lead.promises)), now)

    return end_preparing


def _always(answer: object) -> Callable[[Function], Function]:
    def broken(_original: Function) -> Function:
        return lambda *_arguments, **_options: answer

    return broken


def _in_doubt_too(original: Function) -> Function:
    def give_up(state: RoundState, now: float) -> Step:
        following, actions = original(state.having(acceptor=replace(state.acceptor, accepted=None)), now)
        return following.having(acceptor=state.acceptor), actions

    return give_up


# --- membership, leadership, liveness ---------------------------------------------------------------------------------


def _former_roster(original: Function) -> Any:
    def after(cls: type[Standing], commit: Commit) -> Standing:
        return replace(original(cls, commit), roster=commit.record.plan.roster)

    return classmethod(after)


def _first_leader_only(original: Function) -> Function:
    def should_take_over(state: RoundState, now: float) -> bool:
        return state.rules.leader_of(0) == state.rules.me and original(state, now)

    return should_take_over


def _until_all_are_ready(_original: Function) -> Function:
    def may_plan(state: RoundState, now: float) -> bool:
        return views.is_enough(state, now) and not views.awaited(state, now)

    return may_plan


def _strangers_too(original: Function) -> Function:
    def awaited(state: RoundState, now: float) -> tuple[PeerId, ...]:
        strangers = (peer for peer in state.peers if peer not in state.rules.roster and views.is_live(state, peer, now))
        return (*original(state, now), *strangers)

    return awaited


def _without_asking(original: Function) -> Function:
    def on_heartbeat(*arguments: Any) -> Step:
        state, actions = original(*arguments)
        return state, tuple(
            action for action in actions if not (isinstance(action, Send) and isinstance(action.message, CommitRequest))
        )

    return on_heartbeat


def _always_owed(_original: Function) -> Function:
    def carry_after(own: object, *, counted: bool) -> object:
        return own

    return carry_after


# --- rules, invites, evidence, lineages -------------------------------------------------------------------------------


def _one_round_early(original: Function) -> Function:
    def in_force(rules: RunRules, num_known: int, round_number: int) -> Any:
        return original(rules, num_known, round_number + 1)

    return in_force


def _banned_too(_original: Function) -> Function:
    def kept(state: RoundState, now: float) -> list[PeerId]:
        return [peer for peer in state.rules.roster if peer not in state.proven]

    return kept


def _without_bans(original: Function) -> Function:
    def check_next_roster(rules: Rules, *arguments: Any) -> None:
        control = rules.genesis.control.model_copy(update={"banned": ()})
        original(replace(rules, genesis=rules.genesis.model_copy(update={"control": control})), *arguments)

    return check_next_roster


def _nobody_ejected(original: Function) -> Any:
    def after(cls: type[Standing], commit: Commit) -> Standing:
        return replace(original(cls, commit), ejected=())

    return classmethod(after)


def _any_delegate(_original: Function) -> Function:
    def may_recover(genesis: Genesis, signers: frozenset[PeerId]) -> bool:
        return not signers.isdisjoint((*genesis.recovery.delegates, *genesis.membership.roster))

    return may_recover


_CRASHES = ("crash_at", "crash")
_DELAYS = ("bad_network", "crash_at", "slow_peer", "partition")
_RULES = ("amend", "deaf_to_rules", "bad_network")

MUTATIONS: Mapping[str, Mutation] = {
    "quorum_off_by_one": Mutation("S1", Quorum, "reached", _one_voter_fewer),
    "vote_not_written_before_it_is_sent": Mutation("S1", acceptor, "_vote", _not_written),
    "vote_forgotten_by_a_restart": Mutation("S1", machine, "begin", _without_accepted, _CRASHES),
    "lost_disk_not_noticed": Mutation(
        "S1", votes, "abstention_at_open", _always(None), ("lose_disk_at", "partition", "crash_at")
    ),
    "ballot_reused_after_a_restart": Mutation("S1", machine, "begin", _without_led, ("crash_at",)),
    "stale_plan_accepted": Mutation("S1", member, "on_plan", _ignoring_promises, _DELAYS),
    "stale_proposal_voted_for": Mutation("S1", acceptor, "on_proposal", _ignoring_promises, ("deaf_at",)),
    "promise_taken_back": Mutation("S1", acceptor, "on_prepare", _forgetting_promises, _DELAYS),
    "accepted_value_not_proposed_again": Mutation("S1", leading, "_end_preparing", _planning_afresh, _CRASHES),
    "next_roster_not_from_the_commit": Mutation("S1", Standing, "after", _former_roster),
    "drop_of_live_members_accepted": Mutation("S1", views, "check_dropped", _always(None), ("cut_one_way",)),
    "vote_without_holding_results": Mutation("S2", RoundState, "holds", _always(True)),
    "applied_without_certificate": Mutation("S2", acceptor, "on_proposal", _deciding_alone),
    "given_up_in_doubt": Mutation("S2", member, "give_up", _in_doubt_too, ("deaf_at",)),
    "carry_counted_twice": Mutation("S6", carry, "carry_after", _always_owed),
    "missed_work_not_carried": Mutation("S6", carry, "carry_after", _always(None)),
    "takeover_never_happens": Mutation("L1", leading, "_should_take_over", _first_leader_only),
    "straggler_waited_for_without_end": Mutation("L2", views, "may_plan", _until_all_are_ready),
    "joiner_waited_for": Mutation("L4", views, "awaited", _strangers_too),
    "commits_never_asked_for": Mutation("L5", member, "on_heartbeat", _without_asking),
    "amendment_in_force_one_round_early": Mutation("S2", RunRules, "_in_force", _one_round_early, _RULES),
    "plan_under_superseded_rules_accepted": Mutation("S2", validity, "check_new_plan", _always(None), _RULES),
    "ban_not_enforced_in_the_next_roster": Mutation(
        "S1",
        views,
        "_kept",
        _banned_too,
        ("ban_peer",),
        also=Mutation("S1", validity, "_check_next_roster", _without_bans),
    ),
    "ejections_forgotten": Mutation("S1", Standing, "after", _nobody_ejected, ("accuse",)),
    "used_invites_forgotten": Mutation("S1", invites, "guests_after", _always(()), (INVITES, "leave")),
    "seats_of_an_owner_not_counted": Mutation("S1", invites, "_has_seat", _always(True), (INVITES, "leave")),
    "reset_without_the_delegates_threshold": Mutation(
        "S7", amendments, "may_recover", _any_delegate, (DELEGATES, "forge", "partition")
    ),
    "other_lineages_listened_to": Mutation("S7", sealing, "is_left_behind", _always(False), ("roll_back",)),
}
"""Name → bug. A new one is a line here."""
