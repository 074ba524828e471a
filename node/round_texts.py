"""What the driver's events are called for people, and which phase of the round they begin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..protocol.amendments import Amendment
from ..protocol.changes import in_words
from ..protocol.identity import PeerId
from ..protocol.outcomes import RoundEvent
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
    "quorum.found": "a quorum answers again",
}
_WARNINGS: dict[str, str] = {
    "round.aborted": "round {round} was given up: {reason}; nothing is lost, the work counts in the next attempt",
    "exchange.lost": "round {round}: {peer} dropped out while averaging ({why}); others average its part again",
    "exchange.excluded": "round {round}: {peer} was left out of a span: {why}",
    "exchange.left_out": "round {round}: the {rule} took no notice of {peer} in {num_chunks} chunks",
    "exchange.failed": "round {round}: {why}",
    "audit.lie": "round {round}: chunk {chunk} of {peer} is not the mean of what it was sent; everybody gets the proof",
    "audit.refused": "round {round}: {peer} does not show what it has averaged ({why}); others average its part again",
    "audit.incomplete": "round {round}: {peer} could not be audited ({why}); this node votes all the same",
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
    "node.woke": "this machine slept for {slept_s:.0f} s; catching up",
}
_LASTING = frozenset({"round.aborted", "results.unavailable", "invite.refused"})
"""Said at each attempt for as long as what is behind it lasts."""
PHASE_OF_POINT: dict[str, PhaseName] = {
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
    if isinstance(peer := fields.get("peer"), str):
        fields["peer"] = names.get(PeerId(peer), short_id(peer))
    cause = template.format(**fields | {"round": 0}) if event.point in _LASTING else None
    return RoundText(template.format(**fields), event.point in _WARNINGS, cause)
