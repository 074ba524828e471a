"""Where a new lineage can begin, as this node's folder knows it: the record, the state's hash and the voters."""

from __future__ import annotations

import json
from pathlib import Path

from ..protocol.amendments import RunRules
from ..protocol.changes import Reset, Rollback
from ..protocol.identity import PeerId
from ..protocol.messages import Commit
from .chain import Chain
from .errors import UserError


def change_for(
    folder: Path, rules: RunRules, to_round: int, roster: tuple[PeerId, ...] | None, *, is_reset: bool
) -> Rollback:
    """A rollback or reset to the state after ``to_round``. Raises `UserError` if this folder does not know it."""
    path = folder / "chain.jsonl"
    if not path.exists():
        todo = "give the --folder of a node that takes part in the run"
        raise UserError("no rounds are known here", str(folder), todo, code="no_chain")
    chain = Chain(path)
    if to_round > len(chain):
        raise UserError("no such round", str(to_round), f"the last one here is {len(chain)}", code="no_such_round")
    standing = rules.standing(chain.get(to_round) if to_round else None)
    kept = tuple(peer for peer in standing.roster if rules.at(to_round + 1).admits(peer))
    return (Reset if is_reset else Rollback)(
        lineage=rules.lineage + 1,
        round=to_round,
        record=standing.record_id,
        state_hash=_state_hash(folder, chain, rules, to_round),
        roster=roster or kept,
    )


def _state_hash(folder: Path, chain: Chain, rules: RunRules, to_round: int) -> str:
    """Named by the next commit; after the last one, by this node's own checkpoint."""
    if to_round == 0:
        return rules.genesis.initial_state
    if to_round < len(chain):
        return chain.get(to_round + 1).record.plan.parent_state
    return _own_state_hash(folder, chain.get(to_round))


def _own_state_hash(folder: Path, commit: Commit) -> str:
    record = commit.record.content_id()
    for manifest in sorted((folder / "state").glob("*.json"), reverse=True):
        state = json.loads(manifest.read_text()).get("state", {})
        if state.get("record") == record:
            return str(state["state_hash"])
    number, todo = commit.record.plan.round, "wait until the node has saved it, or roll back one round further"
    raise UserError("no checkpoint of this round here", str(number), todo, code="no_checkpoint")
