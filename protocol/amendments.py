"""Changes of a run's rules: numbered, chained, signed by its operators, in force from a named round on. Pure.

An amendment's identity is its `Amendment.digest`, over everything but the signatures, so that operators can sign one
after another. Number 1 follows the run id, every later one the digest before it.

Which amendments a round was held under is decided by its commit, which names the rules in force (``Plan.rules``), never
by when somebody heard of them: an amendment that arrives after its round is in force from the first commit on that was
held with it, the same one for everybody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from .changes import (
    Allow,
    Ban,
    Change,
    Finish,
    Keys,
    LearningRate,
    Limits,
    Pause,
    Reset,
    Resume,
    Rollback,
    Seeds,
    Timing,
    Upgrade,
)
from .identity import Identity, PeerId, verify
from .messages import Commit
from .parsing import canonical_json
from .quorum import quorum_of
from .record import Plan
from .spec import Genesis, Signature
from .spec_text import explain
from .standing import Standing
from .values import Digest, Frozen, Round

DOMAIN = b"atoll/amendment/1\0"
MAX_AMENDMENTS = 1024
"""Of one run. Every node keeps all of them."""
MAX_AMENDMENT_BYTES = 1 << 17
"""A roster of 1,024 peers and 16 signatures take about half of it."""


class InvalidAmendment(ValueError):
    """An amendment that is not one of this run, or that would break it; one line."""


class UnknownRules(ValueError):
    """A plan names rules that none of the known amendments make: others know of more than we do."""


class Amendment(Frozen):
    """One change of the rules, with the signatures that it has so far."""

    number: Annotated[int, Field(ge=1, le=MAX_AMENDMENTS)]
    previous: Digest
    """`digest` of the amendment before; the run id for number 1."""
    from_round: Annotated[Round, Field(ge=1)]
    """The first round that is held under it."""
    change: Annotated[Change, Field(discriminator="kind")]
    signatures: Annotated[tuple[Signature, ...], Field(max_length=32)] = ()

    @property
    def body(self) -> bytes:
        """What is signed, without the domain tag."""
        return canonical_json(self.model_dump(mode="json", exclude={"signatures"}))

    @property
    def digest(self) -> str:
        """SHA-256 of what is signed, hexadecimal: the amendment's identity."""
        return hashlib.sha256(DOMAIN + self.body).hexdigest()

    def signed(self, identity: Identity) -> Amendment:
        """With a signature of ``identity`` (in place of an older one)."""
        others = (signature for signature in self.signatures if signature.operator != identity.peer_id)
        own = Signature(operator=identity.peer_id, ed25519=identity.sign(DOMAIN + self.body).hex())
        return self.model_copy(update={"signatures": (*others, own)})

    def with_signatures_of(self, other: Amendment) -> Amendment:
        """The signatures of two copies of one amendment together."""
        known = {signature.operator: signature for signature in (*self.signatures, *other.signatures)}
        return self.model_copy(update={"signatures": tuple(known.values())[:32]})

    def signers(self) -> frozenset[PeerId]:
        """Whose signatures hold."""
        body = DOMAIN + self.body
        valid = (s.operator for s in self.signatures if verify(s.operator, bytes.fromhex(s.ed25519), body))
        return frozenset(valid)

    @classmethod
    def parse(cls, text: str | bytes) -> Amendment:
        """Amendment of its JSON form. Raises `InvalidAmendment`; a signature is not looked at yet."""
        if len(text) > MAX_AMENDMENT_BYTES:
            raise InvalidAmendment(f"an amendment of {len(text):,} bytes; the limit is {MAX_AMENDMENT_BYTES:,}")
        try:
            return _AMENDMENT.validate_json(canonical_json(json.loads(text)))
        except ValidationError as error:
            line = explain(error, Amendment, "amendment")[0]
            raise InvalidAmendment(line) from None
        except (ValueError, RecursionError, TypeError):
            raise InvalidAmendment("not an amendment: no JSON object") from None


_AMENDMENT: TypeAdapter[Amendment] = TypeAdapter(Amendment)

