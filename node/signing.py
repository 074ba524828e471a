"""An operator at work on the amendments of a run: what is known of it on this machine, and where a new one goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..protocol.amendments import Amendment, InvalidAmendment, RunRules
from ..protocol.changes import Change, Resume
from ..protocol.identity import Identity, PeerId
from .amendment_store import AmendmentStore, read_companion, write_companion
from .chain import Chain
from .errors import UserError
from .lineage_start import change_for
from .run_spec import load_run_spec


@dataclass(frozen=True)
class Signed:
    """What was signed; it is beside the spec."""

    amendment: Amendment
    num_needed: int
    """Signatures that the run asks for."""
    is_complete: bool
    """Whether it has them, and was given to the node of `folder`."""
    folder: Path


class Signing:
    """Signs amendments of the run ``spec``. Methods raise `UserError` for what the run's rules do not allow.

    ``folder`` is that of a node which spreads what is complete, and which knows how far the run is.
    """

    def __init__(self, spec: Path, identity: Identity, folder: Path) -> None:
        self._spec, self._identity, self._folder = spec, identity, folder
        self._store, self._chain_path = AmendmentStore(folder), folder / "chain.jsonl"
        run = load_run_spec(spec)
        beside, own = run.rules, self._store.load(run.genesis)
        self._rules = own if len(own.amendments) > len(beside.amendments) else beside
        whole = read_companion(spec)
        self._partial = next(iter(whole[len(self._rules.amendments) :]), None)

    @property
    def paused_round(self) -> int | None:
        """Where the last pause begins."""
        return next((a.from_round for a in reversed(self._rules.amendments) if a.change.kind == "pause"), None)

    def sign(self, change: Change, from_round: int | None) -> Signed:
        """An amendment with ``change``, by default from the round after the one that the node works on."""
        present_round = self._present_round()
        number = from_round or present_round + 1
        if number < present_round and not isinstance(change, Resume):
            todo = f"choose a later one: this folder's node works on round {present_round}"
            raise UserError("round is past", str(number), todo, code="round_past")
        return self._finish(self._rules.next(change, number).signed(self._identity))

    def fork(self, to_round: int, roster: tuple[PeerId, ...] | None, *, is_reset: bool) -> Signed:
        """A new lineage from a round that the node has."""
        change = change_for(self._folder, self._rules, to_round, roster, is_reset=is_reset)
        return self._finish(self._rules.next(change, to_round + 1).signed(self._identity))

    def cosign(self) -> Signed:
        """One more signature of the amendment beside the spec that lacks some."""
        if self._partial is None:
            todo = "nothing waits for a signature in the file beside the spec"
            raise UserError("no amendment to sign", str(self._spec), todo, code="nothing_to_sign")
        return self._finish(self._partial.signed(self._identity))

    def _finish(self, amendment: Amendment) -> Signed:
        """Keep it beside the spec, and give it to the node if it is complete."""
        rules: RunRules | None = None
        try:
            if not self._rules.is_partial(amendment):
                self._rules.check_new(amendment, amendment.from_round, self._roster())
                rules = self._rules.extended([amendment])
        except InvalidAmendment as error:
            raise UserError("amendment", str(error), "correct it and sign again", code="amendment") from None
        write_companion(self._spec, [*self._rules.amendments, amendment])
        if rules is not None:
            self._store.submit(rules.amendments)
        return Signed(amendment, self._rules.threshold, rules is not None, self._folder)

    def _present_round(self) -> int:
        """The round that the node works on; 1 if there is none."""
        path = self._chain_path
        return len(path.read_bytes().splitlines()) + 1 if path.exists() else 1

    def _roster(self) -> tuple[PeerId, ...]:
        """Who votes on the next round, as far as the node knows."""
        last = Chain(self._chain_path).last if self._chain_path.exists() else None
        return self._rules.standing(last).roster
