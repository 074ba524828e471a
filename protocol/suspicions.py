"""What follows from a spot check of inner steps: a signed suspicion, and from enough of them a verdict. Pure.

One check proves nothing to others: recomputed steps are not equal to the bit, and nobody can check the checker. So a
member that is sure of a breach says so under its signature, others check the same member for themselves, and only the
suspicions of more distinct members than may misbehave (and of two at least) are a `Verdict`, which is evidence like any
other. A lone accuser ejects nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from .identity import Identity, PeerId, verify
from .parsing import canonical_json
from .quorum import tolerated_faults
from .record import Record
from .spec import Genesis, TrustConfig
from .values import Count, Digest, Frozen, Peer, Round, Signature

DOMAIN = b"atoll/suspicion/1\0"
WINDOW_ROUNDS = 32
"""Suspicions that are this many rounds apart or more are not about the same misconduct."""
RECHECK_ROUNDS = 4
"""So long a suspicion makes others check the same member."""
MAX_HIDDEN = 3
"""Checks in a row whose member sent its contribution and yet did not show what it began with."""
MAX_UNCONFIRMED = 3
"""So many suspicions of a member that were not confirmed here, and it makes this node check nobody any more."""

Measure = Annotated[float, Field(ge=-1e30, le=1e30)]
Rule = Literal["cosine", "norm", "continuity", "tokens", "state", "hidden"]


class Breach(Frozen):
    """What a spot check has found, against the run's limit."""

    rule: Rule
    value: Measure
    limit: Measure


class Suspicion(Frozen):
    """A member's word that another one's contribution is not what its steps give."""

    kind: Literal["suspicion"] = "suspicion"
    lineage: Count
    round: Round
    record: Digest
    """Content id of the record that the contribution is part of."""
    accused: Peer
    accuser: Peer
    breach: Breach
    signature: Signature = ""
    """The accuser's, over all of the above; hexadecimal."""

    def signed(self, identity: Identity) -> Suspicion:
        return self.model_copy(update={"signature": identity.sign(self._statement()).hex()})

    @property
    def is_signed(self) -> bool:
        """Whether the accuser has said exactly this, and of somebody else."""
        is_other = self.accuser != self.accused
        return is_other and verify(self.accuser, bytes.fromhex(self.signature), self._statement())

    def _statement(self) -> bytes:
        return DOMAIN + canonical_json(self.model_dump(mode="json", exclude={"signature"}))


class Verdict(Frozen):
    """Evidence: suspicions of one member by enough others, each in its own words."""

    kind: Literal["verdict"] = "verdict"
    accused: Peer
    suspicions: Annotated[tuple[Suspicion, ...], Field(min_length=2, max_length=1024)]


def num_accusers(genesis: Genesis, num_members: int) -> int:
    """How many distinct members must suspect another one: more than may misbehave, and never one alone."""
    return max(2, 1 + tolerated_faults(num_members, genesis.membership.fault_tolerance))


def flaw_of(verdict: Verdict, genesis: Genesis, roster: Collection[PeerId]) -> str | None:
    """Why ``verdict`` does not hold among the members of ``roster``; None if it does. Lineages are the caller's."""
    said = verdict.suspicions
    accusers, rounds = {each.accuser for each in said}, [each.round for each in said]
    if any(each.accused != verdict.accused for each in said):
        return "a suspicion of somebody else"
    if len(accusers) < len(said) or len(said) < num_accusers(genesis, len(roster)):
        return "not enough distinct accusers"
    if not accusers <= set(roster):
        return "an accuser is not in the roster"
    if max(rounds) - min(rounds) >= WINDOW_ROUNDS:
        return "suspicions of other times"
    return None if all(each.is_signed for each in said) else "a suspicion that its accuser has not signed"


def breach_of(
    products: tuple[float, float, float], claimed_tokens: int, num_tokens: int, trust: TrustConfig
) -> Breach | None:
    """What a contribution breaks, if anything.

    ``products``: ⟨x, y⟩, ⟨x, x⟩ and ⟨y, y⟩ of the contribution x and the recomputed one y, on the sampled chunks;
    ``num_tokens``: of the recomputed steps.
    """
    if claimed_tokens > num_tokens:
        return Breach(rule="tokens", value=claimed_tokens, limit=num_tokens)
    dot, square, true_square = products
    if true_square == 0 or square == 0:
        is_equal = true_square == square
        return None if is_equal else Breach(rule="norm", value=0.0, limit=1 / trust.max_norm_ratio)
    cosine, ratio = dot / math.sqrt(square) / math.sqrt(true_square), math.sqrt(square) / math.sqrt(true_square)
    if cosine < trust.min_cosine:
        return Breach(rule="cosine", value=cosine, limit=trust.min_cosine)
    if ratio > trust.max_norm_ratio:
        return Breach(rule="norm", value=ratio, limit=trust.max_norm_ratio)
    if ratio < 1 / trust.max_norm_ratio:
        return Breach(rule="norm", value=ratio, limit=1 / trust.max_norm_ratio)
    return None