# --- the rules of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRules:
    """A genesis with the amendments that are known, all of them verified (`extended`)."""

    genesis: Genesis
    amendments: tuple[Amendment, ...] = ()
    _made: dict[tuple[int, ...], Genesis] = field(default_factory=dict[tuple[int, ...], Genesis], compare=False)
    """Rules by the numbers of the amendments in force."""

    @property
    def head(self) -> str:
        """What the next amendment follows."""
        return self.amendments[-1].digest if self.amendments else self.genesis.run_id

    @property
    def operators(self) -> tuple[PeerId, ...]:
        """Whose signatures the next amendment needs."""
        keys = self._last_keys()
        return self.genesis.operators if keys is None else keys.operators

    @property
    def threshold(self) -> int:
        """How many of them."""
        keys = self._last_keys()
        return self.genesis.operator_threshold if keys is None else keys.threshold

    def _last_keys(self) -> Keys | None:
        return next((a.change for a in reversed(self.amendments) if isinstance(a.change, Keys)), None)

    @cached_property
    def fork(self) -> Rollback | None:
        """Where the present lineage begins; None: with the genesis."""
        return next((a.change for a in reversed(self.amendments) if isinstance(a.change, Rollback)), None)

    @property
    def lineage(self) -> int:
        """The present one."""
        return self.genesis.lineage if self.fork is None else self.fork.lineage

    def at(self, round_number: int) -> Genesis:
        """The rules that a round is held under by everybody who knows these amendments."""
        return self._of(len(self.amendments), round_number)

    def standing(self, commit: Commit | None) -> Standing:
        """What a commit (None: the genesis) leaves in force; where a lineage begins, the roster is its own."""
        standing = Standing.of_genesis(self.genesis) if commit is None else Standing.after(commit)
        fork = self.fork
        if fork is None or (fork.round, fork.record) != (standing.round, standing.record_id):
            return standing
        newcomers = tuple(newcomer for newcomer in standing.newcomers if newcomer.peer in fork.roster)
        return replace(standing, roster=fork.roster, newcomers=newcomers)

    def is_settled(self, round_number: int) -> bool:
        """Whether the present lineage began when a round was decided: then it can only be learnt.

        Votes are kept by lineage, so who has voted in that round before does not know it any more.
        """
        return self.fork is not None and round_number <= self.fork.round

    def is_present(self, commit: Commit) -> bool:
        """Whether a commit is of the present lineage, or of the part of an older one that it goes on from."""
        plan = commit.record.plan
        return plan.lineage == self.at(plan.round).lineage

    def of_plan(self, plan: Plan) -> Genesis:
        """The rules that a plan names. Raises `UnknownRules` if no number of the known amendments makes them."""
        found = next((rules for rules in self.possible(plan.round) if rules.rules_id == plan.rules), None)
        if found is None:
            raise UnknownRules(f"round {plan.round} was planned under rules {plan.rules[:8]}…, not known here")
        return found

    def possible(self, round_number: int) -> Iterator[Genesis]:
        """Rules that a round can have been held under, newest first: the last amendments may not have been heard of."""
        return self._versions(round_number, self._fewest(round_number))

    def once(self, rules_id: str, round_number: int) -> Genesis | None:
        """The rules with this id, if a round of any lineage can ever have been held under them."""
        found = (rules for rules in self._versions(round_number, 0) if rules.rules_id == rules_id)
        return next(found, None)

    def _versions(self, round_number: int, fewest: int) -> Iterator[Genesis]:
        seen: set[tuple[int, ...]] = set()
        for num_known in range(len(self.amendments), fewest - 1, -1):
            numbers = self._in_force(num_known, round_number)
            if numbers not in seen:
                seen.add(numbers)
                yield self._of(num_known, round_number)

    def _fewest(self, round_number: int) -> int:
        """How many amendments whoever works on a round of the present lineage knows at least."""
        forks = (a.number for a in self.amendments if isinstance(a.change, Rollback) and a.from_round <= round_number)
        return max(forks, default=0)

    def _in_force(self, num_known: int, round_number: int) -> tuple[int, ...]:
        """Numbers, in the order in which they are applied."""
        known = [a for a in self.amendments[:num_known] if a.from_round <= round_number]
        return tuple(a.number for a in sorted(known, key=_place))

    def _of(self, num_known: int, round_number: int) -> Genesis:
        numbers = self._in_force(num_known, round_number)
        if numbers not in self._made:
            changes = [self.amendments[number - 1] for number in numbers]
            self._made[numbers] = _amended(self.genesis, changes) if changes else self.genesis
        return self._made[numbers]

    # --- adding to them -----------------------------------------------------------------------------------------------

    def next(self, change: Change, from_round: int) -> Amendment:
        """The amendment with ``change`` that would follow, unsigned."""
        return Amendment(number=len(self.amendments) + 1, previous=self.head, from_round=from_round, change=change)

    def extended(self, amendments: Iterable[Amendment]) -> RunRules:
        """With amendments that follow, in order; those that are known already are passed over.

        Raises `InvalidAmendment` at the first that does not follow or must not be; nothing of the list counts then.
        """
        rules = self
        for amendment in amendments:
            if amendment.number <= len(rules.amendments):
                _require_same(rules.amendments[amendment.number - 1], amendment)
                continue
            check_follows(rules, amendment)
            check_signatures(rules, amendment)
            rules = replace(rules, amendments=(*rules.amendments, amendment), _made=dict(rules._made))
            _check_effect(rules, amendment)
        return rules

    def is_partial(self, amendment: Amendment) -> bool:
        """Whether an amendment that would follow lacks nothing but signatures; those that it has must hold."""
        check_follows(self, amendment)
        signers = amendment.signers()
        is_sound = frozenset(signature.operator for signature in amendment.signatures) == signers <= set(self.operators)
        return is_sound and len(signers) < self.threshold

    def check_new(self, amendment: Amendment, round_number: int, roster: tuple[PeerId, ...]) -> None:
        """What an operator must not do by mistake, seen from a run that works on ``round_number`` with ``roster``.

        Not a rule of the run: whoever gets an amendment that others have adopted adopts it too. Raises
        `InvalidAmendment`.
        """
        change, what = amendment.change, f"amendment {amendment.number}"
        if amendment.from_round < round_number and not isinstance(change, Rollback):
            raise InvalidAmendment(f"{what}: round {amendment.from_round} is past; the run works on {round_number}")
        if isinstance(change, Ban):
            left = set(roster) - set(change.peers)
            if not quorum_of(self.at(round_number), roster, round_number).reached(left):
                raise InvalidAmendment(f"{what}: bans so many of {len(roster)} members that the rest is no quorum")


