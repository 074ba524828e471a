"""When a node's contributions fail again and again, it stops instead of training in vain. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import UserError

MAX_FAILURES = 5
"""In a row. One may be a poisoned batch; this many are a broken device, disk or program."""
_LINK_TROUBLE = frozenset({"too slow", "connection lost", "no contact", "dead"})
"""Why an owner leaves a contribution out that is not the contribution's fault."""


@dataclass
class Failures:
    """Counts contributions that failed since the last one that counted."""

    num_failures: int = 0
    why: str = ""
    _refusal: str | None = None
    """Why an owner has refused the contribution of the round that is going on."""

    @property
    def is_too_many(self) -> bool:
        return self.num_failures >= MAX_FAILURES

    def withheld(self, why: str) -> None:
        """The trainer has not handed its pseudo-gradient over: it is not finite."""
        self.num_failures, self.why = self.num_failures + 1, why

    def refused(self, why: str) -> None:
        """An owner has left the contribution out of a span."""
        if why not in _LINK_TROUBLE:
            self._refusal = why

    def committed(self, *, counted: bool) -> None:
        """A round is decided. One that all owners have refused us in is a failure; one that we only missed is not."""
        refusal, self._refusal = self._refusal, None
        if counted:
            self.num_failures = 0
        elif refusal is not None:
            self.withheld(refusal)

    @property
    def values(self) -> dict[str, Any]:
        """For the sentence of `Reason.REPEATED_FAILURES`."""
        return {"what": "This node’s contribution", "num_failures": self.num_failures, "why": self.why}

    def error(self) -> UserError:
        """What ends the node."""
        what = f"this node’s contribution failed {self.num_failures} times: {self.why}"
        return UserError(what, "", "see the log above, then start the node again", code="repeated_failures")