def may_hide(peer: PeerId, parent: Record | None) -> bool:
    """Whether a member need not show what it began with: it may have merged the work of a round that it missed (S6).

    So nobody escapes being checked more often than in every second round that counts.
    """
    if parent is None:
        return False
    place = next((i for i, member in enumerate(parent.plan.members) if member.peer == peer), None)
    return place is None or not any(result.included[place] for result in parent.results)


class Suspicions:
    """What this node has heard and found in the last rounds. Memory is bounded by the roster: one per pair."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._said: dict[tuple[PeerId, PeerId], Suspicion] = {}
        """By (accused, accuser), the newest."""
        self._open: dict[tuple[PeerId, PeerId], int] = {}
        """By (accused, accuser): round of the first suspicion that no check of this node's has followed yet."""
        self.num_unconfirmed: Counter[PeerId] = Counter()
        """Accuser -> suspicions that this node's own check did not confirm."""
        self.num_hidden: Counter[PeerId] = Counter()
        """Member -> checks in a row in which it did not show what it began with."""

    def forget_old(self, round_number: int, roster: Collection[PeerId]) -> None:
        """A round begins: what is out of the window, or of peers that have left, does not count any more."""
        present, oldest = set(roster), round_number - WINDOW_ROUNDS
        kept = {pair: each for pair, each in self._said.items() if each.round > oldest and set(pair) <= present}
        self._said = kept
        self._open = {pair: first for pair, first in self._open.items() if pair in kept}
        for counter in (self.num_unconfirmed, self.num_hidden):
            for peer in counter.keys() - present:
                del counter[peer]

    def add(self, suspicion: Suspicion, round_number: int, roster: Collection[PeerId]) -> bool:
        """Note a signed suspicion between members of the roster, of the last rounds. False if it is none, or known."""
        pair = (suspicion.accused, suspicion.accuser)
        is_recent = round_number - WINDOW_ROUNDS < suspicion.round <= round_number
        known = self._said.get(pair)
        is_new = known is None or known.round < suspicion.round
        if not (is_recent and is_new and set(pair) <= set(roster) and suspicion.is_signed):
            return False
        self._said[pair] = suspicion
        self._open.setdefault(pair, suspicion.round)
        return True

    def against(self, accused: PeerId) -> tuple[Suspicion, ...]:
        """By different members, in the order of their ids."""
        return tuple(self._said[pair] for pair in sorted(self._said) if pair[0] == accused)

    def verdict(self, accused: PeerId, genesis: Genesis, roster: Collection[PeerId]) -> Verdict | None:
        """The evidence against a member, if enough others suspect it."""
        said = self.against(accused)
        if len(said) < num_accusers(genesis, len(roster)):
            return None
        verdict = Verdict(accused=accused, suspicions=said[:1024])
        return verdict if flaw_of(verdict, genesis, roster) is None else None

    def to_recheck(self, round_number: int) -> list[PeerId]:
        """Members that others have suspected lately, and this node has not checked since."""
        oldest = round_number - 1 - RECHECK_ROUNDS
        pairs = [pair for pair in self._open if self._said[pair].round > oldest and self._me not in pair]
        return sorted({accused for accused, accuser in pairs if self.num_unconfirmed[accuser] < MAX_UNCONFIRMED})

    def note_passed(self, peer: PeerId, round_number: int) -> list[PeerId]:
        """Our own check of a round found nothing: who had accused the member before that, in vain."""
        answered = [pair for pair, first in self._open.items() if pair[0] == peer and first < round_number]
        accusers = [accuser for _, accuser in answered if accuser != self._me]
        for pair in answered:
            del self._open[pair]
        self.num_unconfirmed.update(accusers)
        return accusers

    def note_breach(self, peer: PeerId) -> None:
        """Our own check found something."""
        self._open = {pair: first for pair, first in self._open.items() if pair[0] != peer}

    def note_hidden(self, peer: PeerId) -> Breach | None:
        """It did not show what it began with, once more; a breach if that is often enough in a row."""
        self.num_hidden[peer] += 1
        if self.num_hidden[peer] < MAX_HIDDEN:
            return None
        return Breach(rule="hidden", value=self.num_hidden[peer], limit=MAX_HIDDEN)

    def note_shown(self, peer: PeerId) -> None:
        del self.num_hidden[peer]


def recheck_chance(genesis: Genesis, num_members: int) -> float:
    """How likely a member checks one that others suspect, per round: so that twice as many as are needed do in all.

    All at once would cost the suspect an upload to each of them, on one liar's word.
    """
    return min(1.0, 2 * num_accusers(genesis, num_members) / max(1, num_members - 1))