def _place(amendment: Amendment) -> tuple[int, int]:
    return amendment.from_round, amendment.number


def _require_same(known: Amendment, other: Amendment) -> None:
    if known.digest != other.digest:
        raise InvalidAmendment(f"amendment {other.number}: two different ones are signed; the operators must agree")


def check_follows(rules: RunRules, amendment: Amendment) -> None:
    """Raise `InvalidAmendment` unless ``amendment`` is the next of the chain; a new lineage must be the next, too."""
    due, what = len(rules.amendments) + 1, f"amendment {amendment.number}"
    if amendment.number != due:
        raise InvalidAmendment(f"{what} where number {due} is due")
    if amendment.previous != rules.head:
        raise InvalidAmendment(f"{what} follows another one than number {due - 1} of this run")
    change = amendment.change
    if isinstance(change, Rollback):
        if rules.genesis.is_gossip:
            raise InvalidAmendment(f"{what}: a gossip run has no common state to go back to")
        if change.lineage != rules.lineage + 1:
            raise InvalidAmendment(f"{what}: begins lineage {change.lineage} where {rules.lineage + 1} is due")
        if amendment.from_round != change.round + 1:
            raise InvalidAmendment(
                f"{what}: goes on after round {change.round}, so it is from round {change.round + 1}"
            )


