"""The contribution that waits for its round, if there is one: `RoundDriver.contribute` offers it and waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from .chunks import Contribution
from .messages import Ready
from .outcomes import Outcome
from .replica import Replica


@dataclass(frozen=True)
class Offer:
    """The node offers a contribution; ``outcome`` says what became of it."""

    contribution: Contribution
    outcome: asyncio.Future[Outcome]


class Pending:
    """At most one offer at a time. Answering one that is not there does nothing."""

    def __init__(self) -> None:
        self.offer: Offer | None = None

    def open(self, contribution: Contribution) -> Offer:
        """Begin to wait. Raises RuntimeError if a contribution waits already."""
        if self.offer is not None:
            raise RuntimeError("a contribution is pending already")
        self.offer = Offer(contribution, asyncio.get_running_loop().create_future())
        return self.offer

    @property
    def contribution(self) -> Contribution | None:
        return None if self.offer is None else self.offer.contribution

    def settle(self, outcome: Outcome) -> None:
        """Answer the offer."""
        offer, self.offer = self.offer, None
        if offer is not None and not offer.outcome.done():
            offer.outcome.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Whoever waits gets ``error``: nothing will become of the offer."""
        if self.offer is not None and not self.offer.outcome.done():
            self.offer.outcome.set_exception(error)


def ready_of(contribution: Contribution, replica: Replica, life: int) -> Ready:
    """What a member says of its contribution to the round after the replica's head. ``life``: see `Member.life`."""
    return Ready(
        round=replica.head_round + 1,
        parent=replica.standing.record_id,
        parent_state=replica.state_hash,
        tokens=contribution.tokens,
        commitment=contribution.commitment,
        num_inner_steps=contribution.num_inner_steps,
        life=life,
        tokens_per_s=contribution.tokens_per_s,
        squared_norm=contribution.squared_norm,
        inner_state=contribution.inner_state,
    )
