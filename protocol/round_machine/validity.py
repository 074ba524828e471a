"""What makes a plan, a record or a commit valid in a round. Each check raises `RemoteProtocolError` with its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .. import invites
from ..envelope import InvalidMessage
from ..identity import PeerId
from ..messages import Accepted, Commit, Proposal
from ..quorum import has_witnesses
from ..record import Plan, Record, SpanResult
from ..spans import cover
from ..standing import newcomers_after
from ..transport import RemoteProtocolError, RulesDiffer
from .values import Rules


def check_new_plan(rules: Rules, plan: Plan, sender: PeerId, now_unix_s: float = 0.0) -> None:
    """A plan that may be made now: under the rules in force, as we know them, and not while the run is paused."""
    if plan.rules != rules.genesis.rules_id:
        raise RulesDiffer(sender, "plan.rules", "other rules than those in force here")
    _require(not rules.genesis.control.paused, sender, "plan.paused", "the run is paused")
    shown = [admission.ticket.invite for admission in plan.admissions]
    is_over = any(invites.is_over(invite, now_unix_s, invites.CLOCK_TOLERANCE_S) for invite in shown)
    _require(not is_over, sender, "plan.admissions", "an invite that has expired")


def check_plan(rules: Rules, plan: Plan, sender: PeerId) -> None:
    """A plan that the leader of its ballot may have made in this round, perhaps not knowing of the last amendments."""
    if plan.content_id() in rules.sound:
        return
    under = rules.under(plan.rules)
    if under is None:
        raise RulesDiffer(sender, "plan.rules", "rules that are not known here")
    _check_plan(under, plan, sender)
    rules.sound.add(plan.content_id())


def _check_plan(rules: Rules, plan: Plan, sender: PeerId) -> None:
    _require(plan.leader == rules.leader_of(plan.ballot), sender, "plan.leader", "not the leader of its ballot")
    _check_place(rules, plan, sender)
    _check_members(rules, plan, sender)
    owners = {span.owner for span in plan.spans}
    _require(owners <= {member.peer for member in plan.members}, sender, "plan.owner", "an owner is not a member")
    _require(cover(plan.spans, rules.num_chunks), sender, "plan.spans", "chunks are not covered exactly once")
    _check_next_roster(rules, plan, sender)
    _check_ejected(rules, plan, sender)


def _check_ejected(rules: Rules, plan: Plan, sender: PeerId) -> None:
    ejected, known = plan.ejected, rules.standing.ejected
    _require(ejected[: len(known)] == known, sender, "plan.ejected", "forgets somebody who was ejected")
    _require(len(set(ejected)) == len(ejected), sender, "plan.ejected", "a peer twice")
    is_known = set(ejected[len(known) :]) <= set(rules.roster)
    _require(is_known, sender, "plan.ejected", "names a peer that is not in the roster")
    present = {*plan.next_roster, *(member.peer for member in plan.members)}
    _require(not present & set(ejected), sender, "plan.ejected", "takes part all the same")


def check_signed(rules: Rules, plan: Plan, results: Iterable[SpanResult], sender: PeerId) -> None:
    """Well-formed results of ``plan`` that their owners have signed, where this run has signatures."""
    verified = rules.is_signed
    if verified is not None:
        is_sound = all(verified(result, plan.spans[result.span].owner) for result in results)
        _require(is_sound, sender, "result.signature", "not signed by the span's owner")


def check_sealed(rules: Rules, said: Accepted | Proposal, sender: PeerId) -> None:
    """What the leader of its ballot has really proposed, where this run has seals."""
    if rules.is_sealed is not None:
        leader, record_id = rules.leader_of(said.ballot), said.record.content_id()
        is_sound = rules.is_sealed(said.seal, leader, said.ballot, record_id)
        _require(is_sound, sender, "proposal.seal", "not proposed by the leader of its ballot")


def _check_place(rules: Rules, plan: Plan, sender: PeerId) -> None:
    place = (plan.lineage, plan.fragment, plan.round, plan.parent)
    expected = (rules.genesis.lineage, rules.fragment, rules.round, rules.parent)
    _require(place == expected, sender, "plan.parent", "follows another commit than ours")
    _require(
        plan.parent_state == rules.parent_state, sender, "plan.parent_state", "starts from another state than ours"
    )
    _require(plan.roster == rules.roster, sender, "plan.roster", "not the roster that the parent names")
    timeout_s = rules.genesis.timing.attempt_timeout_s
    _require(plan.attempt_timeout_s == timeout_s, sender, "plan.attempt_timeout_s", "not the run's time limit")
    _require(plan.data_cursor == rules.next_cursor, sender, "plan.data_cursor", "leases overlap or leave a gap")


def _check_members(rules: Rules, plan: Plan, sender: PeerId) -> None:
    peers = [member.peer for member in plan.members]
    limit = rules.genesis.member_limits.max_tokens_per_round
    _require(len(set(peers)) == len(peers), sender, "plan.members", "a member twice")
    _require(set(peers) <= set(rules.roster), sender, "plan.members", "a member outside the roster")
    _require(not set(peers) & set(rules.genesis.control.banned), sender, "plan.members", "a banned peer")
    _require(all(member.tokens <= limit for member in plan.members), sender, "plan.tokens", "a weight above the limit")
    _require(any(member.tokens for member in plan.members), sender, "plan.tokens", "all weights are zero")


def _check_next_roster(rules: Rules, plan: Plan, sender: PeerId) -> None:
    banned = set(rules.genesis.control.banned)
    _require(len(set(plan.next_roster)) == len(plan.next_roster), sender, "plan.next_roster", "a peer twice")
    limit = max(rules.genesis.limits.max_peers, len(rules.roster))
    _require(len(plan.next_roster) <= limit, sender, "plan.next_roster", "too many peers")
    _check_admissions(rules, plan, sender)
    _require(not banned & set(plan.next_roster), sender, "plan.next_roster", "keeps a banned peer")
    witnesses = rules.genesis.membership.witnesses
    _require(has_witnesses(witnesses, plan.next_roster), sender, "plan.next_roster", "leaves too few witnesses")
    newcomers = newcomers_after(rules.standing, plan.next_roster, rules.genesis.trust.probation_rounds)
    _require(plan.newcomers == newcomers, sender, "plan.newcomers", "not those on probation")


def _check_admissions(rules: Rules, plan: Plan, sender: PeerId) -> None:
    """Whoever enters is listed, has been let in before, or shows an invite; each owner has its number at most."""
    tickets = {admission.peer: admission.ticket for admission in plan.admissions}
    kept = [peer for peer in plan.next_roster if peer in rules.roster]
    added = {peer: tickets.get(peer) for peer in plan.next_roster if peer not in rules.roster}
    admitted = invites.let_in(rules.genesis, rules.standing, kept, added)
    _require(admitted == tuple(added), sender, "plan.next_roster", "admits a peer not allowed")
    needed = [peer for peer in added if not rules.admits(peer)]
    stated = [admission.peer for admission in plan.admissions]
    _require(stated == needed, sender, "plan.admissions", "not those who enter by an invite")
    guests = invites.guests_after(rules.standing, plan.next_roster, plan.admissions)
    _require(plan.guests == guests, sender, "plan.guests", "not those who have entered by invites")


def check_record(rules: Rules, record: Record, sender: PeerId) -> None:
    """A record that may be voted on: a valid plan with one well-formed result per span."""
    if record.content_id() in rules.sound:
        return
    check_plan(rules, record.plan, sender)
    _require(len(record.results) == len(record.plan.spans), sender, "record.results", "not one result per span")
    plan_id = record.plan.content_id()
    for index, result in enumerate(record.results):
        _require(result.span == index, sender, "record.results", "results out of order")
        check_result(record.plan, plan_id, result, sender)
    rules.sound.add(record.content_id())


def check_result(plan: Plan, plan_id: str, result: SpanResult, sender: PeerId) -> None:
    """A span result that belongs to ``plan`` and averages somebody (S5)."""
    _require(result.plan == plan_id and result.span < len(plan.spans), sender, "result.plan", "of another plan")
    _require(len(result.included) == len(plan.members), sender, "result.included", "not one flag per member")
    has_weight = any(flag and member.tokens for member, flag in zip(plan.members, result.included, strict=True))
    _require(has_weight, sender, "result.included", "includes nobody")


def check_commit(rules: Rules, commit: Commit, sender: PeerId) -> None:
    """A commit with a valid certificate: votes of a quorum of this round's roster at one ballot (S2)."""
    check_record(rules, commit.record, sender)
    record_id = commit.record.content_id()
    voters = Counter(_voter(rules, commit, record_id, raw, sender) for raw in commit.votes)
    _require(max(voters.values(), default=0) <= 1, sender, "commit.votes", "a voter twice")
    _require(rules.quorum.reached(voters.keys()), sender, "commit.votes", "not a quorum of the roster")


def _voter(rules: Rules, commit: Commit, record_id: str, raw: str, sender: PeerId) -> PeerId:
    try:
        voter, vote = rules.verified_vote(raw)
    except (InvalidMessage, ValueError) as error:
        raise RemoteProtocolError(sender, "commit.votes", str(error)) from None
    stated = (vote.fragment, vote.round, vote.ballot, vote.record)
    expected = (rules.fragment, rules.round, commit.ballot, record_id)
    _require(stated == expected, sender, "commit.votes", "a vote for something else")
    return voter


def _require(condition: bool, sender: PeerId, rule: str, detail: str) -> None:
    if not condition:
        raise RemoteProtocolError(sender, rule, detail)
