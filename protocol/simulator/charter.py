"""The operators of a simulated run: its genesis, the one chain of amendments that they have signed, and their keys."""

from __future__ import annotations

from collections.abc import Sequence

from .. import invites
from ..amendments import Amendment, InvalidAmendment, RunRules
from ..changes import Change, Keys, Reset
from ..identity import Identity, PeerId
from ..invites import InviteFile
from ..spec import Genesis, MembershipConfig, RecoveryConfig, TimingConfig
from .faults import FaultSchedule, Invited
from .nodes import Violation, identity_of, people, world_genesis

TIMING = TimingConfig(
    heartbeat_interval_s=1,
    heartbeat_timeout_s=4,
    drop_after_s=16,
    ready_grace_s=5,
    progress_timeout_s=3,
    attempt_timeout_s=10,
    quorum_timeout_s=60,
)
"""Short, so that a storm of a minute can break everything."""
RESET_AFTER_S = 15.0
"""`quorum_timeout_s` of runs whose delegates may reset them: a storm must be able to outlast it."""
_FIRST_OPERATOR, _FIRST_BEARER = 1000, 2000
_NUM_KEYS = 3


class Divided(Violation):
    """Nodes go by an amendment that is none, or by two of one number (S7)."""


def operators_of(generation: int) -> list[Identity]:
    """The operators after so many rotations of their keys; one of them keeps its own."""
    first = _FIRST_OPERATOR + generation * (_NUM_KEYS - 1)
    return [identity_of(first + number) for number in range(_NUM_KEYS)]


def genesis_of(schedule: FaultSchedule) -> Genesis:
    """The run of a schedule: its founders are the roster; its joiners are allowed, or invited."""
    everybody = people(schedule.num_peers + schedule.num_joiners)
    founders, joiners = tuple(everybody[: schedule.num_peers]), tuple(everybody[schedule.num_peers :])
    timing = TIMING.model_copy(update={"quorum_timeout_s": RESET_AFTER_S}) if schedule.delegates else TIMING
    template = world_genesis(1)
    return Genesis(
        name=template.name,
        protocol_version=1,
        initial_state=template.initial_state,
        operators=tuple(identity.peer_id for identity in operators_of(0)),
        operator_threshold=2,
        model={},
        timing=timing,
        membership=MembershipConfig(
            mode="invite" if schedule.invites else "listed",
            roster=founders,
            allowed=() if schedule.invites else joiners,
            fault_tolerance=schedule.fault_tolerance,
            max_per_owner=schedule.max_per_owner,
            witnesses=tuple(founders[number] for number in schedule.witnesses),
        ),
        recovery=RecoveryConfig(
            delegates=tuple(founders[number] for number in schedule.delegates),
            threshold=len(schedule.delegates) // 2 + 1,
        ),
    )


def owner_name(invited: Invited) -> str:
    """As the operators call whoever was invited."""
    return f"owner {invited.owner}"


class Charter:
    """What is signed, whoever knows of it yet."""

    def __init__(self, schedule: FaultSchedule) -> None:
        genesis = genesis_of(schedule)
        self.first = self.rules = RunRules(genesis)
        self.generation = 0
        """How often the operators' keys have been rotated."""
        self._known = {self.rules.head: self.rules}

    @property
    def genesis(self) -> Genesis:
        return self.first.genesis

    def shared(self, rules: RunRules) -> RunRules:
        """The same rules as everybody's object, so that nothing is derived from them twice."""
        return self._known.setdefault(rules.head, rules)

    def issue(self, change: Change, from_round: int, number: int, roster: Sequence[PeerId]) -> Amendment | None:
        """Sign the next amendment, as operators who see round ``number`` do; None if their tool advises against it."""
        amendment = self._signed(self.rules.next(change, from_round), self.generation)
        try:
            self.rules.check_new(amendment, number, tuple(roster))
            self.rules = self.shared(self.rules.extended([amendment]))
        except InvalidAmendment:
            return None
        if isinstance(change, Keys):
            self.generation += 1
        return amendment

    def forged(self, change: Change, from_round: int) -> Amendment:
        """What former operators sign once they have lost their keys; one operator short, before that."""
        amendment = self.rules.next(change, from_round)
        if self.generation:
            return self._signed(amendment, self.generation - 1)
        return amendment.signed(operators_of(0)[0])

    def rotation(self) -> Keys:
        """The next change of the operators' keys."""
        following = operators_of(self.generation + 1)
        return Keys(operators=tuple(identity.peer_id for identity in following), threshold=2)

    def invitation(self, invited: Invited) -> InviteFile:
        """What an operator hands to somebody now."""
        number = _FIRST_BEARER + invited.invite
        invite = invites.make(
            operators_of(self.generation)[0],
            run_id=self.genesis.run_id,
            owner=owner_name(invited),
            bearer=identity_of(number).peer_id,
            until_round=invited.until_round,
        )
        return InviteFile(invite=invite, secret=number.to_bytes(32, "big").hex())

    def absorb(self, rules: RunRules) -> None:
        """Rules that a node goes by; a delegates' reset is part of the chain, too. Raises `Divided` for others."""
        ours, theirs = self.rules.amendments, rules.amendments
        if any(a.digest != b.digest for a, b in zip(ours, theirs, strict=False)):
            raise Divided("two different amendments of one number are in force")
        if not all(map(self._is_reset, theirs[len(ours) :])):
            raise Divided("an amendment is in force that those who may have not signed")
        if len(theirs) > len(ours):
            self.rules = self.shared(rules)

    def _is_reset(self, amendment: Amendment) -> bool:
        signers = {signature.operator for signature in amendment.signatures}
        delegates = signers.intersection(self.genesis.recovery.delegates)
        is_enough = bool(delegates) and 2 * len(delegates) > len(self.genesis.recovery.delegates)
        return isinstance(amendment.change, Reset) and is_enough

    def _signed(self, amendment: Amendment, generation: int) -> Amendment:
        first, second, *_ = operators_of(generation)
        return amendment.signed(first).signed(second)