def check_signatures(rules: RunRules, amendment: Amendment) -> None:
    """Raise `InvalidAmendment` unless enough of those who may have signed it."""
    signers, what = amendment.signers(), f"amendment {amendment.number}"
    if isinstance(amendment.change, Reset) and may_recover(rules.genesis, signers):
        return
    if foreign := [s.operator for s in amendment.signatures if s.operator not in rules.operators]:
        raise InvalidAmendment(f"{what}: signed by …{foreign[0][-5:]}, who is no operator of this run")
    if forged := [s.operator for s in amendment.signatures if s.operator not in signers]:
        raise InvalidAmendment(f"{what}: the signature of …{forged[0][-5:]} does not match")
    if len(signers) < rules.threshold:
        raise InvalidAmendment(f"{what}: {len(signers)} of {rules.threshold} signatures that it needs")


def may_recover(genesis: Genesis, signers: frozenset[PeerId]) -> bool:
    """Whether the run has delegated resets in advance, to enough of ``signers``."""
    delegates = signers.intersection(genesis.recovery.delegates)
    return bool(genesis.recovery.delegates) and len(delegates) >= genesis.recovery.threshold


def _check_effect(rules: RunRules, amendment: Amendment) -> None:
    """Every set of rules that the newest amendment is part of must be valid."""
    rounds = {a.from_round for a in rules.amendments if a.from_round >= amendment.from_round}
    try:
        made = [rules.at(number) for number in sorted(rounds)]
    except ValidationError as error:
        line = explain(error, Genesis, f"amendment {amendment.number}")[0]
        raise InvalidAmendment(line) from None
    if not all(map(_leaves_somebody, made)):
        raise InvalidAmendment(f"amendment {amendment.number}: nobody who may take part would be left")
    change = amendment.change
    if isinstance(change, Keys) and change.threshold > len(change.operators):
        raise InvalidAmendment(
            f"amendment {amendment.number}: {len(change.operators)} operators cannot give {change.threshold} signatures"
        )


def _leaves_somebody(rules: Genesis) -> bool:
    membership = rules.membership
    if membership.mode != "listed":
        return True
    return any(map(rules.admits, (*membership.roster, *membership.allowed)))


# --- applying them ----------------------------------------------------------------------------------------------------


def _amended(genesis: Genesis, amendments: list[Amendment]) -> Genesis:
    tables = genesis.model_dump(mode="json")
    lineage = genesis.lineage
    for amendment in amendments:
        for name, value in _tables_of(amendment, tables):
            tables[name] = value
        if isinstance(amendment.change, Rollback):
            lineage = max(lineage, amendment.change.lineage)
    return genesis.amended({**tables, "lineage": lineage})


def _tables_of(amendment: Amendment, tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tables that an amendment changes, as they are with it."""
    control = tables["control"]
    match amendment.change:
        case Seeds() as change:
            yield "membership", {**tables["membership"], "seeds": list(change.seeds)}
        case Timing() | Limits() as change:
            yield change.kind, {**tables[change.kind], **change.values}
        case LearningRate() as change:
            named = {"inner": change.inner, "outer": change.outer}
            yield from ((name, {**tables[name], "lr": lr}) for name, lr in named.items() if lr is not None)
        case Pause() | Resume() as change:
            yield "control", {**control, "paused": change.kind == "pause"}
        case Finish():
            yield "stop", {**tables["stop"], "num_rounds": amendment.from_round}
        case Ban() as change:
            yield "control", {**control, "banned": sorted({*control["banned"], *change.peers})}
        case Allow() as change:
            yield "control", {**control, "banned": sorted({*control["banned"]} - {*change.peers})}
            allowed = dict.fromkeys((*tables["membership"]["allowed"], *change.peers))
            yield "membership", {**tables["membership"], "allowed": list(allowed)}
        case Keys() as change:
            yield "operators", list(change.operators)
            yield "operator_threshold", change.threshold
        case Upgrade() as change:
            yield "control", {**control, "required_protocol": change.protocol_version}
        case Rollback():
            return
