"""Which snapshot to load, and which donor gives which leaf. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from ..envelope import Envelope, InvalidMessage
from ..identity import PeerId
from ..messages import Attest
from .chain import Chain
from .snapshot import SnapshotManifest

IsQuorum = Callable[[int, tuple[PeerId, ...], Collection[PeerId]], bool]
"""(round, roster of that round, peers) -> whether the peers are a quorum of it."""


class Uncertified(ValueError):
    """A manifest that nothing vouches for; the message says what is wrong."""


@dataclass(frozen=True)
class Certifier:
    """What decides whether a state hash may be believed."""

    run_id: str
    num_bytes: int
    """Size of the state by the local run spec."""
    is_quorum: IsQuorum
    signed: tuple[int, str, str] | None = None
    """Round, record and state hash that the run's operators have signed: where the present lineage begins."""

    def check(self, manifest: SnapshotManifest, chain: Chain) -> None:
        """Raise `Uncertified` unless the manifest's state hash is that of a commit in ``chain``.

        A state is vouched for by the next commit, whose plan names it, or by a quorum's attests.
        """
        if not manifest.is_well_formed or manifest.num_bytes != self.num_bytes:
            raise Uncertified(f"snapshot of {manifest.num_bytes} bytes where the run spec says {self.num_bytes}")
        record = chain.record(manifest.round)
        if record is None or record.content_id() != manifest.record:
            raise Uncertified(f"snapshot of a round {manifest.round} that was not committed")
        if (manifest.round, manifest.record, manifest.state_hash) == self.signed:
            return
        following = chain.record(manifest.round + 1)
        if following is not None and following.plan.parent_state != manifest.state_hash:
            raise Uncertified(f"snapshot of round {manifest.round} is not the state that the next commit names")
        if following is None and not self._is_attested(manifest, record.plan.roster):
            raise Uncertified(f"no quorum has attested the snapshot of round {manifest.round}")

    def _is_attested(self, manifest: SnapshotManifest, roster: tuple[PeerId, ...]) -> bool:
        expected = (manifest.round, manifest.record, manifest.state_hash)
        witnesses: set[PeerId] = set()
        for text in manifest.attests:
            try:
                envelope = Envelope.open(bytes.fromhex(text), run_id=self.run_id)
            except (InvalidMessage, ValueError):
                continue
            body = envelope.body
            if isinstance(body, Attest) and (body.round, body.record, body.state_hash) == expected:
                witnesses.add(envelope.header.sender)
        return self.is_quorum(manifest.round, roster, witnesses)


def newest(manifests: Mapping[PeerId, SnapshotManifest]) -> tuple[SnapshotManifest, list[PeerId]] | None:
    """The snapshot of the latest round, and every donor that has the same state (stale donors are left out)."""
    if not manifests:
        return None
    best = max(manifests.values(), key=lambda manifest: manifest.round)
    return best, [peer for peer, manifest in manifests.items() if manifest.leaves == best.leaves]


@dataclass
class LeafQueue:
    """Leaves still to be fetched. A leaf whose donor fails goes back to the front for the others."""

    missing: set[int]
    _in_flight: set[int] = field(default_factory=set[int])

    def take(self) -> int | None:
        """The lowest leaf that nobody is fetching."""
        free = self.missing - self._in_flight
        if not free:
            return None
        leaf = min(free)
        self._in_flight.add(leaf)
        return leaf

    def done(self, leaf: int) -> None:
        self._in_flight.discard(leaf)
        self.missing.discard(leaf)

    def give_back(self, leaf: int) -> None:
        self._in_flight.discard(leaf)

    @property
    def is_empty(self) -> bool:
        return not self.missing
