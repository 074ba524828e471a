"""What the driver's events are called for people, and which phase of the round they begin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol.amendments import Amendment
from ..protocol.changes import in_words
from ..protocol.gossip.account import Swapped
from ..protocol.identity import PeerId
from ..protocol.outcomes import Committed, RoundEvent
from .figures import short_id
from .snapshot import PhaseName

_POINTS: dict[str, str] = {
    "round.plan_sent": "round {round}: plan sent to its members",
    "round.proposed": "round {round}: result proposed for voting",
    "amendment.learned": "amendment {amendment.number} of the run's rules, from round {amendment.from_round}: {what}",
    "lineage.begun": "the operators let the run go on from round {round} in lineage {lineage}",
    "round.voted": "round {round}: voted",
    "round.committed": "round {round}: committed",
    "exchange.sending": "round {round}: sending the contribution",
    "exchange.reducing": "round {round}: averaging an own span",
    "audit.done": "round {round}: {num_chunks} of {num_drawn} drawn chunks audited, {lasted_s:.2f} s",
    "swap.begun": "round {round}: swapping with {peer}",
    "spot.passed": "the steps of {peer} in round {checked_round} were recomputed: they give what it has sent",
    "quorum.found": "a quorum answers again",
    "group.joined": "joining the group of {peer}",
    "group.seated": "round {round}: a seat in the group of {peer}",
    "group.reduced": "round {round}: the group of {num_peers} has averaged, {tokens} tokens",
}
_WARNINGS: dict[str, str] = {
    "round.aborted": "round {round} was given up: {reason}; nothing is lost, the work counts in the next attempt",
    "exchange.lost": "round {round}: {peer} dropped out while averaging ({why}); others average its part again",
    "exchange.excluded": "round {round}: {peer} was left out of a span: {why}",
    "exchange.left_out": "round {round}: the {rule} took no notice of {peer} in {num_chunks} chunks",
    "exchange.failed": "round {round}: {why}",
    "swap.lost": "round {round}: the swap with {peer} came to nothing ({why}); nothing of it is used",
    "swap.refused": "round {round}: what {peer} sent is not used ({rule}): {why}",
    "peer.shunned": "{peer} is no partner of this node for {num_rounds} rounds",
    "audit.lie": "round {round}: chunk {chunk} of {peer} is not the mean of what it was sent; everybody gets the proof",
    "audit.refused": "round {round}: {peer} does not show what it has averaged ({why}); others average its part again",
    "audit.incomplete": "round {round}: {peer} could not be audited ({why}); this node votes all the same",
    "spot.suspected": "{peer} has not trained what it says ({rule} {value:.3g}, limit {limit:.3g}), says {by}; others "
    "check it too",
    "spot.hidden": "{peer} does not show what its steps began with ({why}); {count} times in a row",
    "spot.unconfirmed": "{value} suspicions by {peer} were not confirmed here, the last one {why}",
    "spot.failed": "round {round}: the steps of {peer} could not be checked: {why}",
    "peer.proven": "misconduct of {peer} is proven ({kind}); it is left out from now on",
    "evidence.unwritable": "a proof of misconduct cannot be kept: {why}",
    "peer.rejected": "a message of {peer} was rejected ({rule}): {detail}",
    "state.disagrees": "this node's state after round {head} differs from the swarm's; the right one is being loaded",
    "state.rejected": "{peer} gave wrong pieces of the swarm's state ({rule}): {detail}; it is not asked again",
    "state.syncing": "loading the swarm's state",
    "state.unwritable": "a committed round cannot be kept: {why}; this node waits until the disk takes it",
    "results.unavailable": "round {round} is decided, but no peer gives its results; this node goes on asking",
    "state.unproven": "peers that say they are ahead could not be asked for a proof: {why}",
    "votes.unwritable": "votes cannot be written: {why}; this node does not vote",
    "votes.abstaining": "this node's earlier votes are lost or damaged, so it does not vote in round {round}",
    "invite.refused": "{peer} does not let this node in: {why}",
    "amendment.refused": "an amendment was not taken: {why}",
    "amendment.unwritable": "an amendment cannot be kept: {why}; it is not in force here until the disk takes it",
    "rules.outdated": "round {round} needs protocol {wanted}, this version speaks {found}; install the newer one",
    "quorum.missing": "only {num_alive} of {num_members} members answer, and a round needs {num_needed}: training goes "
    "on provisionally, and at most one round of it is carried over",
    "quorum.lost": "no quorum for {lasted_s:.0f} s: {num_alive} of {num_members} members answer, a round needs "
    "{num_needed}; if they are gone for good, only a reset by the operators helps",
    "group.left": "round {round}: left the group of {peer}: {why}; another one is looked for",
    "group.betrayed": "round {round}: {peer} contributes something else than its group has averaged; it is left",
    "group.failed": "round {round}: the group could not average: {why}; this node contributes alone",
    "group.unwritable": "what a group must remember cannot be written: {why}",
    "group.unknown": "round {round}: {peer} has not said whether this node's work counted; it is not used again",
    "node.woke": "this machine slept for {slept_s:.0f} s; catching up",
}
_LASTING = frozenset({"round.aborted", "results.unavailable", "invite.refused"})
"""Said at each attempt for as long as what is behind it lasts."""
PHASE_OF_POINT: dict[str, PhaseName] = {
    "swap.begun": "reduce",
    "exchange.sending": "reduce",
    "exchange.reducing": "reduce",
    "round.voted": "commit",
    "round.committed": "apply",
}
"""The phase that a point begins, if it begins one."""


@dataclass(frozen=True)
class RoundText:
    """An event in words."""

    text: str
    is_warning: bool
    cause: str | None = None
    """The same for all repetitions of a warning that comes at each attempt while a trouble lasts; None for others."""


def text_of(event: RoundEvent, names: Mapping[PeerId, str]) -> RoundText | None:
    """The event in words, with peers by name; None for events that nobody needs to read."""
    template = _POINTS.get(event.point) or _WARNINGS.get(event.point)
    if template is None:
        return None
    fields = {**event.fields, "round": event.round, "head": event.round - 1}
    if isinstance(amendment := fields.get("amendment"), Amendment):
        fields["what"] = in_words(amendment.change)
    for field in ("peer", "by"):
        if isinstance(peer := fields.get(field), str):
            fields[field] = names.get(PeerId(peer), short_id(peer))
    cause = template.format(**fields | {"round": 0}) if event.point in _LASTING else None
    return RoundText(template.format(**fields), event.point in _WARNINGS, cause)


def swap_facts(outcome: Swapped) -> dict[str, Any]:
    """What a gossip round's event line has beside the usual."""
    return {
        "partner": outcome.partner,
        "spread": outcome.spread,
        "spread_in_rounds": outcome.distance_in_rounds,
        "why_alone": outcome.why_alone,
    }


def applied_text(outcome: Committed, facts: Mapping[str, Any], names: Mapping[PeerId, str]) -> str:
    """The end of a round in words. ``facts``: of the event line."""
    number, seconds = outcome.commit.record.plan.round, facts["seconds"]
    state = f"state {outcome.state_hash[:4]}…{outcome.state_hash[-4:]}"
    if not isinstance(outcome, Swapped):
        num_peers = len(facts["participants"])
        return f"round {number} committed by {num_peers} peer{'s' * (num_peers != 1)} in {seconds:.1f} s, {state}"
    if outcome.partner is None:
        return f"round {number} taken alone in {seconds:.1f} s ({outcome.why_alone}), {state}"
    name = names.get(outcome.partner, short_id(outcome.partner))
    spread = "" if outcome.spread is None else f", {100 * outcome.spread:.2g} % apart"
    return f"round {number} swapped with {name} in {seconds:.1f} s{spread}, {state}"
