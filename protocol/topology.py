"""What a run's topology adds to the rounds that its roster holds. `Topology` itself adds nothing: ``all``."""

from __future__ import annotations

from collections.abc import Sequence

from .chunks import Contribution
from .groups.places import Place
from .identity import PeerId
from .messages import Commit, Group, Message
from .outcomes import Outcome, included_spans
from .replica import Replica
from .round_machine import Phase
from .spec import Genesis


class Topology:
    """The round driver and its loop call these; all in the event loop."""

    def __init__(self, me: PeerId, replica: Replica) -> None:
        self._me, self._replica = me, replica

    # --- where this node stands ---------------------------------------------------------------------------------------

    @property
    def place(self) -> Place | None:
        """Whose part of the data this node trains on in the present round; None if it has none (yet)."""
        is_member = self._me in self._replica.standing.roster
        return Place(self._replica.head_round + 1, self._me) if is_member else None

    @property
    def phase(self) -> Phase | None:
        """Where this node stands in the round, if the round machine does not know."""
        return None

    @property
    def group(self) -> Group | None:
        """The group that this node is in, if there are groups."""
        return None

    # --- a round ------------------------------------------------------------------------------------------------------

    async def begin(self, genesis: Genesis) -> None:
        """A round begins, or begins anew."""

    def tick(self) -> None:
        """Time has passed; a few times per heartbeat interval."""

    async def gather(self, own: Contribution) -> Contribution:
        """What this node offers to the round where it has ``own``."""
        return own

    def diverts(self, contribution: Contribution) -> bool:
        """Whether a contribution that is offered now goes another way than through the round machine."""
        return False

    async def settled(self, outcome: Outcome) -> None:
        """Nothing waits for this node's contribution any more: its bytes may change."""

    def decided(self, commit: Commit) -> None:
        """The present round is decided; its means may still have to be fetched."""

    def sources(self, span: int, waited_s: float) -> Sequence[PeerId]:
        """Whom to ask for a span of the present round's result, after ``waited_s`` of asking; empty: anybody."""
        return ()

    async def counted(self, commit: Commit) -> tuple[bool, ...]:
        """Per span of an applied commit's plan, whether this node's work is in its mean (S6)."""
        return included_spans(commit, self._me)

    # --- what others say ----------------------------------------------------------------------------------------------

    def takes(self, sender: PeerId, body: Message) -> bool:
        """Whether a message is for `hear` rather than for the round machine."""
        return False

    def hear(self, sender: PeerId, body: Message, raw: bytes) -> None:
        """A message that `takes` has accepted. Raises `RemoteProtocolError`."""

    async def close(self) -> None:
        """Stop at once, and leave no task behind."""
