"""Whether this node has the same state as most of its roster (S4): attests of everybody, after every commit."""

from __future__ import annotations

from .attestations import Attestations
from .identity import PeerId
from .mail import Mail
from .messages import Attest, Commit
from .outcomes import Observe
from .peers import PeerTable
from .receipts import statements_root
from .replica import Replica


class Agreement:
    """Sends our attests, collects those of others, compares. ``observe`` hears ``state.disagrees``."""

    def __init__(
        self,
        run_id: str,
        replica: Replica,
        mail: Mail,
        peers: PeerTable,
        observe: Observe,
    ) -> None:
        self._run_id, self._replica, self._mail, self._peers, self._observe = run_id, replica, mail, peers, observe
        self.attestations = Attestations()

    @property
    def is_broken(self) -> bool:
        """Whether most of the roster has another state than ours after our head."""
        return self._majority() not in (None, self._replica.state_hash)

    def attest(self, commit: Commit, state_hash: str) -> None:
        """Tell everybody our state hash after ``commit``, which is applied."""
        attest = Attest(
            round=self._replica.head_round,
            record=commit.record.content_id(),
            state_hash=state_hash,
            receipts=statements_root(self._run_id, commit),
        )
        self.add(self._mail.me, attest, self._mail.post(self._peers.circle(), attest))

    def add(self, sender: PeerId, attest: Attest, raw: bytes) -> None:
        """Note an attest, and say if most of the roster has another state; the next tick does something about it."""
        self.attestations.add(sender, attest, raw, self._replica.head_round, self._replica.standing.roster)
        if self.is_broken:
            self._observe("state.disagrees", {"ours": self._replica.state_hash, "theirs": self._majority()})

    def forget(self) -> None:
        """What was attested in another lineage says nothing of this one."""
        self.attestations = Attestations()

    def _majority(self) -> str | None:
        standing = self._replica.standing
        return self.attestations.majority(standing.round, standing.record_id, standing.roster)
