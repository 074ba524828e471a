"""A quorum that is lost for good: said by every node, and replaced by those to whom the run has delegated it.

A delegate that has seen no quorum for ``timing.quorum_timeout_s``, and nobody alive who is further, signs a reset: a
new lineage from its own state with the members that are alive. More than half of the delegates must sign the same one,
and none signs two of one number, so that there is at most one, whatever is cut off from what.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .amendments import Amendment, RunRules, may_recover
from .changes import Reset
from .durable import append_durably, read_lines
from .identity import Identity, PeerId
from .quorum import has_witnesses
from .spec import Genesis
from .standing import Standing


@dataclass(frozen=True)
class Sight:
    """What a node sees of its run at one moment."""

    rules: RunRules
    standing: Standing
    state_hash: str
    live: tuple[PeerId, ...]
    """Members of the roster that are alive, this node included if it is one."""
    has_quorum: bool
    is_level: bool
    """Whether nobody alive has applied more than this node."""

    def admits(self, peer: PeerId) -> bool:
        """Whether the run lets ``peer`` take part: the others would not hear of what somebody else has signed."""
        return self.standing.admits(self.rules.at(self.standing.round + 1), peer)


def may_begin(sight: Sight, me: PeerId) -> Reset | None:
    """The reset that ``me`` would sign: from its own state, with itself and all members alive; None where it must not.

    Without most of the witnesses a new roster could decide as little as the old one.
    """
    genesis, standing = sight.rules.at(sight.standing.round + 1), sight.standing
    roster = tuple(peer for peer in dict.fromkeys((*sight.live, me)) if standing.admits(genesis, peer))
    if not sight.is_level or not sight.admits(me) or not has_witnesses(genesis.membership.witnesses, roster):
        return None
    return Reset(
        lineage=sight.rules.lineage + 1,
        round=standing.round,
        record=standing.record_id,
        state_hash=sight.state_hash,
        roster=roster,
    )


def agrees(reset: Reset, sight: Sight) -> bool:
    """Whether another delegate's reset is one that we would sign: it loses nothing that we have, and nobody alive."""
    ours = (sight.rules.lineage + 1, sight.standing.round, sight.standing.record_id, sight.state_hash)
    is_same = (reset.lineage, reset.round, reset.record, reset.state_hash) == ours
    return is_same and sight.is_level and set(sight.live) <= set(reset.roster)


def lacks_signatures(rules: RunRules, amendment: Amendment) -> bool:
    """Whether an amendment is a delegates' reset that not enough of them have signed yet."""
    signers, delegates = amendment.signers(), rules.genesis.recovery.delegates
    is_delegates = isinstance(amendment.change, Reset) and not signers.isdisjoint(delegates)
    return is_delegates and not may_recover(rules.genesis, signers)


class SignedResets(Protocol):
    """What one delegate has signed, durably."""

    def known(self) -> Mapping[int, str]:
        """Number -> digest. Raises OSError: who cannot tell what it has signed signs nothing more."""
        ...

    def note(self, number: int, digest: str) -> None:
        """Make it durable that ``digest`` is signed. Raises OSError; it must not be signed then."""
        ...


class ResetFile:
    """`SignedResets` as a file of JSON lines. Blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> Mapping[int, str]:
        try:
            return {int(line["number"]): str(line["digest"]) for line in read_lines(self._path)}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise OSError(errno.EIO, f"{self._path.name} is damaged") from None

    def note(self, number: int, digest: str) -> None:
        append_durably(self._path, {"number": number, "digest": digest})


class Recovery:
    """One node's watch over the quorum and, if it is a delegate, its part in a reset. What signs blocks (fsync)."""

    def __init__(self, identity: Identity, signed: SignedResets, clock: Callable[[], float]) -> None:
        self._identity, self._signed, self._clock = identity, signed, clock
        self._lost_since_s: float | None = None
        self._pool: Amendment | None = None
        """The reset that is being signed."""

    def is_lost(self, genesis: Genesis, *, has_quorum: bool) -> bool:
        """Note whether there is a quorum; whether there has been none for the run's time limit."""
        now_s = self._clock()
        if has_quorum:
            self._lost_since_s = None
            return False
        if self._lost_since_s is None:
            self._lost_since_s = now_s
        return now_s - self._lost_since_s >= genesis.timing.quorum_timeout_s

    def is_my_turn(self, genesis: Genesis, live: Collection[PeerId]) -> bool:
        """Whether we are to propose: the first delegate alive at once, every later one a little later."""
        delegates = [peer for peer in genesis.recovery.delegates if peer in live or peer == self._identity.peer_id]
        if self._identity.peer_id not in delegates or self._lost_since_s is None:
            return False
        patience_s = delegates.index(self._identity.peer_id) * genesis.timing.attempt_timeout_s
        return self._clock() - self._lost_since_s >= genesis.timing.quorum_timeout_s + patience_s

    def propose(self, sight: Sight) -> Amendment | None:
        """Our reset, signed by us; the one that we have signed already, if there is one."""
        reset = may_begin(sight, self._identity.peer_id)
        if reset is None or (self._pool is not None and self._pool.number > len(sight.rules.amendments)):
            return self._pool if reset is not None else None
        return self._sign(sight.rules.next(reset, reset.round + 1))

    def cosign(self, amendment: Amendment, sight: Sight) -> Amendment | None:
        """With our signature, and those that we know of, if we agree; None if there is nothing to add."""
        change = amendment.change
        if self._pool is not None and self._pool.digest == amendment.digest:
            merged = amendment.with_signatures_of(self._pool)
            is_more, self._pool = len(merged.signatures) > len(self._pool.signatures), merged
            return merged if is_more else None
        is_next = amendment.number == len(sight.rules.amendments) + 1 and amendment.previous == sight.rules.head
        if not (is_next and sight.admits(self._identity.peer_id) and isinstance(change, Reset)):
            return None
        if not agrees(change, sight):
            return None
        return self._sign(amendment)

    def _sign(self, amendment: Amendment) -> Amendment | None:
        """Sign, unless we have signed another one of this number. Raises OSError; nothing is signed then."""
        signed = self._signed.known()
        if signed.get(amendment.number, amendment.digest) != amendment.digest:
            return None
        if amendment.number not in signed:
            self._signed.note(amendment.number, amendment.digest)
        self._pool = amendment.signed(self._identity)
        return self._pool
